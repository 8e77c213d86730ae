--- differentiate.lua - the backward pass of the sharded graph, in reverse order of its nodes.
---
---     phase "input"    gradients of activations: dx = dy w, rounded once to the activation's dtype
---     phase "weight"   uses: one (node, weight) pair each, summed over tokens, samples and ranks
---
--- A tensor used several times adds its gradients in the order of its forward uses. A use of a
--- weight keeps its own accumulator through all trees; the finished sums are added once, in order.
--- Differentiating after sharding gives every collective its dual: gather <-> reduce.
local differentiate = {}

local Diff = {}
Diff.__index = Diff

function Diff:value(x, extra)
  local value = {
    id = #self.values + 1, region = x.region, rows = x.rows, cols = x.cols, dtype = x.grad_dtype
      or x.dtype,
    name = x.name and x.name .. ".grad", gradient_of = x.id,
  }
  for key, item in pairs(extra or {}) do value[key] = item end
  self.values[value.id] = value
  return value
end

function Diff:add(op, inputs, outputs, attrs, extra)
  local node = self.node
  local made = {
    id = #self.list + 1, op = op, inputs = inputs, outputs = outputs, attrs = attrs or {},
    phase = "input", site = node.site, layer = node.layer, path = node.path, forward = node.id,
  }
  for key, item in pairs(extra or {}) do made[key] = item end
  self.list[made.id] = made
  return table.unpack(outputs)
end

