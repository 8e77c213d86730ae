--- weights.lua - what every weight is: defaults, then the fields given where it is made, then the
--- rules of the recipe in written order; the last that names a field wins.
local names = require "tidelock.language.names"
local suggest = require "tidelock.text.suggest"
local types = require "tidelock.language.types"
local where = require "tidelock.language.where"

---@class tidelock.WeightFields
---@field init table # { kind = "constant" | "normal" | "uniform" | "function", first, second }
---@field decay number
---@field lr_scale number
---@field frozen boolean
---@field from? string
---@field dtype string
---@field optimizer table
---@field by table<string, string> # field -> where its value comes from
---@field stored? { file: table, name: string } # tensor of the model's files that it starts from

local weights = {}

local fields = { "init", "decay", "lr_scale", "frozen", "from", "dtype", "optimizer" }
local is_field = {}
for _, name in ipairs(fields) do is_field[name] = true end
weights.fields = fields

local default_init = {
  matrix = { kind = "normal", first = 0, second = 0.02 },
  expert = { kind = "normal", first = 0, second = 0.02 },
  gain = { kind = "constant", first = 1, second = 0 },
  bias = { kind = "constant", first = 0, second = 0 },
  vector = { kind = "constant", first = 0, second = 0 },
  state = { kind = "constant", first = 0, second = 0 },
}

--- init = 0.01 | "zeros" | "ones" | { "normal", std } | { "uniform", a } | { "constant", c } |
--- function
local function parse_init(value, site, path, problems)
  if type(value) == "number" then return { kind = "normal", first = 0, second = value } end
  if type(value) == "function" then
    return { kind = "function", fn = value, first = 0, second = 0 }
  end
  local given = type(value) == "table" and value or { value }
  local name = given[1] or given.name
  local function number(key, otherwise)
    local x = given[key] or given[2] or otherwise
    return type(x) == "number" and x or nil
  end
  if name == "zeros" then return { kind = "constant", first = 0, second = 0 } end
  if name == "ones" then return { kind = "constant", first = 1, second = 0 } end
  local std, range, constant = number("std", 0.02), number "range", number "value"
  if name == "normal" and std then
    return { kind = "normal", first = given.mean or 0, second = std }
  elseif name == "uniform" and range then
    return { kind = "uniform", first = -range, second = range }
  elseif name == "constant" and constant then
    return { kind = "constant", first = constant, second = 0 }
  end
  problems:add(site, path,
    'expected a number (standard deviation), "zeros", "ones", { "normal", 0.02 },'
    .. ' { "uniform", 0.1 }, { "constant", 1 } or a function of the index; got '
      .. types.show(value))
  return default_init.vector
end

local checks = {
  decay = function(v) return type(v) == "number" and v >= 0, "a number >= 0" end,
  lr_scale = function(v) return type(v) == "number" and v >= 0, "a number >= 0" end,
  frozen = function(v) return type(v) == "boolean", "true or false" end,
  from = function(v) return type(v) == "string", "a folder of a run" end,
  dtype = function(v) return v == "f32" or v == "bf16", '"f32" or "bf16"' end,
}

local function set(resolved, field, value, site, path, from, problems)
  if field == "init" then
    value = parse_init(value, site, path .. ".init", problems)
  elseif field == "optimizer" then
    problems:add(site, path .. ".optimizer", "all weights share train.optimizer in this version; "
      .. "decay and lr_scale are set for each weight")
    return
  else
    local ok, wanted = checks[field](value)
    if not ok then
      problems:add(site, path .. "." .. field, "expected " .. wanted .. ", got "
        .. types.show(value))
      return
    end
  end
  resolved[field], resolved.by[field] = value, from
end

local function defaults(weight, spec)
  local state = weight.kind == "state"
  local decays = weight.kind == "matrix" or weight.kind == "expert"
  return {
    init = default_init[weight.kind], decay = decays and spec.train.optimizer.decay or 0,
    lr_scale = 1, frozen = state, dtype = state and "f32" or spec.dtype,
    optimizer = spec.train.optimizer,
    by = { init = "default", decay = "default", lr_scale = "default", frozen = "default",
      dtype = "default", optimizer = "default" },
  }
