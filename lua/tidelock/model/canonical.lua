--- canonical.lua - the model as text: everything of the graph and the weights that can change a
--- bit, and nothing else. The key of a run hashes it. Numbers are rounded to f32 and written as hex
--- floats; functions stand as what they produce.
local core = require "tidelock.core"
local earlier = require "tidelock.model.earlier"
local weights = require "tidelock.model.weights"

local canonical = {}

local function number(x)
  if math.type(x) == "integer" then return tostring(x) end
  return string.format("%a", core.f32(x))
end

local function item(x)
  if type(x) == "number" then return number(x) end
  if type(x) ~= "table" then return tostring(x) end
  local keys, parts = {}, {}
  for key in pairs(x) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for i, key in ipairs(keys) do parts[i] = tostring(key) .. "=" .. item(x[key]) end
  return "{" .. table.concat(parts, " ") .. "}"
end

local function dims(list)
  local parts = {}
  for i, dim in ipairs(list) do
    parts[i] = string.format("%s:%s:%s", dim.name, dim.size or "n", dim.axis or "-")
  end
  return table.concat(parts, ",")
end

local function reference(value)
  if value.weight then return "w:" .. value.weight.name end
  if value.input then return "i:" .. value.input end
  for i, output in ipairs(value.node.outputs) do
    if output == value then return value.node.id .. "." .. i end
  end
end

local function node_text(node)
  local inputs, outputs, attrs = {}, {}, {}
  for i, value in ipairs(node.inputs) do inputs[i] = reference(value) end
  for i, value in ipairs(node.outputs) do outputs[i] = dims(value.dims) .. "/" .. value.dtype end
  for key, value in pairs(node.attrs) do
    if key == "inner" then value = dims(value) end
    attrs[#attrs + 1] = key .. "=" .. item(value)
  end
  table.sort(attrs)
  return string.format("%d %s (%s) -> (%s) %s", node.id, node.op, table.concat(inputs, " "),
    table.concat(outputs, " "),
    table.concat(attrs, " "))
end

local function init_text(weight, init)
  if init.kind ~= "function" then return init.kind .. " " .. number(init.first) .. " "
    .. number(init.second) end
  local values = {}
  for i, x in ipairs(weights.tabulate(weight, init)) do values[i] = number(x) end
  return "function " .. core.hash(table.concat(values, " "))
end

--- Weights that start from a file: the bytes count, not the path.
local function from_text(fields)
  local from, tensor = fields.from, fields.stored
  if tensor then
    return "tensor " .. tensor.file:look(tensor.name) .. " " .. tensor.file:hash(tensor.name)
  elseif not from then
    return "-"
  end
  return earlier.hash(from) or "absent " .. from
end

local function weight_text(weight, fields)
  return string.format("weight %s (%s) out %d %s init %s decay %s lr %s frozen %s from %s",
    weight.name, dims(weight.dims), weight.out, fields.dtype, init_text(weight, fields.init),
    number(fields.decay), number(fields.lr_scale), tostring(fields.frozen), from_text(fields))
end

--- The text. Lines of nodes in their order, then lines of weights in theirs.
---@param graph tidelock.Graph
---@param fields table<string, tidelock.WeightFields>
---@return string
function canonical.model(graph, fields)
  local lines = {}
  for _, node in ipairs(graph.nodes) do lines[#lines + 1] = node_text(node) end
  for _, weight in ipairs(graph.weights) do lines[#lines + 1] = weight_text(weight,
    fields[weight.name]) end
  return table.concat(lines, "\n")
end

return canonical