--- Notes that `g` is the gradient of `x` from the present node; inputs count from 1.
function Diff:contribute(x, g, input)
  if x.fixed then return end
  if x.region == "step" then
    self:use(x, { total = g, input = input })
    return
  end
  local dtype = x.grad_dtype or x.dtype
  if g.dtype ~= dtype and g.region ~= "partial" and x.region ~= "partial" then
    g = self:add("cast", { g }, { self:value(x) })
  end
  local list = self.grads[x.id] or {}
  self.grads[x.id] = list
  list[#list + 1] = { order = self.node.id * 64 + input, value = g, layer = self.node.layer }
end

--- A use of a step value: `op` sums over tokens into accumulators (runs, rows, cols).
function Diff:use(x, use)
  use.order, use.site = self.node.id * 64 + (use.input or 0), self.node.site
  use.layer = self.node.layer
  use.path, use.value = self.node.path, x
  self.uses[x.id] = self.uses[x.id] or {}
  table.insert(self.uses[x.id], use)
  if use.op then
    self.accumulated[#self.accumulated + 1] = use
    use.id = #self.accumulated
    self.list[#self.list + 1] = {
      id = #self.list + 1, use = use, op = use.op, inputs = use.inputs, outputs = {},
      attrs = use.attrs, phase = "weight", site = use.site, layer = use.layer, path = use.path,
      forward = self.node.id,
    }
  end
end

--- The finished gradient of an activation: contributions added in the order of forward uses.
function Diff:gradient(x)
  local list = self.grads[x.id]
  if not list then return nil end
  table.sort(list, function(a, b) return a.order < b.order end)
  local sum, layer = list[1].value, list[1].layer
  for _, item in ipairs(list) do
    if item.layer ~= layer then layer = nil end
  end
  -- where all users are of one layer, its pipeline stage adds: one tensor travels
  for i = 2, #list do
    sum = self:add("binary", { sum, list[i].value }, { self:value(x) }, { kind = 0, broadcast = 0 },
      { layer = layer or self.node.layer })
  end
  return sum
end

--- A sum over tokens of a row vector: gains, biases, rows that meet (tokens, d). `apart`: d is a
--- head's, and each of them is summed over tokens before they are added.
function Diff:vector(x, kind, inputs, input, apart)
  if x.fixed then return end
  if self.node.step then
    error(string.format("%s: a gradient over tokens of a value without tokens", self.node.site), 0)
  end
  local region = inputs[1].region
  self:use(x, {
    op = "sum_tokens", inputs = inputs, input = input, attrs = { kind = kind },
    runs = region == "trunk" and self.n or 1, region = region, vector = true,
    rows = apart and apart.here * apart.width or x.rows, cols = x.cols, apart = apart,
  })
end

local rule = { combine = require "tidelock.plan.experts_grad" }
for op, fn in pairs(require("tidelock.plan.heads").gradient) do rule[op] = fn end

function rule.linear(d, node, dys)
  local attrs, extra = node.attrs, node
  local parts, x = attrs.parts, node.inputs[1]
  for i = 1, parts do
    if not dys[i] then
      dys[i] = d:add("fill", {}, { d:value(node.outputs[i]) }, { value = 0 })
    end
  end
  local column = extra.column
  local inputs, ranges = {}, {}
  for i = 1, parts do inputs[i] = dys[i] end
  for i = 1, parts do
    local param = extra.params[i]
    inputs[parts + i] = param.value
    local count = column and param.full_rows // d.t or param.rows
    ranges[2 * i - 1] = column and d.by_tp(function(r)
      local first = getmetatable(param.row_first) and param.row_first[r + 1] or param.row_first
      return r * count - first
    end) or 0
    ranges[2 * i] = count
  end
  local partial = column and d.t > 1
  local dx = d:value(x, partial and { dtype = "f32", region = "partial" } or nil)
  local leaves = column and d.n // d.t or 1
  d:add("linear_grad_input", inputs, { dx }, { parts = parts, leaves = leaves, ranges = ranges })
  d:contribute(x, dx, 1)
  for i = 1, parts do
    local param = extra.params[i]
    local region = dys[i].region == "partial" and "heads" or x.region == "trunk" and dys[i].region
      or "heads"
    if not column and not extra.inner then region = x.region end
    d:use(param.value, {
      op = "linear_grad_weight", inputs = { dys[i], x }, input = 1 + i, attrs = {},
      rows = param.rows, cols = param.cols,
      runs = region == "trunk" and not column and not extra.inner and d.n or 1,
      region = region == "trunk" and not column and not extra.inner and "trunk" or "heads",
      matrix = true,
    })
    if extra.biases[i] then
      local bias = extra.biases[i]
      d:vector(bias, 0, { dys[i] }, 1 + parts + i)
    end
  end
end

function rule.gather(d, node, dys)
  local x = node.inputs[1]
  local dx = d:value(x)
  d:add("reduce", { dys[1] }, { dx })
  d:contribute(x, dx, 1)
end

--- Every tp rank has the whole gradient, and each takes its run: the sum of one rank's gradient and
--- zeros, which is exact.
function rule.spread(d, node, dys)
  local x, dy = node.inputs[1], dys[1]
  if not d.sp then
    d:contribute(x, d:value(x, { alias = dy, dtype = dy.dtype }), 1)
    return
  end
  local only = d:value(node.outputs[1], { region = "partial", dtype = "f32" })
  d:add("scale", { dy }, { only }, { factor = d.by_tp(function(r) return r == 0 and 1 or 0 end) })
  local dx = d:value(x)
  d:add("reduce", { only }, { dx })
  d:contribute(x, dx, 1)
end

function rule.reduce(d, node, dys)
  local x, y = node.inputs[1], node.outputs[1]
  local dx = d:value(y, { region = "heads", rows = x.rows, alias = not d.sp and dys[1] or nil })
  d:add("gather", { dys[1] }, { dx })
  d:contribute(x, dx, 1)
  if node.bias then d:vector(node.bias, 0, { dys[1] }, 2) end
end

function rule.embedding(d, node, dys)
  local param = node.params[1]
  d:use(param.value, {
    op = "embedding_grad", inputs = { node.ids, dys[1] }, input = 2,
    attrs = { first_id = node.attrs.first }, rows = param.rows, cols = param.cols, runs = 1,
    region = "heads", matrix = true,
  })
end

function rule.attention(d, node, dys)
  local q, k, v, cu = table.unpack(node.inputs)
  local o, lse = node.outputs[1], node.outputs[2]
  local attrs = node.attrs
  local shared = node.replicas > 1
  local dq = d:value(q)
  local root = shared and { dtype = "f32" } or nil
  local dk, dv = d:value(k, root), d:value(v, root)
  d:add("attention_grad", { q, k, v, o, lse, dys[1], cu }, { dq, dk, dv }, {
    window = attrs.window, kv_block = attrs.kv_block, split = attrs.split,
    head_leaves = node.head_leaves,
    scale = attrs.scale, dk_scale = shared and 1 or attrs.scale,
  }, { shape_of = node })
  if shared then
    for i, x in ipairs { dk, dv } do
      local sum = d:add("all_reduce", { x }, { d:value(x, { alias = x, dtype = "f32" }) }, {},
        { group_name = "kv" .. node.replicas })
      local final = d:value(i == 1 and k or v)
      d:add("scale", { sum }, { final }, { factor = i == 1 and attrs.scale or 1 })
      if i == 1 then dk = final else dv = final end
    end
  end
  d:contribute(q, dq, 1)
  d:contribute(k, dk, 2)
  d:contribute(v, dv, 3)
end

function rule.rope(d, node, dys)
  local attrs = {}
  for key, value in pairs(node.attrs) do attrs[key] = value end
  attrs.inverse = 1
  local dx = d:value(node.inputs[1])
  d:add("rope", { dys[1], node.inputs[2] }, { dx }, attrs, { head_dim = node.head_dim })
  d:contribute(node.inputs[1], dx, 1)
end

function rule.rms_norm(d, node, dys)
  local x, gain = node.inputs[1], node.inputs[2]
  local rstd = node.outputs[2]
  local dx = d:value(x)
  d:add("rms_norm_grad", { dys[1], x, gain, rstd }, { dx })
  d:contribute(x, dx, 1)
  d:vector(gain, 2, { dys[1], x, rstd }, 2, node.apart)
end

function rule.layer_norm(d, node, dys)
  local x, gain, bias = table.unpack(node.inputs)
  local mean, rstd = node.outputs[2], node.outputs[3]
  local dx = d:value(x)
  d:add("layer_norm_grad", { dys[1], x, gain, mean, rstd }, { dx })
  d:contribute(x, dx, 1)
  d:vector(gain, 3, { dys[1], x, rstd, mean }, 2, node.apart)
  d:vector(bias, 0, { dys[1] }, 3, node.apart)
end

function rule.swiglu(d, node, dys)
  local gate, up = node.inputs[1], node.inputs[2]
  local dgate, dup = d:value(gate), d:value(up)
  d:add("swiglu_grad", { dys[1], gate, up }, { dgate, dup })
  d:contribute(gate, dgate, 1)
  d:contribute(up, dup, 2)
end

--- The gradient of a step value that is a weight is f32: it is a finished sum.
local function like(d, x) return d:value(x, x.param and { dtype = "f32" } or nil) end

function rule.unary(d, node, dys)
  local x = node.inputs[1]
  local dx = like(d, x)
  d:add("unary_grad", { dys[1], x }, { dx }, { kind = node.attrs.kind })
  d:contribute(x, dx, 1)
end

local function times(d, dy, other, x, broadcast)
  return (d:add("binary", { dy, other }, { like(d, x) }, { kind = 2, broadcast = broadcast }))
end

function rule.binary(d, node, dys)
  local a, b = node.inputs[1], node.inputs[2]
  local kind, row = node.attrs.kind, node.attrs.broadcast == 1
  local dy = dys[1]
  if kind == 2 then
    if not a.fixed then d:contribute(a, times(d, dy, b, a, node.attrs.broadcast), 1) end
    if row then d:vector(b, 1, { dy, a }, 2)
    elseif not b.fixed then d:contribute(b, times(d, dy, a, b, 0), 2) end
    return
  end
  d:contribute(a, dy, 1)
  if row then
    d:vector(b, 0, { dy }, 2)
  elseif b.fixed then
    return
  elseif kind == 1 then
    local db = like(d, b)
    d:add("unary", { dy }, { db }, { kind = 8 })
    d:contribute(b, db, 2)
  else
    d:contribute(b, dy, 2)
  end
end

function rule.scale(d, node, dys)
  local dx = like(d, node.inputs[1])
  d:add("scale", { dys[1] }, { dx }, node.attrs)
  d:contribute(node.inputs[1], dx, 1)
end

function rule.cast(d, node, dys)
  local dx = like(d, node.inputs[1])
  d:add("cast", { dys[1] }, { dx })
  d:contribute(node.inputs[1], dx, 1)
end

function rule.dropout(d, node, dys)
  local dx = d:value(node.inputs[1])
  d:add("dropout", { dys[1] }, { dx }, node.attrs)
  d:contribute(node.inputs[1], dx, 1)
end

function rule.cross_entropy(d, node, dys)
  local m, s, _, _, targets = table.unpack(node.inputs)
  local z, a = node.z, node.attrs
  local dz = d:value(z)
  d:add("cross_entropy_grad", { z, m, s, targets, dys[1] }, { dz },
    { columns = node.columns, first = node.first, vocab = a.vocab, smoothing = a.smoothing,
      z = a.z })
  d:contribute(z, dz, 1)
end

function rule.logsumexp(d, node, dys)
  local m, s = node.inputs[1], node.inputs[2]
  local dz = d:value(node.z)
  d:add("logsumexp_grad", { node.z, m, s, dys[1] }, { dz }, { columns = node.columns })
  d:contribute(node.z, dz, 1)
end

--- The seed: 1 / N for each target token; and the sum of losses, a use like a weight's.
local function seed(d, l)
  d.node = { id = #l.nodes + 1, site = l.loss.global.site, layer = "head", path = "loss" }
  local dloss = d:add("loss_seed", { l.targets, d.count }, { d:value(l.loss, { dtype = "f32" }) })
  d:contribute(l.loss, dloss, 1)
  local masked = d:add("loss_mask", { l.loss, l.targets }, { d:value(l.loss, { dtype = "f32" }) },
    {}, { phase = "loss" })
  d.loss_use = {
    op = "sum_tokens", inputs = { masked }, attrs = { kind = 0 }, runs = 1, region = "loss",
    vector = true, rows = 1,
    cols = 1, site = d.node.site, layer = "head", path = "loss", order = 0, id = 0,
  }
end

function differentiate.run(plan)
  local l = plan["local"]
  local values = {}
  for i, value in ipairs(l.values) do values[i] = value end
  local d = setmetatable({ t = l.t, n = l.n, sp = l.sp, values = values, list = {}, grads = {},
    uses = {}, accumulated = {} }, Diff)
  local by_tp = require("tidelock.plan.stages.shard").by_tp
  d.by_tp = function(fn) return by_tp(l.t, fn) end
  d.count = { id = 0, region = "count", rows = 1, cols = 1, dtype = "i64", count = true }
  seed(d, l)
  local step_list = {}
  -- tokens first; what has no tokens is differentiated once a step, from finished sums
  for pass = 1, 2 do
    if pass == 2 then d.tokens_list, d.list = d.list, step_list end
    for i = #l.nodes, 1, -1 do
      local node = l.nodes[i]
      if (node.step or false) == (pass == 2) then
        d.node = node
        local dys, any = {}, false
        for j, output in ipairs(node.outputs) do
          if pass == 2 then
            if d.uses[output.id] then
              dys[j] = d:value(output, { total_of = output.id })
            end
          else
            dys[j] = d:gradient(output)
          end
          any = any or dys[j] ~= nil
        end
        if any and rule[node.op] then
          node.differentiated = true
          rule[node.op](d, node, dys)
        end
      end
    end
  end
  for _, list in pairs(d.uses) do table.sort(list, function(a, b) return a.order < b.order end) end
  return {
    backward = {
      nodes = d.tokens_list, step = step_list, uses = d.uses, accumulated = d.accumulated,
      values = values,
      loss_use = d.loss_use, count = d.count,
    },
  }
end

return differentiate
