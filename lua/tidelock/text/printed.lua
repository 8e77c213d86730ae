--- printed.lua - a value as a REPL prints it: lists and tables as Lua writes them.
---
---     { { 4, 5 }, { 10, 11 } }        { loss = 5.5, step = 1 }        "text" inside, text outside
---
--- Keys stand in order. Levels below the fourth, and items behind the hundredth, are "..".
local deepest, most = 4, 100

local function before(a, b)
  if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
  return type(a) .. tostring(a) < type(b) .. tostring(b)
end

local function named(key)
  if type(key) == "string" and key:match "^[%a_][%w_]*$" then return key end
  return ("[%s]"):format(type(key) == "string" and ("%q"):format(key) or tostring(key))
end

--- Objects (tensors, runs) and values that write themselves keep their own text.
local function printed(value, depth)
  if type(value) == "string" and depth > 0 then return ("%q"):format(value) end
  if type(value) ~= "table" or getmetatable(value) ~= nil then return tostring(value) end
  if next(value) == nil then return "{}" end
  if depth == deepest then return "{ .. }" end
  local parts, keys, listed = {}, {}, #value
  for i = 1, math.min(listed, most) do parts[i] = printed(value[i], depth + 1) end
  for key in pairs(value) do -- sorted below
    if math.type(key) ~= "integer" or key < 1 or key > listed then keys[#keys + 1] = key end
  end
  table.sort(keys, before)
  for i = 1, math.min(#keys, most - #parts) do
    parts[#parts + 1] = ("%s = %s"):format(named(keys[i]), printed(value[keys[i]], depth + 1))
  end
  if listed + #keys > most then parts[#parts + 1] = ".." end
  return "{ " .. table.concat(parts, ", ") .. " }"
end

---@param value any
---@return string
return function(value) return printed(value, 0) end
