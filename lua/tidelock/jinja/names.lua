--- jinja/names.lua - the filters, tests, functions and methods that chat templates use.
local core = require "tidelock.core"
local values = require "tidelock.jinja.values"

local names = { filters = {}, tests = {}, tests_with = {}, functions = {}, methods = {} }

local fail, kind_of, none, undefined = values.fail, values.kind, values.none, values.undefined

--- A function as a value: it is defined, and that is all that is asked of it.
names.callable = setmetatable({}, { __name = "function" })

local function need_text(value, what)
  if type(value) ~= "string" then fail("%s of a %s", what, kind_of(value)) end
  return value
end

local function need_none(arguments, named, what)
  if #arguments > 0 or next(named) then fail("%s with arguments is not rendered here", what) end
end

-- texts ------------------------------------------------------------------------------------------

local blanks = {}
for _, range in ipairs { { 9, 13 }, { 28, 32 }, { 0x85, 0x85 }, { 0xA0, 0xA0 }, { 0x1680, 0x1680 },
  { 0x2000, 0x200A }, { 0x2028, 0x2029 }, { 0x202F, 0x202F }, { 0x205F, 0x205F },
  { 0x3000, 0x3000 } } do
  for code = range[1], range[2] do blanks[utf8.char(code)] = true end
end

--- Without the characters of `set` (white space unless given) at its ends.
local function strip(text, set, left, right)
  local drop = blanks
  if set and set ~= none then
    drop = {}
    for _, letter in ipairs(values.items(need_text(set, "strip"))) do drop[letter] = true end
  end
  local letters = values.items(text)
  local first, last = 1, #letters
  while left and first <= last and drop[letters[first]] do first = first + 1 end
  while right and last >= first and drop[letters[last]] do last = last - 1 end
  return table.concat(letters, "", first, last)
end

local function need_ascii(text, what)
  if text:find "[\128-\255]" then fail("%s of a text that is not ASCII", what) end
  return text
end

local function titled(text)
  return (need_ascii(text, "title"):lower():gsub("%a+", function(word)
    return word:sub(1, 1):upper() .. word:sub(2)
  end))
end

local function capitalized(text)
  text = need_ascii(text, "capitalize"):lower()
  return text:sub(1, 1):upper() .. text:sub(2)
end

