--- `./tl tokenize TOKENIZER TEXT`: the ids of a text, one token a line, and the text back.
--
--     ./tl tokenize bytes "Tide"                      84  T, 105  i, ..
--     ./tl tokenize models/llama "Hello world"        with what the file puts around a text
--     ./tl tokenize models/llama --ids 1,15043        the other way
--     ./tl tokenize models/llama - < book.txt         stdin; --count prints numbers only

local core = require "tidelock.core"
local screen = require "tidelock.text.screen"

local tokenize = {}

local function usage(format, ...)
  error({ status = 2, message = "tidelock: tokenize: " .. format:format(...) }, 0)
end

--- Bytes as a terminal can show them: printable text as it is, the rest as \xHH.
function tokenize.shown(bytes)
  if utf8.len(bytes) and not bytes:find "[%c]" then return bytes end
  return (bytes:gsub("[^\32-\126]", function(byte) return ("\\x%02X"):format(byte:byte()) end))
end

local function decode(tokenizer, list)
  local ids = {}
  for word in list:gmatch "[^,%s]+" do
    local id = math.tointeger(tonumber(word))
    if not id then usage("--ids: expected integers and commas, got %q", list) end
    ids[#ids + 1] = id
  end
  local good, text = pcall(tokenizer.decode, tokenizer, ids, true)
  if not good then usage("%s", (text:gsub("^[^\n]-%.lua:%d+: ", ""))) end
  io.write(text, "\n")
  return 0
end

--- The command.
---@param request tidelock.Request
function tokenize.command(request)
  local options = request.options
  local tokenizer, message = core.tokenizer(request.words[1])
  if not tokenizer then
    usage("%s; it can be a tokenizer.json, its folder, or bytes, where bytes are tokens", message)
  end
  local text = request.words[2]
  if options.ids then
    if text then usage("--ids or a text, not both") end
    return decode(tokenizer, options.ids)
  end
  if not text then usage("a text is missing; - reads stdin; e.g. ./tl %s",
    request.command.example) end
  if text == "-" then text = io.read "a" end
  local good, ids = pcall(tokenizer.encode, tokenizer, text, not options.bare)
  if not good then usage("%s", (ids:gsub("^[^\n]-%.lua:%d+: ", ""))) end
  if options.count then
    print(("%s, %s, vocabulary %d"):format(screen.plural(#ids, "token"),
      screen.plural(#text, "byte"), tokenizer:vocab()))
    return 0
  end
  for _, id in ipairs(ids) do print(("%7d  %s"):format(id, tokenize.shown(tokenizer:token(id)))) end
  return 0
end

return tokenize
