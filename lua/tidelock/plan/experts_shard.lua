--- experts_shard.lua - a mixture of experts as what one rank computes for a micro-batch.
---
---     route -> counts -> [all_gather] -> order         who goes where
---     for each wave:  take_rows -> exchange -> gate, up -> swiglu -> down -> exchange
---     combine                                          slots in order, then the shared expert
---
--- With b buffers the dispatch of a wave stands before the products of the wave b - 1 before it, so
--- that messages and products can run at once. Where the recipe keeps them (with one wave, unless
--- it says otherwise) the backward pass reads the rows that the forward pass left at the owner;
--- else only x and the routing stay, and the rows are sent and computed again.
local experts = require "tidelock.plan.experts"

local moe = {}

local kinds = { softmax = 0, sigmoid = 1, sqrt_softplus = 2, hash = 2 }
local hops = { flat = 0, hierarchical = 1, ring = 2 }

--- What nodes of one layer need to know: sizes, and where experts are.
local function facts(s, node)
  local layout, a = s.spec.layout, node.attrs
  local waves, keeps = s.spec.blocks.moe.waves, s.spec.blocks.moe.keep
  if keeps == nil then keeps = waves == 1 end
  local grid = experts.grid(layout)
  local f = {
    attrs = a, grid = grid, ep = grid.ep, waves = waves, experts = a.experts, top_k = a.top_k,
    tokens = s:rows("trunk"), dim = node.outputs[1].dims[2].size, hidden = a.hidden,
    pieces = experts.pieces(s.length), keeps = keeps, path = node.path,
    samples = s.samples, buffers = s.spec.blocks.moe.buffers,
    island = layout.island or 1,
  }
  local auto = layout.island and layout.island < grid.ep and "hierarchical" or "flat"
  f.hops = hops[layout.all_to_all == "auto" and auto or layout.all_to_all]
  f.listing = experts.listing(a.experts, grid.ep, waves, layout.experts)
  f.slots = f.listing.slots
  f.rows = experts.rows(f.tokens, a.top_k, grid.ep, f.slots)
  return f
end

local function tensor(s, rows, cols, dtype, shape)
  return s:value("moe", rows, cols, dtype, { shape = shape })
end

--- Attributes that exchange and expert_segments share.
local function grid_attrs(f, wave, more)
  local attrs = { share = f.grid.share, waves = f.waves, wave = wave, experts = f.listing.list }
  for key, value in pairs(more) do attrs[key] = value end
  return attrs
end

-- weights ----------------------------------------------------------------------------------------

--- The weights of one part (gate, up, down) of the experts of a wave, stacked: a value that nodes
--- read, and a param for each expert, which says where in the stack it is.
local function stack_of(s, f, part, wave, weights)
  local first = weights[1].weight
  local count = first.rows * first.cols
  local dtype = s.plan.fields[first.name].dtype
  local per_line = dtype == "f32" and 16 or 32 -- elements of 64 bytes
  local stride = (count + per_line - 1) // per_line * per_line
  local name = ("%s.experts.%s"):format(f.path, part) .. (f.waves > 1 and " wave " .. wave or "")
  local stack = { name = name, wave = wave, rows = first.rows, cols = first.cols, stride = stride,
    slots = f.slots, dtype = dtype, params = {} }
  stack.value = s:value("step", f.slots, stride, dtype, { name = name, stack = stack, uses = {} })
  for e, at in ipairs(f.listing.at) do
    if at.wave == wave then
      local weight = weights[e].weight
      local fields = s.plan.fields[weight.name]
      if fields.dtype ~= dtype then
        error(("%s: %s is %s and %s is %s; experts of a layer have one dtype"):format(weight.site,
          first.name, dtype, weight.name, fields.dtype), 0)
      end
      stack.params[#stack.params + 1] = moe.param(s, weight, fields, { stack = stack,
        owner = at.rank, slot = at.slot })
    end
  end
  return stack
end

