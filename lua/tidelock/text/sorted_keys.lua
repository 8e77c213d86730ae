--- sorted_keys.lua - the keys of a table in one order: what pairs gives differs from run to run.
---
---     sorted_keys { b = 1, [2] = 1, a = 1, [10] = 1 }     { 2, 10, "a", "b" }
---
--- Numbers ascending, then strings bytewise; all others by type, then by their text.
---@param map table
---@return any[]
return function(map)
  local keys = {}
  for key in pairs(map) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    if type(a) ~= type(b) then return type(a) < type(b) end
    if type(a) == "number" or type(a) == "string" then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys
end
