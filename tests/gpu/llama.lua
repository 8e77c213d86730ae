--- llama.lua - recipes/llama_1b.lua on tokens that are made here: documents of 997 random ids.
local core = require "tidelock.core"

--- Writes the tokens and a recipe into a folder (support/folder.lua); returns the recipe's path.
return function(room)
  local ids, state = {}, 1
  for i = 1, 700000 do
    state = (state * 1103515245 + 12345) % 2147483648
    ids[i] = i % 997 == 0 and 2 or 3 + (state >> 8) % 31997
  end
  room:write_tokens("llama.bin", ids, "I2")
  return room:write("llama.lua", ([[
local tl = require "tidelock"
return tl.load "%s/recipes/llama_1b.lua":with {
  data = tl.data.tokens { "%s", dtype = "uint16", eos = 2 },
  ["train.save"] = false, ["train.lr"] = { "constant", 4e-4 }, ["train.steps"] = 100,
}]]):format(core.files.realpath ".", room:path "llama.bin"))
end
