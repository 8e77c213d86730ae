--- pieces.lua - the text of tokens as they come: whole characters, and nothing behind a stop.
---
---     tokens    "T"  "id\xE2"  "\x82\xAC s"  "top"  " here"          stops { " stop" }
---     given     "T"  "id"      "\u{20AC}"        ""                  what may begin a stop waits
---
--- Bytes that are no UTF-8 become U+FFFD, since JSON has no way to hold them.
local pieces = {}

local unknown = "\u{FFFD}"

--- `bytes` with U+FFFD for each byte that no character claims.
function pieces.valid(bytes)
  local parts, at = {}, 1
  while at <= #bytes do
    local length, bad = utf8.len(bytes, at)
    if length then break end
    parts[#parts + 1] = bytes:sub(at, bad - 1)
    parts[#parts + 1] = unknown
    at = bad + 1
  end
  if at == 1 then return bytes end
  parts[#parts + 1] = bytes:sub(at)
  return table.concat(parts)
end

--- Bytes at the end of `bytes` that may be the beginning of a character.
local function unfinished(bytes)
  for back = 1, math.min(3, #bytes) do
    local byte = bytes:byte(#bytes - back + 1)
    if byte >= 0xC0 then
      local needed = byte >= 0xF0 and 4 or byte >= 0xE0 and 3 or 2
      return back < needed and back or 0
    end
    if byte < 0x80 then return 0 end
  end
  return 0
end

local Pieces = {}
Pieces.__index = Pieces

---@class tidelock.Pieces
---@field stopped boolean # a stop has come; nothing follows

---@param tokenizer tidelock.Tokenizer
---@param prompt integer[]
---@param stops string[]
---@return tidelock.Pieces
function pieces.new(tokenizer, prompt, stops)
  local begun = false
  for _, id in ipairs(prompt) do
    local _, special = tokenizer:token(id)
    begun = begun or not special
  end
  return setmetatable({ tokenizer = tokenizer, begun = begun, stops = stops, held = "",
    stopped = false }, Pieces)
end

--- The bytes that a token adds to the text.
function Pieces:bytes(id)
  local bytes, special = self.tokenizer:token(id)
  if special then return "" end
  if not self.begun then bytes = self.tokenizer:decode { id } end -- may drop the first space
  self.begun = true
  return bytes
end

--- Where the first of the stops begins; nil: nowhere.
local function first_stop(held, stops)
  local first
  for _, stop in ipairs(stops) do
    local at = held:find(stop, 1, true)
    if at and (not first or at < first) then first = at end
  end
  return first
end

--- Bytes at the end of `held` that may be the beginning of a stop.
local function hopeful(held, stops)
  local most = 0
  for _, stop in ipairs(stops) do
    for count = math.min(#stop - 1, #held), most + 1, -1 do
      if held:sub(-count) == stop:sub(1, count) then
        most = count
        break
      end
    end
  end
  return most
end

--- What can be shown now that `bytes` have come; `last`: nothing comes behind them.
---@param bytes string
---@param last boolean?
---@return string
function Pieces:add(bytes, last)
  if self.stopped then return "" end
  self.held = self.held .. bytes
  local stop = first_stop(self.held, self.stops)
  local ready = #self.held
  if stop then
    self.stopped, ready = true, stop - 1
  elseif not last then
    ready = ready - hopeful(self.held, self.stops)
    ready = ready - unfinished(self.held:sub(1, ready))
  end
  local shown = self.held:sub(1, ready)
  self.held = self.stopped and "" or self.held:sub(ready + 1)
  return pieces.valid(shown)
end

return pieces
