-- hf_tokens.lua - a text as ids for tl.data.tokens: ./tl lua recipes/hf_tokens.lua MODEL TEXT OUT
local tl = require "tidelock"

if #arg ~= 3 then error("./tl lua recipes/hf_tokens.lua MODEL TEXT OUT", 0) end
local tokenizer = assert(tl.tokenizer(arg[1])) -- a folder with tokenizer.json
local text = assert(tl.files.read_all(arg[2]))
local ids, words = tokenizer:encode(text, true), {}
for i, id in ipairs(ids) do words[i] = string.pack("<I4", id) end
tl.files.write_atomic(arg[3], table.concat(words))
print(("%s: %d tokens of %d bytes"):format(arg[3], #ids, #text))
