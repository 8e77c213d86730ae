--- jinja/values.lua - the values of a template and what can be done with them, as in Python.
---
---     text, number, true, false     Lua's own
---     none, undefined               two values of their own; what a missing name gives
---     list                          { 1, 2 } with a metatable; #list is its length
---     map                           keys in order: { keys = {..}, of = { key = value } }
---     namespace                     { fields = {..} }: the one thing that `set a.b` changes
local core = require "tidelock.core"
local sorted_keys = require "tidelock.text.sorted_keys"

local values = {}

local array_of_json = getmetatable(core.json.array {})
local List, Map, Namespace, Mark = {}, {}, {}, {}

values.none = setmetatable({}, Mark)
values.undefined = setmetatable({}, Mark)

--- Raises what a template or its data does wrong.
function values.fail(format, ...) error({ template = format:format(...) }, 0) end

local fail, none, undefined = values.fail, values.none, values.undefined

--- What a rendering may cost: 1 for an expression, a statement, an item of a list, 64 bytes of a
--- text, and 10 for a turn of a loop. All clients wait while a template runs, so that one without
--- an end must not.
local cost_most = 2000000
local cost_left = cost_most

function values.begin() cost_left = cost_most end

function values.spend(cost)
  cost_left = cost_left - cost
  if cost_left < 0 then
    fail("it takes more than %d steps, of which 64 bytes of a text are one", cost_most)
  end
end

local spend = values.spend

function values.is_list(value) return getmetatable(value) == List end
function values.is_map(value) return getmetatable(value) == Map end
function values.is_namespace(value) return getmetatable(value) == Namespace end

function values.list(items) return setmetatable(items, List) end
function values.map() return setmetatable({ keys = {}, of = {} }, Map) end
function values.namespace(fields) return setmetatable({ fields = fields }, Namespace) end

function values.put(map, key, value)
  if type(key) ~= "string" and math.type(key) ~= "integer" then
    fail "a key that is neither a text nor a whole number"
  end
  if map.of[key] == nil then table.insert(map.keys, key) end
  map.of[key] = value
end

--- A value of JSON as one of a template. Objects know no order of keys; `from` sorts them and marks
--- them, so that what would show the order can be refused.
function values.from(value)
  if value == core.json.null then return none end
  if type(value) ~= "table" then return value end
  if getmetatable(value) == array_of_json then
    local list = values.list {}
    for i, item in ipairs(value) do list[i] = values.from(item) end
    return list
  end
  local names, map = sorted_keys(value), values.map()
  for _, name in ipairs(names) do values.put(map, name, values.from(value[name])) end
  map.unordered = #names > 1
  return map
end

--- What Python calls a value of this kind.
function values.kind(value)
  if value == none then return "none" end
  if value == undefined then return "undefined" end
  if values.is_list(value) then return "list" end
  if values.is_map(value) then return "map" end
  if values.is_namespace(value) then return "namespace" end
  return math.type(value) or type(value)
end

function values.truth(value)
  local kind = values.kind(value)
  if kind == "none" or kind == "undefined" then return false end
  if kind == "boolean" then return value end
  if kind == "integer" or kind == "float" then return value ~= 0 end
  if kind == "string" then return value ~= "" end
  if kind == "list" then return #value > 0 end
  if kind == "map" then return #value.keys > 0 end
  return true
end

--- The value as text: what {{ }} prints.
function values.text(value)
  local kind = values.kind(value)
  if kind == "string" then return value end
  if kind == "integer" then return tostring(value) end
  if kind == "boolean" then return value and "True" or "False" end
  if kind == "none" then return "None" end
  if kind == "undefined" then return "" end
  fail("a %s is printed, which is not rendered by this server", kind)
end

