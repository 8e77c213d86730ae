--- choices.lua - the table of a router by hash: which experts the tokens of an id go to.
---
---     id      0          1          ..  V - 1
---     row     5, 0, 3    2, 7, 0        ..         k different experts of E
---
--- A row is the beginning of a permutation of the experts: k steps of a shuffle, each with a number
--- of its own, so that a row hangs on seed, name, id and E alone, and the first slots of it are
--- those of any smaller k.
---
---     key = mix64(seed + mix64(hash of the table's name))
---     step i:  n = mix64(key + mix64(64 id + i)) >> 33,   swap place i and place i + n mod (E - i)
local core = require "tidelock.core"

local choices = {}

--- The first `count` places of the permutation of an id.
---@return integer[] # from 1; experts from 0
function choices.row(key, id, experts, count)
  local moved, row = {}, {}
  for i = 0, count - 1 do
    local number = core.mix64(key + core.mix64(64 * id + i)) >> 33
    local place = i + number % (experts - i)
    row[i + 1] = moved[place] or place
    moved[place] = moved[i] or i
  end
  return row
end

--- Elements of the table `name` by index, row after row.
---@return fun(index: integer): integer
function choices.of(seed, name, experts, count)
  local key = core.mix64(seed + core.mix64(core.hash_int(name)))
  local last, row
  return function(index)
    local id = index // count
    if id ~= last then last, row = id, choices.row(key, id, experts, count) end
    return row[index % count + 1]
  end
end

return choices
