--- layer_costs.lua - what each layer of a model costs per token, before any layout: numbers from
--- which `./tl plan --search` estimates thousands of layouts in a second.
---
---     graph (expand)  ->  layer 1, 2, .., embed, head:
---
---       flop        of products with a dim that is cut over tp | of those that every rank repeats
---       attention   FLOP of scores and values, cut over tp
---       bytes       read and written by all else, forward and backward, cut | repeated
---       kept        bytes of activations until the backward pass, cut | repeated
---       weights     elements, cut over tp | held by every tp rank | of experts, cut over ep
---       gathers     columns that sequence parallelism gathers; reduces: sums it cuts into runs
---
--- Forward counts one, backward two products; a sample is one causal segment.
local costs = {}

local sizes = { f32 = 4, bf16 = 2, i32 = 4 }

--- Elements of a value per token, or in all where it has no tokens; whether tp cuts it; whether it
--- has tokens.
local function measure(dims)
  local count, cut, tokens = 1, false, false
  for _, dim in ipairs(dims) do
    if dim.name == "tokens" then tokens = true else count = count * (dim.padded or dim.size) end
    cut = cut or dim.axis == "tp"
  end
  return count, cut, tokens
end

local function new_layer()
  return { flop_cut = 0, flop_all = 0, attention = 0, bytes_cut = 0, bytes_all = 0, kept_cut = 0,
    kept_all = 0, weights_cut = 0, weights_all = 0, weights_expert = 0, gathers = 0, reduces = 0,
    calls = 0, mixtures = {} }
end

local function add(layer, name, cut, amount)
  local field = name .. (cut and "_cut" or "_all")
  layer[field] = layer[field] + amount
end

--- Weights that no node before has used.
local function add_weights(layer, node, seen)
  for _, x in ipairs(node.inputs) do
    if x.weight and not seen[x.weight] then
      seen[x.weight] = true
      local count, cut = measure(x.dims)
      if x.weight.kind == "expert" then
        layer.weights_expert = layer.weights_expert + count
      else
        add(layer, "weights", cut, count)
      end
    end
  end
end

--- Products of tokens with weights: FLOP, and what sequence parallelism sends for them.
local function add_linear(layer, node)
  local width, cut_in = measure(node.inputs[1].dims)
  local cut_out = false
  for part = 1, node.attrs.parts do
    local count, cut = measure(node.inputs[1 + part].dims)
    add(layer, "flop", cut, 6 * count)
    cut_out = cut_out or select(2, measure(node.outputs[part].dims))
  end
  if cut_out and not cut_in then layer.gathers = layer.gathers + width end
  if cut_in and not cut_out then
    layer.reduces = layer.reduces + measure(node.outputs[1].dims)
  end
end

local function add_attention(layer, node, length)
  local q, v = node.inputs[1].dims, node.inputs[3].dims
  local window, seen = node.attrs.window, length / 2
  if window and window > 0 and window < length then seen = window - window * window / 2 / length end
  layer.attention = layer.attention + 6 * q[2].size * (q[3].size + v[3].size) * seen
end

local function add_mixture(layer, node)
  local a = node.attrs
  local dim = node.outputs[1].dims[2].size
  table.insert(layer.mixtures, { experts = a.experts, top_k = a.top_k, hidden = a.hidden, dim = dim,
    flop = 6 * a.top_k * 3 * a.hidden * dim })
end

--- Traffic of an operator that is no product: its operands forward, and backward those and its
--- results' gradients.
local function add_bytes(layer, node, in_products)
  for _, list in ipairs { node.inputs, node.outputs } do
    for _, v in ipairs(list) do
      local count, cut, tokens = measure(v.dims)
      if tokens and not in_products then
        add(layer, "bytes", cut, 2.5 * count * sizes[v.dtype])
      end
    end
  end
  for _, v in ipairs(node.outputs) do
    local count, cut, tokens = measure(v.dims)
    if tokens then add(layer, "kept", cut, count * sizes[v.dtype]) end
  end
end

--- Costs by layer: { [1], .., embed, head, dtype }.
---@param plan table # after the stage expand
function costs.of(plan)
  local spec, layers = plan.spec, { embed = new_layer(), head = new_layer() }
  for i = 1, spec.model.layers do layers[i] = new_layer() end
  local seen = {}
  for _, node in ipairs(plan.graph.nodes) do
    local layer = layers[node.layer] or layers.head
    if not node.step then
      layer.calls = layer.calls + 1
      add_weights(layer, node, seen)
      if node.op == "linear" then add_linear(layer, node) end
      if node.op == "attention" then add_attention(layer, node, spec.batch.length) end
      if node.op == "moe" then add_mixture(layer, node) end
      add_bytes(layer, node, node.op == "linear" or node.op == "attention" or node.op == "moe")
    end
  end
  layers.width = sizes[spec.dtype]
  layers.dim = spec.model.dim
  return layers
end

return costs
