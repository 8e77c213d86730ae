--- shard.lua - from the graph of the model to what one rank computes for a micro-batch.
---
--- Every value lives in a region, and the region decides how tensor-parallel ranks hold it:
---
---     region   holds                                   at tp 1
---     trunk    its run of every sample (sequence        all tokens
---              parallel), else all tokens
---     heads    all tokens, its share of the cut dim     all tokens, the whole dim
---     loss     all tokens, the same on every tp rank    all tokens
---     step     weights and what is made of them alone, once a step
---
--- Where regions do not meet, `gather` (trunk -> all tokens) and `reduce` (f32 roots of the ranks
--- through the tree -> trunk) are inserted; each is the gradient of the other. Numbers that differ
--- between tp ranks are `by_tp` lists, so that one result serves all ranks.
local fit = require "tidelock.text.fit"
local heads_shard = require("tidelock.plan.heads").shard
local moe = require "tidelock.plan.experts_shard"

local shard = {}

local ByTp = {}
shard.ByTp = ByTp

--- A number for each tp rank.
local function by_tp(t, fn)
  local values, same = {}, true
  for r = 0, t - 1 do
    values[r + 1] = fn(r)
    same = same and values[r + 1] == values[1]
  end
  return same and values[1] or setmetatable(values, ByTp)
end
shard.by_tp = by_tp

local Shard = {}
Shard.__index = Shard

local function new(plan)
  local spec = plan.spec
  local layout, policy, batch = spec.layout, spec.policy, spec.batch
  local t = layout.tp
  return setmetatable({
    by_tp = by_tp, plan = plan, spec = spec, t = t, n = policy.leaves.tp,
    sp = layout.sequence_parallel and t > 1,
    samples = batch.micro, length = batch.length, tokens = batch.micro * batch.length,
    nodes = {}, values = {}, params = {}, order = {}, map = {}, dtype = spec.dtype,
  }, Shard)
end

--- Elements of `dim` that a rank holds, and how many ranks hold the same ones.
function Shard:cut(dim, site)
  local full = dim.padded or dim.size
  if dim.axis ~= "tp" or self.t == 1 then return full, 1 end
  if full % self.t == 0 then return full // self.t, 1 end
  if dim.replicated and self.t % full == 0 then return 1, self.t // full end
  error(string.format("%s: layout.tp: tp %d does not divide %s %d; allowed: %s", site, self.t,
    dim.name, full, fit.list(fit.divisors(full))), 0)
end

function Shard:rows(region) return region == "trunk" and self.sp and self.tokens // self.t
  or self.tokens end

