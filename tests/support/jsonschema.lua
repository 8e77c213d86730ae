--- jsonschema.lua - as much of JSON Schema 2020-12 as docs/records.schema.json uses.
---
---     jsonschema.complaints(schema, value)  ->  { "/loss_bits: 7 is no string", .. }
---
--- type, const, enum, pattern (read as a Lua pattern where {n} is written out), minimum, required,
--- properties, additionalProperties, items, oneOf, $ref into $defs. Anything else raises.
local jsonschema = {}

local known = { ["$schema"] = true, title = true, description = true, ["$defs"] = true, type = true,
  const = true, enum = true, pattern = true, minimum = true, required = true, properties = true,
  additionalProperties = true, items = true, oneOf = true, ["$ref"] = true }

local function is(value, kind)
  if kind == "integer" then return math.type(value) == "integer" end
  if kind == "array" then return type(value) == "table" and (next(value) == nil or #value > 0) end
  if kind == "object" then return type(value) == "table" and #value == 0 end
  return type(value) == kind
end

--- "^[0-9a-f]{8}$" as a Lua pattern.
local function lua_pattern(pattern)
  return (pattern:gsub("(%b[]){(%d+)}", function(set, count) return set:rep(tonumber(count)) end))
end

local check

local function check_scalar(schema, value, path, say)
  if schema.type and not is(value, schema.type) then
    return say(path, tostring(value) .. " is no " .. schema.type)
  end
  if schema.const ~= nil and schema.const ~= value then
    say(path, ("%s is not %s"):format(tostring(value), tostring(schema.const)))
  end
  local found = schema.enum == nil
  for _, one in ipairs(schema.enum or {}) do found = found or one == value end
  if not found then say(path, tostring(value) .. " is none of the choices") end
  if schema.pattern and not value:find(lua_pattern(schema.pattern)) then
    say(path, value .. " does not match " .. schema.pattern)
  end
  if schema.minimum and value < schema.minimum then say(path, value .. " is too small") end
end

local function check_object(root, schema, value, path, say)
  for _, name in ipairs(schema.required or {}) do
    if value[name] == nil then say(path, name .. " is missing") end
  end
  for name, item in pairs(value) do
    local of = (schema.properties or {})[name]
    if of == nil then of = schema.additionalProperties end
    if of == false then say(path, "no field is called " .. name) end
    if type(of) == "table" then check(root, of, item, path .. "/" .. name, say) end
  end
end

--- How many of the schemas of `list` take the value.
local function matches(root, list, value)
  local count = 0
  for _, one in ipairs(list) do
    local clean = true
    check(root, one, value, "", function() clean = false end)
    count = count + (clean and 1 or 0)
  end
  return count
end

function check(root, schema, value, path, say)
  for word in pairs(schema) do assert(known[word], "this checker does not know " .. word) end
  if schema["$ref"] then
    return check(root, root["$defs"][schema["$ref"]:match "^#/%$defs/(.*)$"], value, path, say)
  end
  if schema.oneOf then
    local count = matches(root, schema.oneOf, value)
    if count ~= 1 then say(path, count .. " of the forms fit") end
    return
  end
  check_scalar(schema, value, path, say)
  if type(value) ~= "table" then return end
  if schema.properties or schema.required or schema.additionalProperties ~= nil then
    check_object(root, schema, value, path, say)
  end
  for i, item in ipairs(schema.items and value or {}) do
    check(root, schema.items, item, path .. "/" .. i, say)
  end
end

---@return string[]
function jsonschema.complaints(schema, value, root)
  local list = {}
  check(root or schema, schema, value, "", function(path, text)
    list[#list + 1] = path .. ": " .. text
  end)
  table.sort(list)
  return list
end

return jsonschema
