--- experts_grad.lua - the backward pass of a mixture of experts, wave by wave.
---
---     dy --take_rows--> exchange --> dout = w * dy, dw = <dy, out>     at the owner
---                        dact -> dgate, dup -> dx --> exchange --> combine     at home
---
--- Where a wave's rows were not kept they are sent and computed again first: the same nodes, so the
--- same bits. Weight gradients are uses like any other, one for each stack of weights.
local shard = require "tidelock.plan.experts_shard"

--- A weight gradient: dy and x are rows of a wave at the owner.
local function use(d, f, part, wave, dy, x)
  local stack = f.stacks[part][wave]
  d:use(stack.value, {
    op = "grouped_linear_grad_weight", inputs = { dy, x, f.segments[wave] }, input = 1, attrs = {},
    rows = f.slots, cols = stack.stride, runs = 1, region = "heads", matrix = true, stack = stack,
    sources = f.grid.sources, pieces = f.pieces, edp = f.grid.edp,
  })
end

--- Sends the routing weights of a wave, on the way before any later wave's rows.
local function weights_of(f, add, make, wave)
  return shard.exchange(f, add, make, shard.take(f, add, make, f.weight_list, wave, 1), wave, 0)
end

--- Gradients of a wave, at its owner; returns those that go home.
local function backward(d, f, add, make, wave, dy, weight, kept)
  local offsets, dtype, rows = f.offsets[wave], dy.dtype, f.rows.owner
  local dout, dweight = make(rows, f.dim, dtype), make(rows, 1, "f32")
  add("expert_scale_grad", { dy, kept.out, weight, offsets }, { dout, dweight })
  local dact = add("grouped_linear_grad_input", { dout, offsets, f.stacks.down[wave].value },
    { make(rows, f.hidden, dtype) }, { parts = 1 })
  use(d, f, "down", wave, dout, kept.act)
  local dgate, dup = make(rows, f.hidden, dtype), make(rows, f.hidden, dtype)
  add("expert_swiglu_grad", { dact, kept.gate, kept.up, offsets }, { dgate, dup })
  local dx = add("grouped_linear_grad_input", { dgate, dup, offsets, f.stacks.gate[wave].value,
    f.stacks.up[wave].value }, { make(rows, f.dim, dtype) }, { parts = 2 })
  use(d, f, "gate", wave, dgate, kept.x)
  use(d, f, "up", wave, dup, kept.x)
  return dx, dweight
end

--- The gradients of x from the experts, of the logits and of the shared expert's rows.
local function finish(d, f, node, add, dx_home, dweight_home, dy)
  local logits = f.logits
  local dx = add("combine", { dx_home, f.place }, { d:value(f.x) })
  d.node = { id = f.dispatch_node, layer = node.layer, site = node.site, path = node.path }
  d:contribute(f.x, dx, 1)
  d.node = node
  local dz = d:value(logits)
  add("route_grad", { logits, f.expert, f.place, dweight_home, f.load }, { dz }, {
    kind = f.kind, normalize = f.normalize, samples = f.samples, scale = f.scale,
    balance = f.balance or 0,
  })
  d:contribute(logits, dz, 2)
  if f.shared then
    d:contribute(f.shared, d:value(f.shared, { alias = dy, dtype = dy.dtype }), 3)
  end
end

--- Rule of the stage differentiate for the node that combines.
return function(d, node, dys)
  local f, dy = node.moe, dys[1]
  local function make(rows, cols, dtype, shape)
    local value = { id = #d.values + 1, region = "moe", rows = rows, cols = cols, dtype = dtype,
      shape = shape }
    d.values[value.id] = value
    return value
  end
  local function add(op, ins, outs, attrs) return d:add(op, ins, outs, attrs) end
  f.weight_list = { id = f.weight.id, alias = f.weight, rows = f.rows.all, cols = 1, dtype = "f32",
    shape = { f.rows.all }, region = "moe" }
  local sent = {}
  local function dispatch(wave)
    if wave >= f.waves then return end
    local one = { kept = f.waves_kept[wave] }
    -- rows that are computed again come first: the others travel meanwhile
    if not f.keeps then
      one.x = shard.exchange(f, add, make, shard.take(f, add, make, f.x, wave, f.top_k), wave, 0)
    end
    one.weight = weights_of(f, add, make, wave)
    one.dy = shard.exchange(f, add, make, shard.take(f, add, make, dy, wave, f.top_k), wave, 0)
    sent[wave] = one
  end
  local dx_home, dweight_home = make(f.rows.all, f.dim, dy.dtype), make(f.rows.all, 1, "f32")
  for wave = 0, f.buffers - 2 do dispatch(wave) end
  for wave = 0, f.waves - 1 do
    dispatch(wave + f.buffers - 1)
    local one = sent[wave]
    local kept = one.kept or shard.compute(f, add, make, one.x, wave)
    local dx, dweight = backward(d, f, add, make, wave, one.dy, one.weight, kept)
    dx_home = shard.exchange(f, add, make, dx, wave, 1, dx_home)
    dweight_home = shard.exchange(f, add, make, dweight, wave, 1, dweight_home)
  end
  finish(d, f, node, add, dx_home, dweight_home, dy)
end
