--- seal.lua - a JSON object whose last field is the hash of all bytes before it, so that silent
--- damage to the file is found.
---
---     {"version":2,"key":"eaf6..","xxh64":"0f8b1c6a93d2e471"}
---     |<------- hashed -------->|
---
--- Programs that know nothing of it read it as any other JSON.
local core = require "tidelock.core"

local seal = {}

local function text_of(front) return (',"xxh64":"%s"}'):format(core.hash(front)) end

--- The text of an object, sealed.
---@param object table
---@return string
function seal.encode(object)
  local front = core.json.encode(object):sub(1, -2)
  return front .. text_of(front)
end

--- The object of a sealed text; nil and what is wrong with it.
---@param text string
---@return table? object
---@return string? problem
function seal.decode(text)
  local front, written = text:match '^({.*),"xxh64":"(%x+)"}%s*$'
  if not front then return nil, "it does not end with its checksum" end
  local own = core.hash(front)
  if own ~= written then
    return nil, ("its bytes have the checksum %s, and %s was written"):format(own, written)
  end
  local good, object = pcall(core.json.decode, front .. "}")
  if not good or type(object) ~= "table" then return nil, "it is no JSON object" end
  return object
end

return seal