--- The param of one expert's matrix.
function moe.param(s, weight, fields, place)
  local param = {
    weight = weight, name = weight.name, fields = fields, rows = weight.rows, cols = weight.cols,
    replicas = 1, full_rows = weight.rows, full_cols = weight.cols, true_rows = weight.rows,
    row_first = 0, col_first = 0, parts = 1, expert = place,
  }
  param.value = s:value("step", weight.rows, weight.cols, fields.dtype,
    { name = weight.name, param = param, uses = {} })
  s.params[weight.name] = param
  s.order[#s.order + 1] = param
  return param
end

--- Stacks by part and wave, made once for each set of weights.
local function stacks_of(s, f, node)
  local key = node.attrs.first_weight
  s.stacks = s.stacks or {}
  if s.stacks[key] then return s.stacks[key] end
  local stacks, at = {}, 2
  for _, part in ipairs { "gate", "up", "down" } do
    local weights = table.move(node.inputs, at + 1, at + f.experts, 1, {})
    at = at + f.experts
    stacks[part] = {}
    for wave = 0, f.waves - 1 do stacks[part][wave] = stack_of(s, f, part, wave, weights) end
  end
  s.stacks[key] = stacks
  return stacks
end

-- nodes
-- --------------------------------------------------------------------------------------------

--- Rows to the owners of their experts, or home into their place `y` among all rows. Both passes
--- write it: `add(op, inputs, outputs, attrs)` adds a node, `make(rows, cols, dtype, shape)` a
--- value.
function moe.exchange(f, add, make, x, wave, home, y)
  if f.ep == 1 and (home == 0 or f.waves == 1) then return x end
  y = y or make(home == 1 and f.rows.all or f.rows.owner, x.cols, x.dtype)
  local stage
  if f.hops == 1 then
    stage = make((f.ep // f.island - 1) * f.island * f.tokens * math.min(f.top_k, f.slots
      * (home == 1 and 1 or f.island)), x.cols, x.dtype)
    if f.island == f.ep then stage = nil end
  elseif f.hops == 2 then
    stage = make(2 * x.rows, x.cols, x.dtype)
  end
  add("exchange", { x, f.counts_all }, { y, stage }, grid_attrs(f, wave, {
    group = "ep", home = home, hops = stage and f.hops or 0, island = f.island,
  }))
  return y
end

--- Rows of `x` at their homes, in home order of a wave. per: slots that take a row of x.
function moe.take(f, add, make, x, wave, per)
  local each = f.ep * f.slots
  return add("take_rows", { x, f.order, f.starts }, { make(f.rows.home, x.cols, x.dtype) },
    { per = per, first = wave * each, last = (wave + 1) * each })
end

--- gate, up, act and out of a wave's rows.
function moe.compute(f, add, make, x, wave)
  local w, offsets = f.stacks, f.offsets[wave]
  local gate, up = make(f.rows.owner, f.hidden, x.dtype), make(f.rows.owner, f.hidden, x.dtype)
  add("grouped_linear", { x, offsets, w.gate[wave].value, w.up[wave].value }, { gate, up },
    { parts = 2 })
  local act = add("expert_swiglu", { gate, up, offsets }, { make(f.rows.owner, f.hidden, x.dtype) })
  local out = add("grouped_linear", { act, offsets, w.down[wave].value },
    { make(f.rows.owner, f.dim, x.dtype) }, { parts = 1 })
  return { x = x, gate = gate, up = up, act = act, out = out }
end

--- Experts of every token: the best by score, or those of its id in a table.
local function choose(s, f, node, add, logits, rest)
  local r, layer = f.attrs.router, type(node.layer) == "number" and node.layer - 1 or 0
  if r.name == "hash" then
    add("route_table", { logits, rest.ids, rest.table }, { f.weight, f.expert }, {
      layer = layer, kind = f.kind, normalize = f.normalize, samples = f.samples,
      length = s.length, token_first = rest.token_first, scale = f.scale,
    })
    return
  end
  add("route", { logits, rest.bias }, { f.weight, f.expert }, {
    layer = layer, kind = f.kind, groups = r.groups, top_groups = r.top_groups or r.groups,
    normalize = f.normalize, scale = f.scale,
  })
end

local function route(s, f, node, add, make, logits, rest)
  local r = f.attrs.router
  f.kind, f.normalize, f.scale = kinds[r.name], r.normalize and 1 or 0, r.scale
  f.weight, f.expert = make(f.tokens, f.top_k, "f32"), make(f.tokens, f.top_k, "i32")
  local tokens = f.tokens // f.samples
  rest.token_first = s.by_tp(s.t, function(tp) return s.sp and tp * tokens or 0 end)
  choose(s, f, node, add, logits, rest)
  f.counts = add("expert_counts", { f.expert }, { make(f.samples * f.pieces, f.experts, "i32",
    { f.samples * f.pieces, f.experts }) }, {
    samples = f.samples, pieces = f.pieces, block = experts.block_tokens,
    token_first = rest.token_first,
  })
  local rows = f.ep * f.samples * f.pieces
  f.counts_all = f.ep == 1 and f.counts or add("all_gather", { f.counts }, { make(rows, f.experts,
    "i32", { rows, f.experts }) }, { group = "ep", outer = 1 })
  f.place = make(f.tokens, f.top_k, "i32")
  f.order = make(f.rows.all, 1, "i32")
  f.starts = make(#f.listing.list + 1, 1, "i32")
  add("expert_order", { f.expert }, { f.place, f.order, f.starts }, { experts = f.listing.list })
  add("expert_load", { f.counts }, {}, {}, { load = f.path, experts = f.experts })
end

local function segments(f, add, make, wave)
  local each = f.grid.sources * f.samples * f.pieces + 1
  f.offsets[wave] = make(f.slots + 1, 1, "i32")
  f.segments[wave] = make(f.slots, each, "i32", { f.slots, each })
  add("expert_segments", { f.counts_all }, { f.offsets[wave], f.segments[wave] },
    grid_attrs(f, wave, { ranks = f.ep }))
end

--- share and load of every sample, summed over its runs, and the loss made of them.
local function balance(s, f, add, make, logits)
  if f.attrs.balance.name ~= "loss" then return end
  local share, load = make(f.samples, f.experts, "f32"), make(f.samples, f.experts, "f32")
  add("route_sums", { logits, f.expert }, { share, load },
    { samples = f.samples, runs = s.sp and s.n // s.t or s.n })
  if s.sp then
    for _, x in ipairs { share, load } do
      add("all_reduce", { x }, { make(x.rows, x.cols, "f32", nil, x) })
    end
  end
  local loss = make(f.samples, 1, "f32")
  local weight = f.attrs.balance.weight
  add("balance_loss", { share, load }, { loss }, { length = s.length }, {
    balance = f.path, factor = weight / s.spec.batch.samples,
    sum = { op = "sum_tokens", inputs = { loss }, attrs = { kind = 0 }, runs = 1, region = "loss",
      vector = true, rows = 1, cols = 1, site = f.site, path = f.path, layer = f.layer },
  })
  f.load = load
  f.balance = weight * f.experts / (s.length * s.length * s.spec.batch.samples)
end

--- How far each expert is from the mean load, once the step's rows are counted.
function moe.load_sign(s, node)
  local y = s:like(node.outputs[1], "step")
  return { (s:add(node, "load_sign", {}, { y }, {}, { load = node.path,
    experts = node.attrs.experts })) }
end

--- Rule of the shard stage: inputs are x, logits, gates, ups, downs and, where they are, what the
--- shared expert gives and the router's bias, or ids and the table of a router by hash.
function moe.shard(s, node, inputs)
  local f = facts(s, node)
  local x, logits, rest = inputs[1], inputs[2], 3 + 3 * f.experts
  local shared = f.attrs.shared and inputs[rest] or nil
  local hash = f.attrs.router.name == "hash"
  local given = {
    bias = f.attrs.balance.name == "bias" and inputs[#inputs] or nil,
    ids = hash and inputs[#inputs - 1], table = hash and inputs[#inputs],
  }
  f.stacks = stacks_of(s, f, node)
  f.offsets, f.segments, f.waves_kept, f.x, f.logits, f.shared = {}, {}, {}, x, logits, shared
  f.site, f.layer = node.site, node.layer
  local function make(rows, cols, dtype, shape, alias)
    local value = tensor(s, rows, cols, dtype, shape)
    value.alias = alias
    return value
  end
  local function add(op, ins, outs, attrs, extra)
    return s:add(node, op, ins, outs, attrs, extra)
  end
  route(s, f, node, add, make, logits, given)
  balance(s, f, add, make, logits)
  local sent = {}
  local function dispatch(wave)
    if wave >= f.waves then return end
    segments(f, add, make, wave)
    sent[wave] = moe.exchange(f, add, make, moe.take(f, add, make, x, wave, f.top_k), wave, 0)
  end
  local home = make(f.rows.all, f.dim, x.dtype)
  f.dispatch_node = #s.nodes + 1 -- where x is used, in the order of uses
  for wave = 0, f.buffers - 2 do dispatch(wave) end
  for wave = 0, f.waves - 1 do
    dispatch(wave + f.buffers - 1)
    local kept = moe.compute(f, add, make, sent[wave], wave)
    if f.keeps then f.waves_kept[wave] = kept end
    home = moe.exchange(f, add, make, kept.out, wave, 1, home)
  end
  local y = s:like(node.outputs[1], "trunk")
  return { (s:add(node, "combine", { home, f.place, f.weight, shared }, { y }, {}, { moe = f })) }
end

return moe