--- text.split(mark, most): by white space where there is no mark.
local function split(text, mark, most)
  local list, at = values.list {}, 1
  if not mark or mark == none then
    if most then fail "split by white space so many times is not rendered here" end
    local word = {}
    for _, letter in ipairs(values.items(text)) do
      if not blanks[letter] then
        word[#word + 1] = letter
      elseif #word > 0 then
        list[#list + 1], word = table.concat(word), {}
      end
    end
    if #word > 0 then list[#list + 1] = table.concat(word) end
    return list
  end
  if need_text(mark, "split") == "" then fail "split by an empty text" end
  while not most or most < 0 or #list < most do
    local first, last = text:find(mark, at, true)
    if not first then break end
    list[#list + 1], at = text:sub(at, first - 1), last + 1
  end
  list[#list + 1] = text:sub(at)
  return list
end

local function replace(text, old, new, most)
  need_text(old, "replace")
  need_text(new, "replace")
  if old == "" then fail "replace of an empty text" end
  local parts, at, count = {}, 1, 0
  while not most or most < 0 or count < most do
    local first, last = text:find(old, at, true)
    if not first then break end
    values.spend(1 + #new // 64)
    parts[#parts + 1], count = text:sub(at, first - 1) .. new, count + 1
    at = last + 1
  end
  return table.concat(parts) .. text:sub(at)
end

--- Whether the text begins (or ends) with `part`, or with one of a list.
local function has_end(text, part, at_end)
  if type(part) ~= "string" then fail("startswith of a %s", kind_of(part)) end
  if at_end then return part == "" or text:sub(-#part) == part end
  return text:sub(1, #part) == part
end

local texts = {
  strip = function(text, set) return strip(text, set, true, true) end,
  lstrip = function(text, set) return strip(text, set, true, false) end,
  rstrip = function(text, set) return strip(text, set, false, true) end,
  split = split,
  replace = replace,
  startswith = function(text, part) return has_end(text, part, false) end,
  endswith = function(text, part) return has_end(text, part, true) end,
  upper = function(text) return need_ascii(text, "upper"):upper() end,
  lower = function(text) return need_ascii(text, "lower"):lower() end,
  title = titled,
  capitalize = capitalized,
  find = function(text, part)
    local at = text:find(need_text(part, "find"), 1, true)
    return at and utf8.len(text:sub(1, at - 1)) or -1
  end,
  count = function(text, part)
    if need_text(part, "count") == "" then fail "count of an empty text" end
    local count, at = 0, 1
    while true do
      local first, last = text:find(part, at, true)
      if not first then return count end
      count, at = count + 1, last + 1
    end
  end,
  join = function(text, list) return names.filters.join(list, { text }, {}) end,
}

local function pairs_of(map)
  values.need_order(map)
  local list = values.list {}
  for i, key in ipairs(map.keys) do list[i] = values.list { key, map.of[key] } end
  return list
end

local maps = {
  get = function(map, key, other)
    local value = map.of[key]
    if value ~= nil then return value end
    return other == nil and none or other
  end,
  items = pairs_of,
  keys = function(map)
    values.need_order(map)
    return values.list(table.move(map.keys, 1, #map.keys, 1, {}))
  end,
  values = function(map)
    values.need_order(map)
    local list = values.list {}
    for i, key in ipairs(map.keys) do list[i] = map.of[key] end
    return list
  end,
}

for _, methods in ipairs { texts, maps } do
  for name in pairs(methods) do names.methods[name] = true end
end

--- value.name(arguments).
function names.method(value, name, arguments, named)
  local kind = kind_of(value)
  local method = kind == "string" and texts[name] or kind == "map" and maps[name]
  if not method then fail("%s() of a %s", name, kind) end
  if next(named) then fail("%s() with named arguments is not rendered here", name) end
  if kind == "map" and value.of[name] ~= nil then fail("%s of an object is no method", name) end
  return method(value, table.unpack(arguments))
end

-- filters ----------------------------------------------------------------------------------------

local function text_filter(name, method)
  names.filters[name] = function(value, arguments, named)
    if next(named) then fail("%s with named arguments is not rendered here", name) end
    return method(values.text(value), table.unpack(arguments))
  end
end
text_filter("trim", texts.strip)
text_filter("upper", texts.upper)
text_filter("lower", texts.lower)
text_filter("capitalize", texts.capitalize)
text_filter("replace", texts.replace)

local function plain_filter(name, work)
  names.filters[name] = function(value, arguments, named)
    need_none(arguments, named, name)
    return work(value)
  end
end
plain_filter("string", values.text)
plain_filter("safe", function(value) return value end)

local function length(value)
  if type(value) == "string" then return utf8.len(value) end
  if values.is_list(value) then return #value end
  if values.is_map(value) then return #value.keys end
  if value == undefined then return 0 end
  fail("length of a %s", kind_of(value))
end
plain_filter("length", length)
plain_filter("count", length)
plain_filter("list", function(value)
  local items = values.items(value)
  return values.list(table.move(items, 1, #items, 1, {}))
end)
plain_filter("first", function(value)
  local item = values.items(value)[1]
  return item == nil and undefined or item
end)
plain_filter("last", function(value)
  local items = values.items(value)
  return #items == 0 and undefined or items[#items]
end)
plain_filter("items", function(value)
  if value == undefined then return values.list {} end
  if not values.is_map(value) then fail("items of a %s", kind_of(value)) end
  return pairs_of(value)
end)
plain_filter("int", function(value)
  if type(value) == "boolean" then return value and 1 or 0 end
  if math.type(value) == "integer" then return value end
  if type(value) == "string" and value:find "^%s*[-+]?%d+%s*$" then
    return math.tointeger(tonumber((value:gsub("%+", "")))) or fail "int of a number this long"
  end
  fail("int of a %s is not rendered here", kind_of(value))
end)

function names.filters.default(value, arguments)
  local other = arguments[1]
  if other == nil then other = "" end
  if value == undefined or arguments[2] == true and not values.truth(value) then return other end
  return value
end
names.filters.d = names.filters.default

function names.filters.join(value, arguments, named)
  if next(named) then fail "join with named arguments is not rendered here" end
  local parts = {}
  for i, item in ipairs(values.items(value)) do
    parts[i] = values.text(item)
    values.spend(#parts[i] // 64)
  end
  return table.concat(parts, values.text(arguments[1] == nil and "" or arguments[1]))
end

local short = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
  ["\b"] = "\\b", ["\f"] = "\\f" }

--- As json.dumps(value, ensure_ascii=False) writes it.
local function json_text(value)
  values.spend(type(value) == "string" and 1 + #value // 64 or 1)
  local kind = kind_of(value)
  if kind == "string" then
    return '"' .. value:gsub('[%c\\"]', function(byte)
      if byte == "\127" then return byte end
      return short[byte] or ("\\u%04x"):format(byte:byte())
    end) .. '"'
  elseif kind == "boolean" or kind == "integer" then
    return tostring(value)
  elseif kind == "none" then
    return "null"
  elseif kind == "list" then
    local parts = {}
    for i, item in ipairs(value) do parts[i] = json_text(item) end
    return "[" .. table.concat(parts, ", ") .. "]"
  elseif kind == "map" then
    values.need_order(value)
    local parts = {}
    for i, key in ipairs(value.keys) do
      parts[i] = json_text(tostring(key)) .. ": " .. json_text(value.of[key])
    end
    return "{" .. table.concat(parts, ", ") .. "}"
  end
  fail("tojson of a %s is not rendered here", kind)
end
plain_filter("tojson", json_text)

-- tests ------------------------------------------------------------------------------------------

local function of_kind(...)
  local kinds = {}
  for _, kind in ipairs { ... } do kinds[kind] = true end
  return function(value) return kinds[kind_of(value)] or false end
end

names.tests = {
  defined = function(value) return value ~= undefined end,
  undefined = function(value) return value == undefined end,
  none = function(value) return value == none end,
  string = of_kind "string",
  mapping = of_kind "map",
  number = of_kind("integer", "float", "boolean"),
  integer = of_kind "integer",
  float = of_kind "float",
  boolean = of_kind "boolean",
  ["true"] = function(value) return value == true end,
  ["false"] = function(value) return value == false end,
  sequence = of_kind("string", "list", "map", "undefined"),
  iterable = of_kind("string", "list", "map", "undefined"),
  equalto = values.equal, eq = values.equal,
  odd = function(value) return values.operate("%", value, 2) == 1 end,
  even = function(value) return values.operate("%", value, 2) == 0 end,
  divisibleby = function(value, by) return values.operate("%", value, by) == 0 end,
}
names.tests_with = { equalto = true, eq = true, divisibleby = true }

-- functions --------------------------------------------------------------------------------------

--- The template says that these messages are not for it.
function names.functions.raise_exception(arguments)
  error({ template = values.text(arguments[1]), refused = true }, 0)
end

function names.functions.namespace(arguments, named)
  need_none(arguments, {}, "namespace")
  return values.namespace(named)
end

function names.functions.range(arguments, named)
  local first, last, step = 0, arguments[1], arguments[3] or 1
  if arguments[2] then first, last = arguments[1], arguments[2] end
  for _, number in ipairs { first, last or "", step } do
    if math.type(number) ~= "integer" then fail "range of what is no whole number" end
  end
  if next(named) or step == 0 or (last + 0.0 - first) / step > 100000 then -- no integer overflows
    fail "range of this kind"
  end
  local list = values.list {}
  if step > 0 and first >= last or step < 0 and first <= last then return list end
  for i = first, step > 0 and last - 1 or last + 1, step do list[#list + 1] = i end
  return list
end

--- The local time, as transformers gives it to templates that ask for the date.
function names.functions.strftime_now(arguments)
  local format = need_text(arguments[1], "strftime_now")
  local good, text = pcall(os.date, format)
  if not good then fail("strftime_now of %s", core.json.encode(format)) end
  return text
end

return names
