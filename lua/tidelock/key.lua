--- The key: one hash of everything that can change bits, and of nothing else.
--
--   in the key                                       not in the key
--   operators, dims, attributes (from the graph)     names of files and variables, comments
--   weights: name, initial values, dtype, decay ..   micro-batch, tp, pp, dp, schedule, threads
--   learning rate, clip, optimizer                   train.steps as an end, saving, log, eval
--   data: content and order; samples, length         where the data lies
--   seed, leaves, arithmetic, attention kv, split    device, other blocks (tile sizes)
--   the version of the contracts
--
-- Two runs with one key must print the same losses. Numbers are rounded to f32 first, functions
-- enter by what they gave: the learning rate by its values, weights by the hash of the tensor.

local core = require "tidelock.core"

local key = {}

--- Raised whenever a contract in kernels/ changes bits.
key.contracts = 1

local function sorted_keys(value)
  local keys = {}
  for name in pairs(value) do keys[#keys + 1] = name end
  table.sort(keys, function(a, b)
    if type(a) == type(b) then return a < b end
    return type(a) == "number"
  end)
  return keys
end

--- A plain value as text that does not depend on how it was written: 3 and 3.0, order of fields.
local function canonical(value)
  if type(value) == "number" then
    return math.type(value) == "integer" and ("%d"):format(value)
      or ("%.9g"):format(core.f32(value))
  elseif type(value) ~= "table" then
    assert(type(value) ~= "function", "a function has no canonical text")
    return ("%q"):format(tostring(value))
  end
  local parts = {}
  for _, name in ipairs(sorted_keys(value)) do
    parts[#parts + 1] = canonical(name) .. "=" .. canonical(value[name])
  end
  return "{" .. table.concat(parts, ",") .. "}"
end
key.canonical = canonical

local function dims_of(value)
  local dims = {}
  for i, dim in ipairs(value.dims) do
    dims[i] = { size = dim.size or "tokens", axis = dim.axis or "", padded = dim.padded or 0 }
  end
  return dims
end

--- The graph by numbers of values: what is computed, not how it is called.
local function graph_text(graph)
  local parts = {}
  for _, node in ipairs(graph.nodes) do
    local made = { op = node.op, attrs = node.attrs or {}, inputs = {}, outputs = {} }
    for i = 1, #node.inputs do made.inputs[i] = node.inputs[i] and node.inputs[i].id or 0 end
    for i, y in ipairs(node.outputs) do
      made.outputs[i] = { id = y.id, dims = dims_of(y), dtype = y.dtype }
    end
    parts[#parts + 1] = canonical(made)
  end
  return table.concat(parts, "\n")
end

--- One weight: its fields, and the hash of its values where these do not follow from the fields.
local function weight_text(run, weight)
  local own = run.plan.fields[weight.name]
  local init = { kind = own.init.kind, first = own.init.first, second = own.init.second }
  if own.from or init.kind == "function" then
    init = { kind = "values", hash = run:weight(weight.name):hash(weight.name) }
  end
  return canonical {
    name = weight.name, id = weight.value.id, dims = dims_of(weight.value), init = init,
    decay = own.decay, lr_scale = own.lr_scale, frozen = own.frozen, dtype = own.dtype,
    optimizer = own.optimizer,
  }
end

--- The key of a run that has not made a step yet: sixteen hexadecimal digits.
---@param run table # of the driver: plan, sources, weight(name)
function key.of(run)
  local spec, graph = run.plan.spec, run.plan.graph
  local attention = spec.blocks.attention
  local parts = {
    canonical {
      contracts = key.contracts, samples = spec.batch.samples, length = spec.batch.length,
      seed = spec.policy.seed, leaves = spec.policy.leaves, arithmetic = spec.policy.arithmetic,
      promises = spec.policy.name ~= "fast", kv = attention.kv or 0, split = attention.split or 0,
      lr = spec.train.lr, clip = spec.train.clip or 0, optimizer = spec.train.optimizer,
      data = run.sources[1]:fingerprint(),
    },
    graph_text(graph),
  }
  for _, weight in ipairs(graph.weights) do parts[#parts + 1] = weight_text(run, weight) end
  return core.hash(table.concat(parts, "\n"))
end

--- The hash of a whole recipe as it was resolved, layout and logging included.
---@param resolved string # the text of explain --stage check
---@param loaded { path: string, text: string }[]
function key.of_recipe(resolved, loaded)
  local parts = { resolved }
  for _, file in ipairs(loaded) do parts[#parts + 1] = file.text end
  return core.hash(table.concat(parts, "\n"))
end

return key
