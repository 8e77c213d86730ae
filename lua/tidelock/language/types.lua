--- The simple types of recipe fields: what is expected, and whether a value is that.
--
-- types[name] = { expected = words for the message, check = function(value) -> value or nil }.
-- Whole floats (3.0) are accepted for integers, because YAML and arithmetic make them.
local types = {}

types.count_max = (1 << 31) - 1 -- what an i32 index can reach

local function integer(value, least)
  local whole = math.type(value) and math.tointeger(value)
  if whole and whole >= least then return whole end
  return nil
end

--- `value` as the operators will have it: rounded once to f32.
local function rounded(value) return (string.unpack("<f", string.pack("<f", value))) end

--- A number that is one in f32, too.
local function finite(value)
  if type(value) ~= "number" or value ~= value or math.abs(rounded(value)) == math.huge then
    return nil
  end
  return value
end

local function of_type(name)
  return function(value)
    if type(value) == name then return value end
    return nil
  end
end

types.any = { expected = "a value", check = function(value) return value end }
types.boolean = { expected = "true or false", check = of_type "boolean" }
types.string = {
  expected = "a string",
  check = function(value) -- a zero byte would end a path there, in silence
    local good = type(value) == "string" and value ~= "" and not value:find("\0", 1, true)
    return good and value or nil
  end,
}
types.call = { expected = "a function", check = of_type "function" }
types.count = {
  expected = "a positive integer",
  most = types.count_max,
  check = function(value)
    local whole = integer(value, 1)
    return whole and whole <= types.count_max and whole or nil
  end,
}
types.whole = {
  expected = "an integer, 0 or more", check = function(value) return integer(value, 0) end,
}
types.number = { expected = "a number", check = finite }
types.positive = {
  expected = "a number above 0",
  check = function(value) return finite(value) and rounded(value) > 0 and value or nil end,
}
types.not_negative = {
  expected = "a number, 0 or more",
  check = function(value) return finite(value) and value >= 0 and value or nil end,
}
types.fraction = {
  expected = "a number from 0 up to, but not, 1",
  check = function(value)
    return finite(value) and value >= 0 and rounded(value) < 1 and value or nil
  end,
}
types.number_or_call = {
  expected = "a number or a function of the step",
  check = function(value) return type(value) == "function" and value or finite(value) end,
}

--- Functions that make a module, and their names ("nn.rms_norm"): noted by nn.lua. One that stands
--- in the place of a module was meant to be called.
types.makers = {}

--- A module has a kind and is made by nn.*; data has a kind and is made by tl.data.*.
local function kind_of(value)
  if type(value) ~= "table" then return nil end
  local kind = rawget(value, "kind")
  return type(kind) == "string" and kind or nil
end
types.module = {
  expected = "a module",
  check = function(value)
    if type(value) == "function" then return not types.makers[value] and value or nil end
    return kind_of(value) and value or nil
  end,
}
local data_kinds = { text = true, tokens = true, mix = true, given = true }
types.data = {
  expected = "data, made by tl.data.text, tl.data.tokens or tl.data.mix",
  check = function(value) return data_kinds[kind_of(value)] and value or nil end,
}

--- Whether nn.* or tl.data.* made `value`: then it is no table of fields.
function types.is_made(value) return kind_of(value) ~= nil end

types.stages = {
  expected = "a list of positive integers, as { 3, 3, 2 } or \"3 3 2\"",
  check = function(value)
    local list = {}
    if type(value) == "string" then
      for word in value:gmatch "[^%s,]+" do list[#list + 1] = tonumber(word) or 0 end
    elseif type(value) == "table" then
      for i = 1, #value do list[i] = value[i] end
    end
    for i = 1, #list do
      list[i] = integer(list[i], 1)
      if not list[i] then return nil end
    end
    return #list > 0 and list or nil
  end,
}

types.placement = {
  expected = "\"contiguous\", \"modulo\", or a list of ranks by expert, as { 0, 0, 1, 1 }",
  check = function(value)
    if value == "contiguous" or value == "modulo" then return value end
    if type(value) ~= "table" or #value == 0 then return nil end
    local list = {}
    for i = 1, #value do
      list[i] = integer(value[i], 0)
      if not list[i] then return nil end
    end
    return list
  end,
}

types.watch = {
  expected = "\"PATTERN:mean\", or rms, max, norm, hash in the place of mean",
  check = function(value)
    if type(value) ~= "string" then return nil end
    local statistic = value:match "^.+:(%a+)$"
    local known = { mean = true, rms = true, max = true, norm = true, hash = true }
    return statistic and known[statistic] and value or nil
  end,
}

--- What was expected in the place of `value`, which is not of the type `kind`.
function types.wanted(kind, value)
  if type(value) ~= "number" then return kind.expected end
  if kind.most then
    return value > kind.most and ("%s up to %d"):format(kind.expected, kind.most) or kind.expected
  end
  local as_f32 = rounded(value)
  local edge = as_f32 == 0 or as_f32 == 1 or math.abs(as_f32) == math.huge
  local moved = edge and kind.check(as_f32) == nil and as_f32 ~= value and value == value
  return moved and ("%s in f32, where it is %.7g"):format(kind.expected, as_f32) or kind.expected
end

--- The first entry of a list that is nil while one behind it is not, and that one; or nil.
function types.hole(list)
  local last = 0
  for key in pairs(list) do last = math.max(last, math.type(key) == "integer" and key or 0) end
  for i = 1, last do
    if rawget(list, i) == nil then return i, last end
  end
end

--- A value as messages show it.
function types.show(value)
  local kind = type(value)
  if kind == "string" then return (
    #value > 40 and ("%q..."):format(value:sub(1, 37)) or ("%q"):format(value)
  ) end
  if kind == "number" then
    return math.type(value) == "integer" and tostring(value) or ("%.7g"):format(value)
  end
  if kind == "table" and kind_of(value) then return "a module or data (" .. value.kind .. ")" end
  if kind == "table" then return "a table" end
  if kind == "boolean" or kind == "nil" then return tostring(value) end
  if types.makers[value] then return types.makers[value] .. " without its { .. }" end
  return "a " .. kind
end

--- What code of a recipe raised, as a text without an address: it may be anything.
function types.raised(value)
  local text = type(value) == "table" and rawget(value, "message") or value
  if type(text) == "string" then return text end
  return "raised an error that is no text: " .. types.show(value)
end

return types
