--- tl.params { depth = 12, width = 768 }: knobs of a recipe.
--
-- The table names each knob once, with its usual value. The command line (depth=24) and
-- :over("depth", ..) set them; then the file is loaded again, because everything in it may depend
-- on them. A knob has the type of its usual value.
local fields = require "tidelock.language.fields"
local suggest = require "tidelock.text.suggest"
local types = require "tidelock.language.types"
local where = require "tidelock.language.where"

local params = {}

local function problem(context, place, path, text)
  if context then
    context.problems:add(place, path, text)
  else
    error((place and place .. ": " or "") .. path .. ": " .. text, 0)
  end
end

local function wanted(default)
  if math.type(default) == "integer" then return "an integer" end
  return "a " .. type(default)
end

--- `value` as the type of `default`, or nil.
local function fit(default, value)
  if type(default) ~= type(value) then return nil end
  if math.type(default) == "integer" then return math.tointeger(value) end
  if math.type(default) == "float" then return value + 0.0 end
  return value
end

local function declare(context, site, name, default)
  local place = where.field(site, "params", name)
  if type(name) ~= "string" or not name:find "^[%a_][%w_]*$" then
    problem(
      context,
      place,
      "params",
      ("a knob has a name, as { depth = 12 }; got %s"):format(types.show(name))
    )
    return nil
  end
  if fields.sections.recipe.by_name[name] then
    problem(context, place, "params." .. name, "a recipe has a field of this name; choose another")
  end
  local kind = type(default)
  if kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
    problem(
      context,
      place,
      "params." .. name,
      "expected a number, a string or true or false, got " .. types.show(default)
    )
  end
  local given = context and context.given[name]
  if context then context.declared[name] = default end
  if not given then return default end
  local value = fit(default, given.value)
  if value == nil then
    problem(
      context,
      given.place,
      name,
      ("expected %s, got %s"):format(wanted(default), types.show(given.value))
    )
    return default
  end
  return value
end

--- A knob that is not among the sorted `names` is nil in silence, unless the table refuses it.
local function refuse_others(values, names)
  return setmetatable(values, {
    __index = function(_, key)
      local near = type(key) == "string" and suggest.nearest(key, names)
      error(("params.%s: no such knob; %sthere are %s"):format(tostring(key),
        near and ("did you mean %s? "):format(near) or "", table.concat(names, ", ")), 2)
    end,
  })
end

--- The knobs with the values that this loading of the file has for them.
function params.new(defaults)
  local context, site = where.context(), where.here()
  local values = {}
  if type(defaults) ~= "table" then
    problem(
      context, site, "params", "expected a table as { depth = 12 }, got " .. types.show(defaults)
    )
    return values
  end
  local names = {}
  for name in pairs(defaults) do names[#names + 1] = name end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  local known = {}
  for _, name in ipairs(names) do
    local value = declare(context, site, name, defaults[name])
    if value ~= nil then values[name], known[#known + 1] = value, name end
  end
  return refuse_others(values, known)
end

return params