end

--- What a rule may say of a state: it has no gradient and no optimizer, and is f32.
local of_states = { init = true, from = true }

--- Whether `rule` says something of this weight; fields that states do not have pass them by.
local function concerns(rule, weight)
  if weight.kind ~= "state" then return true end
  for _, key in ipairs(fields) do
    if rule[key] ~= nil and of_states[key] then return true end
  end
  return false
end

--- Rule i of the recipe: patterns, then fields.
local function apply_rule(resolved, list, i, spec, problems, by_name)
  local rule, path = spec.weights[i], "weights[" .. i .. "]"
  local site = spec.site(path)
  for _, pattern in ipairs(rule) do
    local found = names.select(pattern, list)
    if #found == 0 then
      problems:add(site, path, string.format("the pattern %q matches no weight; nearest: %s",
        pattern,
        suggest.patterns(pattern, list, 3)))
    end
    local any = #found == 0
    for _, name in ipairs(found) do
      local state = by_name[name].kind == "state"
      any = any or concerns(rule, by_name[name])
      for _, key in ipairs(fields) do
        if rule[key] ~= nil and (not state or of_states[key]) then
          set(resolved[name], key, rule[key], site, path, "rule " .. i, problems)
        end
      end
    end
    if not any then
      problems:add(site, path, string.format("%q matches states alone; of a state init and from "
        .. "are set, nothing else", pattern))
    end
  end
end

--- Weights of a model that was read from files start from these, unless a rule says otherwise.
local function take_stored(resolved, spec)
  local hf = spec.model.hf
  if not hf then return end
  for name, own in pairs(resolved) do
    local tensor = hf.stored(name)
    if tensor and not own.from and not own.by.init:find "^rule" then
      own.stored, own.init, own.by.init = tensor, default_init.bias, "file"
    end
  end
end

--- Resolves all weights of the graph.
---@param graph tidelock.Graph
---@param spec table
---@param problems table # where mistakes are collected
---@return table<string, tidelock.WeightFields>
function weights.resolve(graph, spec, problems)
  local resolved, list, by_name = {}, {}, {}
  for i, weight in ipairs(graph.weights) do
    list[i], by_name[weight.name] = weight.name, weight
    local own = defaults(weight, spec)
    resolved[weight.name] = own
    for key, value in pairs(weight.given) do
      if weight.kind == "state" and not of_states[key] then
        problems:add(weight.site, weight.name .. "." .. tostring(key),
          "no such field of a state; there are init, from")
      elseif is_field[key] then
        set(own, key, value, weight.site, weight.name, "given", problems)
      else
        problems:add(weight.site, weight.name .. "." .. tostring(key),
          "no such field of a weight; there are "
          .. table.concat(fields, ", "))
      end
    end
  end
  for i in ipairs(spec.weights or {}) do apply_rule(resolved, list, i, spec, problems,
    by_name) end
  take_stored(resolved, spec)
  return resolved
end

weights.function_elements_max = 1 << 24

--- What an init function gives for each element of a weight, under the limits of a recipe.
---@return number[]
function weights.tabulate(weight, init)
  local count, numbers = weight.rows * weight.cols, {}
  local function refuse(text, ...)
    error(("%s: %s.init: "):format(weight.site, weight.name) .. text:format(...), 0)
  end
  if count > weights.function_elements_max then
    refuse("a function is called for each of %d elements; at most %d", count,
      weights.function_elements_max)
  end
  local context = {}
  local good, message = where.run(context, function()
    for i = 0, count - 1 do
      context.lines = 0 -- the limit is for one element
      local value = init.fn(i)
      if type(value) ~= "number" then refuse("init(%d) gave %s; a number is wanted", i,
        type(value)) end
      numbers[i + 1] = value
    end
  end)
  if not good and type(message) ~= "string" then refuse("%s", types.raised(message)) end
  if not good then error(message, 0) end
  return numbers
end

return weights