--- The items that a loop goes over; those of a map are its keys.
function values.items(value)
  local kind = values.kind(value)
  if kind == "list" then
    spend(#value)
    return value
  end
  if kind == "map" then
    values.need_order(value)
    spend(#value.keys)
    return value.keys
  end
  if kind == "undefined" then return {} end
  if kind == "string" then
    spend(#value)
    local list = {}
    for _, code in utf8.codes(value) do list[#list + 1] = utf8.char(code) end
    return list
  end
  fail("a loop over a %s", kind)
end

function values.need_order(map)
  if map.unordered then
    fail "the order of an object's fields is asked for, which this server does not keep"
  end
end

--- The part of a list or a text, from its place; negative ones count from the end.
local function part(value, index)
  local count = type(value) == "string" and utf8.len(value) or #value
  if index < 0 then index = index + count end
  if index < 0 or index >= count then return undefined end
  if type(value) ~= "string" then return value[index + 1] end
  local first = utf8.offset(value, index + 1)
  return value:sub(first, utf8.offset(value, 2, first) - 1)
end

--- value.key and value[key]. Nothing is inside of undefined: that is an error, as in Jinja.
function values.get(value, key)
  local kind = values.kind(value)
  if kind == "undefined" then fail("%s of something undefined", tostring(key)) end
  local found
  if kind == "map" then
    found = value.of[key]
  elseif kind == "namespace" then
    found = value.fields[key]
  elseif (kind == "list" or kind == "string") and math.type(key) == "integer" then
    found = part(value, key)
  end
  if found == nil then return undefined end
  return found
end

--- value[first:last:step], with Python's rules for bounds.
function values.slice(value, first, last, step)
  local text = type(value) == "string"
  if not text and not values.is_list(value) then fail("a slice of a %s", values.kind(value)) end
  local items = values.items(value)
  local count = #items
  step = step or 1
  if step == 0 then fail "a slice with the step 0" end
  local function clip(bound, low, high)
    if bound < 0 then bound = bound + count end
    return math.max(low, math.min(high, bound))
  end
  local list = {}
  local start = step > 0 and 0 or count - 1
  local stop = step > 0 and count or -1
  if first then start = step > 0 and clip(first, 0, count) or clip(first, -1, count - 1) end
  if last then stop = step > 0 and clip(last, 0, count) or clip(last, -1, count - 1) end
  for i = start, step > 0 and stop - 1 or stop + 1, step do list[#list + 1] = items[i + 1] end
  return text and table.concat(list) or values.list(list)
end

-- operators --------------------------------------------------------------------------------------

function values.equal(a, b)
  spend(1)
  local kind, other = values.kind(a), values.kind(b)
  local function as_number(value)
    if type(value) == "boolean" then return value and 1 or 0 end
    return type(value) == "number" and value or nil
  end
  if as_number(a) and as_number(b) then return as_number(a) == as_number(b) end
  if kind ~= other then return false end
  if kind == "list" then
    if #a ~= #b then return false end
    for i = 1, #a do
      if not values.equal(a[i], b[i]) then return false end
    end
    return true
  elseif kind == "map" then
    if #a.keys ~= #b.keys then return false end
    for _, key in ipairs(a.keys) do
      if b.of[key] == nil or not values.equal(a.of[key], b.of[key]) then return false end
    end
    return true
  end
  return a == b
end

local function contains(value, item)
  local kind = values.kind(value)
  if kind == "string" then
    if type(item) ~= "string" then fail("a %s in a text", values.kind(item)) end
    return value:find(item, 1, true) ~= nil
  elseif kind == "list" then
    for _, one in ipairs(value) do
      if values.equal(one, item) then return true end
    end
    return false
  elseif kind == "map" then
    return value.of[item] ~= nil
  elseif kind == "undefined" then
    return false
  end
  fail("in a %s", kind)
end

local ordered = {
  ["<"] = function(a, b) return a < b end, [">"] = function(a, b) return a > b end,
  ["<="] = function(a, b) return a <= b end, [">="] = function(a, b) return a >= b end,
}

function values.compare(operator, a, b)
  if operator == "==" then return values.equal(a, b) end
  if operator == "!=" then return not values.equal(a, b) end
  if operator == "in" then return contains(b, a) end
  if operator == "not in" then return not contains(b, a) end
  local fine = type(a) == "number" and type(b) == "number"
    or type(a) == "string" and type(b) == "string"
  if not fine then fail("%s of a %s and a %s", operator, values.kind(a), values.kind(b)) end
  if type(a) == "string" then -- by bytes: in UTF-8 the order of characters, in every locale
    a, b = values.order(a, b), 0
  end
  return ordered[operator](a, b)
end

--- -1, 0 or 1: the order of two texts by their bytes.
function values.order(a, b)
  for i = 1, math.min(#a, #b) do
    if a:byte(i) ~= b:byte(i) then return a:byte(i) < b:byte(i) and -1 or 1 end
  end
  return #a == #b and 0 or #a < #b and -1 or 1
end

local arithmetic = {
  ["+"] = function(a, b) return a + b end, ["-"] = function(a, b) return a - b end,
  ["*"] = function(a, b) return a * b end, ["/"] = function(a, b) return a / b end,
  ["//"] = function(a, b) return a // b end, ["%"] = function(a, b) return a % b end,
}

function values.operate(operator, a, b)
  if operator == "~" then
    a, b = values.text(a), values.text(b)
    spend((#a + #b) // 64)
    return a .. b
  end
  if type(a) == "number" and type(b) == "number" then
    if b == 0 and operator:find "[/%%]" then fail "a division by zero" end
    return arithmetic[operator](a, b)
  elseif operator == "+" and type(a) == "string" and type(b) == "string" then
    spend((#a + #b) // 64)
    return a .. b
  elseif operator == "+" and values.is_list(a) and values.is_list(b) then
    spend(#a + #b)
    local list = table.move(a, 1, #a, 1, {})
    return values.list(table.move(b, 1, #b, #list + 1, list))
  elseif operator == "*" and type(a) == "string" and math.type(b) == "integer" and b <= 1000 then
    spend(#a * math.max(b, 0) // 64)
    return a:rep(b)
  end
  fail("%s of a %s and a %s", operator, values.kind(a), values.kind(b))
end

return values