function Shard:value(region, rows, cols, dtype, extra)
  local value = { id = #self.values + 1, region = region, rows = rows, cols = cols, dtype = dtype }
  for key, item in pairs(extra or {}) do value[key] = item end
  self.values[value.id] = value
  return value
end

--- A value of `region` with the local size of the global value's dims.
function Shard:like(global, region, dtype)
  local cols, replicas = 1, 1
  for i, dim in ipairs(global.dims) do
    if dim.name ~= "tokens" then
      local size, same = self:cut(dim, global.site)
      cols, replicas = cols * size, math.max(replicas, same)
      assert(i <= 2 or dim.axis ~= "tp", "only the first dim after tokens may be cut")
    end
  end
  local tokens = global.dims[1] and global.dims[1].name == "tokens"
  local rows = tokens and self:rows(region) or 1
  if not tokens then rows, cols = cols, 1 end
  return self:value(region, rows, cols, dtype or global.dtype, { of = global.id,
    name = global.name, replicas = replicas, fixed = global.fixed, after = global.after })
end

function Shard:add(node, op, inputs, outputs, attrs, extra)
  local made = {
    id = #self.nodes + 1, op = op, inputs = inputs, outputs = outputs, attrs = attrs or {},
    site = node.site, layer = node.layer, path = node.path, step = node.step, after = node.after,
  }
  for key, item in pairs(extra or {}) do made[key] = item end
  self.nodes[made.id] = made
  for _, output in ipairs(outputs) do output.node = made end
  return table.unpack(outputs)
end

-- weights ------------------------------------------------------------------------------------

--- The local share of a weight: rows x cols from (row_first, col_first) of the logical tensor.
function Shard:param(weight)
  local known = self.params[weight.name]
  if known then return known end
  local t, n = self.t, self.n
  local rows, cols, axis, lead, replicas = 1, 1, nil, nil, 1
  local full_rows, full_cols = 1, 1
  for i, dim in ipairs(weight.dims) do
    local size, same = self:cut(dim, weight.site)
    local full = dim.padded or dim.size
    if dim.axis == "tp" then
      if axis or i ~= 1 and i ~= weight.out + 1 then
        error(string.format("%s: weight %s: only one dim may be mapped to tp, the first of the "
          .. "output dims or the first of the summed ones; %s is not", weight.site, weight.name,
          dim.name), 0)
      end
      axis, lead, replicas = i <= weight.out and 0 or 1, dim, same
    end
    if i <= weight.out then rows, full_rows = rows * size, full_rows * full
    else cols, full_cols = cols * size, full_cols * full end
  end
  if replicas > 1 and full_rows % t ~= 0 then
    error(string.format("%s: layout.tp: tp %d does not divide the %d features of %s, which its "
      .. "ranks share; allowed: %s", weight.site, t, full_rows, weight.name,
      fit.list(fit.divisors(full_rows))), 0)
  end
  local first = by_tp(t, function(r)
    if not axis or t == 1 then return 0 end
    local whole = axis == 0 and full_rows or full_cols
    local head = whole // (lead.padded or lead.size)
    return replicas > 1 and (r // replicas) * head or r * (axis == 0 and rows or cols)
  end)
  local param = {
    weight = weight, name = weight.name, fields = self.plan.fields[weight.name],
    rows = rows, cols = cols, full_rows = full_rows, full_cols = full_cols,
    axis = axis, replicas = replicas, lead = lead,
    true_rows = weight.rows, row_first = axis == 0 and first or 0, col_first = axis == 1 and first
      or 0,
    parts = axis and n or 1,
  }
  param.value = self:value("step", rows, cols, param.fields.dtype,
    { name = weight.name, param = param, vector = weight.out == #weight.dims, uses = {},
      fixed = weight.kind == "state" or nil })
  self.params[weight.name] = param
  self.order[#self.order + 1] = param
  return param
end

function Shard:get(global)
  local known = self.map[global.id]
  if known then return known end
  if global.weight then
    if global.weight.kind == "expert" then return global end -- experts_shard.lua stacks them
    return self:param(global.weight).value
  end
  assert(global.input, "a value without a node")
  local value = self:value("loss", self.tokens, 1, "i32", { input = global.input, layer = nil })
  self.map[global.id] = value
  return value
end

-- meeting of regions -------------------------------------------------------------------------

--- All tokens of a trunk value, for work whose features are cut.
function Shard:gather(node, x)
  if self.t == 1 or x.region ~= "trunk" then return x end
  local y = self:value("heads", self.tokens, x.cols, x.dtype, { alias = not self.sp and x or nil })
  return self:add(node, "gather", { x }, { y })
end

--- All tokens of a trunk value on every rank, for losses that are made of it.
function Shard:spread(node, x)
  local y = self:value("loss", self.tokens, x.cols, x.dtype, { alias = not self.sp and x or nil })
  return self:add(node, "spread", { x }, { y })
end

--- Folds f32 roots of the tp ranks in the tree, adds the bias, rounds once.
function Shard:reduce(node, x, global, bias)
  local y = self:like(global, "trunk")
  return self:add(node, "reduce", { x, bias }, { y }, {}, { bias = bias })
end

-- operators ----------------------------------------------------------------------------------

local rule = { moe = moe.shard, load_sign = moe.load_sign, split_heads = heads_shard.split_heads,
  join_heads = heads_shard.join_heads }

local function mapped(dims)
  for _, dim in ipairs(dims) do if dim.axis == "tp" then return true end end
  return false
end

function rule.linear(s, node, inputs)
  local parts, attrs = node.attrs.parts, node.attrs
  local x, params, biases = inputs[1], {}, {}
  for i = 1, parts do params[i] = inputs[1 + i].param end
  if attrs.biases == 1 then for i = 1, parts do biases[i] = inputs[1 + parts + i] end end
  local inner = mapped(attrs.inner)
  local column = false
  for _, param in ipairs(params) do
    if x.dtype ~= s.dtype or param.fields.dtype ~= s.dtype then
      error(string.format("%s: linear: x is %s and the weight %s is %s; the op has one dtype for "
        .. "both, the recipe's (%s)", node.site, x.dtype, param.name, param.fields.dtype,
        s.dtype), 0)
    end
  end
  for _, param in ipairs(params) do column = column or param.axis == 0 end
  if inner and x.region ~= "heads" or not inner and x.region == "heads" then
    error(string.format("%s: linear: the summed dims and the input do not lie alike over tp",
      node.site), 0)
  end
  local extra = { params = params, biases = biases, inner = inner, column = column }
  local list = { inner and x or column and s:gather(node, x) or x }
  for i = 1, parts do list[1 + i] = params[i].value end
  if inner and s.t > 1 then
    local partial = s:value("partial", s.tokens, params[1].rows, "f32")
    extra.biases = {} -- the bias is added after the fold
    s:add(node, "linear", list, { partial }, { parts = 1, biases = 0, leaves = s.n // s.t }, extra)
    return { s:reduce(node, partial, node.outputs[1], biases[1]) }
  end
  for i = 1, #biases do list[#list + 1] = biases[i] end
  local outputs = {}
  for i, output in ipairs(node.outputs) do
    outputs[i] = s:like(output, column and "heads" or inner and "trunk" or x.region)
    outputs[i].grad_dtype = s.dtype
  end
  s:add(node, "linear", list, outputs, {
    parts = parts, biases = #biases > 0 and 1 or 0, leaves = inner and s.n or 1,
  }, extra)
  return outputs
end

function rule.embedding(s, node, inputs)
  local ids, param = inputs[1], inputs[2].param
  local first = by_tp(s.t, function(r) return r * param.rows end)
  if s.t == 1 then
    local y = s:like(node.outputs[1], "trunk")
    return { (s:add(node, "embedding", inputs, { y }, { first = 0 }, { params = { param },
      ids = ids })) }
  end
  local partial = s:value("partial", s.tokens, param.cols, "f32")
  s:add(node, "embedding", inputs, { partial }, { first = first }, { params = { param },
    ids = ids })
  return { s:reduce(node, partial, node.outputs[1]) }
end

function rule.position_ids(s, node, inputs)
  local y = s:value("loss", s.tokens, 1, "i32")
  return { (s:add(node, "position_ids", inputs, { y })) }
end

local function same_region(s, node, inputs, attrs, extra)
  local outputs = {}
  for i, output in ipairs(node.outputs) do outputs[i] = s:like(output, inputs[1].region) end
  s:add(node, node.op, inputs, outputs, attrs or node.attrs, extra)
  return outputs
end

--- Norms of (tokens, d), or of each head of (tokens, heads, d) apart: then the gradients of gain
--- and bias are sums over heads too, in as many leaves as any tp needs (the largest power of two
--- that divides the heads).
local function norm(s, node, inputs)
  local dims, apart = node.inputs[1].dims, nil
  if dims[#dims].axis == "tp" and s.t > 1 then
    error(string.format("%s: %s over a dim that is cut over tp", node.site, node.op), 0)
  end
  if #dims > 2 then
    local heads, width = 1, dims[#dims].size
    for i = 2, #dims - 1 do heads = heads * dims[i].size end
    apart = {
      heads = heads, here = inputs[1].cols // width, width = width, leaves = heads & -heads,
      replicas = inputs[1].replicas or 1,
    }
  end
  return same_region(s, node, inputs, nil, { apart = apart })
end
rule.rms_norm, rule.layer_norm = norm, norm
rule.unary, rule.scale, rule.cast, rule.swiglu = same_region, same_region, same_region, same_region
rule.scale_step, rule.loss_finish = same_region, same_region

function rule.binary(s, node, inputs)
  local a, b = inputs[1], inputs[2]
  if a.region == "trunk" and b.region == "loss" then a = s:spread(node, a) end
  if b.region == "trunk" and a.region == "loss" then b = s:spread(node, b) end
  inputs = { a, b }
  if b.region ~= "step" and a.region ~= b.region then
    error(string.format("%s: %s of values that lie differently over tp (%s, %s)", node.site,
      node.attrs.name, a.region, b.region), 0)
  end
  return same_region(s, node, inputs)
end

function rule.fill(s, node)
  local y = s:like(node.outputs[1], "step")
  return { (s:add(node, "fill", {}, { y }, node.attrs)) }
end

--- A sum over tokens: an accumulator like that of a bias' gradient, finished once a step. Of a loss
--- term (`targets`) tokens without target count as +0, as in the loss.
function rule.sum(s, node, inputs)
  local x, y = inputs[1], s:like(node.outputs[1], "step")
  if node.attrs.targets then
    if x.region == "trunk" then x = s:spread(node, x) end
    x = s:add(node, "loss_mask", { x, s.targets }, { s:value("loss", s.tokens, 1, "f32") })
  end
  local use = {
    op = "sum_tokens", inputs = { x }, attrs = { kind = 0 }, region = x.region, vector = true,
    runs = x.region == "trunk" and s.n or 1, rows = y.rows, cols = y.cols, site = node.site,
    layer = node.layer, path = node.path, name = (node.outputs[1].name or node.path) .. ".sum",
  }
  s:add(node, "sum", { x }, { y }, {}, { use = use })
  return { y }
end

function rule.update(s, node, inputs)
  s:add(node, "update", { inputs[2] }, {}, {}, { param = inputs[1].param })
  return {}
end

function rule.dropout(s, node, inputs)
  local x = inputs[1]
  local trunk = x.region == "trunk" and s.sp
  local tokens = trunk and s.length // s.t or s.length
  local full = 1
  for _, dim in ipairs(node.inputs[1].dims) do full = full * (dim.size or 1) end
  return same_region(s, node, inputs, {
    key_name = node.attrs.key, rate = node.attrs.rate, length = s.length, tokens = tokens,
    features = full,
    token_first = by_tp(s.t, function(r) return trunk and r * tokens or 0 end),
    feature_first = by_tp(s.t, function(r) return x.region == "heads" and s.t > 1 and r * x.cols
      or 0 end),
  })
end

function rule.rope(s, node, inputs)
  local dims = node.outputs[1].dims
  local x = inputs[1].region == "trunk" and s:spread(node, inputs[1]) or inputs[1]
  local y = s:like(node.outputs[1], x.region)
  local width = dims[#dims].size
  return { (s:add(node, "rope", { x, s:get(s.plan.graph.cu) }, { y }, node.attrs,
    { head_dim = width })) }
end

function rule.attention(s, node, inputs)
  local qd, kd, vd = node.inputs[1].dims, node.inputs[2].dims, node.inputs[3].dims
  local heads, kv_heads = qd[2].size, kd[2].size
  local c = qd[3].size
  local total = shard.head_leaves(s.n, heads, kv_heads)
  local replicas = inputs[2].replicas or 1
  local o = s:like(node.outputs[1], "heads")
  o.cols = (s:cut(qd[2])) * vd[3].size
  local lse = s:value("heads", s.tokens, (s:cut(qd[2])), "f32")
  local blocks = s.spec.blocks.attention
  local attrs = {
    window = node.attrs.window,
    kv_block = blocks.kv or (c <= 128 and 128 or 64), split = blocks.split,
    scale = node.attrs.scale or 1 / math.sqrt(c),
  }
  s:add(node, "attention", { inputs[1], inputs[2], inputs[3], s:get(s.plan.graph.cu) },
    { o, lse }, attrs, {
      heads = (s:cut(qd[2])), kv_heads = (s:cut(kd[2])), width = c, v_width = vd[3].size,
      replicas = replicas, head_leaves = total // replicas,
    })
  return { o, lse }
end

--- Leaves of the sum over the q heads of one KV head: a function of the model and the policy alone.
function shard.head_leaves(leaves, heads, kv_heads)
  local a, b = leaves, heads
  while b ~= 0 do a, b = b, a % b end
  return a % kv_heads == 0 and a // kv_heads > 1 and a // kv_heads or 1
end

--- Row maximum and sum of exponentials of vocabulary shards, folded over tp; shared by the losses.
local function softmax_parts(s, node, z, targets)
  local dim = node.inputs[1].dims[#node.inputs[1].dims]
  local cols = z.cols
  local columns = by_tp(s.t, function(r) return math.max(0, math.min(cols,
    dim.size - r * cols)) end)
  local first = by_tp(s.t, function(r) return r * cols end)
  local function stat(name) return s:value("loss", s.tokens, 1, "f32", { name = name }) end
  local m = s:add(node, "row_max", { z }, { stat "m" }, { columns = columns })
  if s.t > 1 then m = s:add(node, "all_reduce_max", { m }, { s:value("loss", s.tokens, 1, "f32",
    { alias = m }) }) end
  local outputs = { stat "s", stat "zt", stat "zsum" }
  s:add(node, "row_sum_exp", { z, m, targets }, outputs, { columns = columns, first = first,
    leaves = s.n // s.t })
  if s.t > 1 then
    for i, x in ipairs(outputs) do
      outputs[i] = s:add(node, "all_reduce", { x }, { s:value("loss", s.tokens, 1, "f32",
        { alias = x }) })
    end
  end
  return m, outputs[1], outputs[2], outputs[3], columns, first, dim.size
end

function rule.cross_entropy(s, node, inputs)
  local z, targets = inputs[1], inputs[2]
  local m, sum, zt, zsum, columns, first, vocab = softmax_parts(s, node, z, targets)
  local y = s:value("loss", s.tokens, 1, "f32")
  local a = node.attrs
  return { (s:add(node, "cross_entropy", { m, sum, zt, zsum, targets }, { y },
    { vocab = vocab, smoothing = a.smoothing, z = a.z },
    { z = z, columns = columns, first = first })) }
end

function rule.logsumexp(s, node, inputs)
  local targets = s.targets
  local m, sum, _, _, columns = softmax_parts(s, node, inputs[1], targets)
  local y = s:value("loss", s.tokens, 1, "f32")
  return { (s:add(node, "logsumexp", { m, sum }, { y }, {}, { z = inputs[1], columns = columns })) }
end

function shard.run(plan)
  local s = new(plan)
  for _, value in ipairs(plan.graph.values) do
    if value.input then
      local made = s:get(value)
      s[value.input] = made
    end
  end
  for _, node in ipairs(plan.graph.nodes) do
    local inputs = {}
    for i, input in ipairs(node.inputs) do inputs[i] = s:get(input) end
    local outputs = assert(rule[node.op], node.op)(s, node, inputs)
    for i, output in ipairs(outputs) do
      output.of, output.name = node.outputs[i].id, output.name or node.outputs[i].name
      output.global = node.outputs[i]
      s.map[node.outputs[i].id] = output
    end
  end
  local loss, terms = s.map[plan.loss.id], {}
  for i, term in ipairs(plan.graph.terms) do
    terms[i] = { name = term.name, value = s.map[term.value.id] }
  end
  return {
    ["local"] = {
      nodes = s.nodes, values = s.values, params = s.order, t = s.t, n = s.n, sp = s.sp,
      tokens = s.tokens,
      samples = s.samples, length = s.length, ids = s.ids, targets = s.targets, cu = s.cu,
      loss = loss, terms = terms,
    },
  }
end

return shard
