--- lower.lua - writes the instructions of one pipeline rank, in program order.
---
--- An instruction names its operands as views of buffers; a buffer knows the first and the last
--- instruction that touch it, which is all that placement needs. Values of a micro-batch get a
--- buffer per micro-batch; weights, their state and tables live as long as the program.
local accumulate = require "tidelock.plan.accumulate"
local core = require "tidelock.core"
local heads_lowering = require("tidelock.plan.heads").lowering
local moe = require "tidelock.plan.experts_lower"
local yarn = require "tidelock.model.yarn"

---@class tidelock.Buffer
---@field bytes integer
---@field first integer # instruction, from 1
---@field last integer
---@field kind string # weights, optimizer, gradients, activations, data, state
---@field name? string
---@field persistent? boolean
---@field value? table # what it holds of micro-batch `micro`; `final`: a weight, whose gradient it
---  is
---@field micro? integer
---@field final? table

---@class tidelock.Lower
local Lower = {}
Lower.__index = Lower

local lower = {}

local bytes_of = { f32 = 4, bf16 = 2, i32 = 4, i64 = 8, u8 = 1 }
lower.bytes_of = bytes_of

function lower.new(plan, rank, ep, shared)
  local l, b, spec = plan["local"], plan.backward, plan.spec
  local self = setmetatable({
    plan = plan, l = l, b = b, spec = spec, rank = rank, ep = ep, instructions = {}, buffers = {},
    kept = {}, persistent = {}, tables = {}, sections = {}, sums = {}, chunk_of = shared.chunk_of,
    keep_patterns = shared.keep, pp = spec.layout.pp, dp = spec.layout.dp,
    samples = spec.batch.samples // spec.layout.dp,
  }, Lower)
  return self
end

-- buffers and views ----------------------------------------------------------------------------

function Lower:buffer(bytes, kind, name, persistent)
  local buffer = { bytes = bytes, kind = kind, name = name, persistent = persistent,
    id = #self.buffers + 1 }
  self.buffers[buffer.id] = buffer
  return buffer
end

local function view(buffer, dtype, shape)
  return { buffer = buffer, dtype = dtype, shape = shape }
end

function Lower:make(dtype, shape, kind, name, persistent)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return view(self:buffer(count * bytes_of[dtype], kind, name, persistent), dtype, shape)
end

local function shape_of(value)
  if value.shape then return value.shape end
  if value.input == "cu" then return { value.rows + 1 } end
  if value.vector or value.cols == 1 then return { value.rows } end
  return { value.rows, value.cols }
end

local function reshaped(v, shape)
  return { buffer = v.buffer, dtype = v.dtype, shape = shape, offset = v.offset }
end

--- A tensor that lives as long as the program, made once per key.
function Lower:lasting(key, dtype, shape, kind, name)
  local known = self.persistent[key]
  if not known then
    known = self:make(dtype, shape, kind, name or key, true)
    self.persistent[key] = known
  end
  return known
end

function Lower:weight(param)
  if param.expert then
    return moe.view(self, param, "weight", param.fields.dtype, shape_of(param.value))
  end
  return self:lasting("weight " .. param.name, param.fields.dtype, shape_of(param.value),
    "weights", param.name)
end

--- The view of a local value in a micro-batch (0 based); made at its first mention.
function Lower:at(value, env)
  if value.count then return self:lasting("count", "i64", { 1 }, "state") end
  local shape = value.shape
  while value.alias do value = value.alias end
  if value.param then return self:weight(value.param) end
  if value.stack then return moe.stack(self, value.stack, "weight", value.dtype) end
  if value.region == "step" then env = self.step_env end
  local known = env[value.id]
  if not known then
    known = self:make(value.dtype, shape_of(value), value.input and "data" or "activations",
      value.name)
    known.buffer.value, known.buffer.micro = value, env.micro
    env[value.id] = known
    if value.name and not value.gradient_of then self:keep(value.name, known, { value = value,
      micro = env.micro }) end
  end
  if shape and shape ~= value.shape then return reshaped(known, shape) end
  return known
end

--- Keeps a named tensor until the end of the step, where a pattern of the plan asks for it.
function Lower:keep(name, v, facts)
  if self.evaluating then return end
  for _, keeps in ipairs(self.keep_patterns) do
    if keeps(name) then
      v.buffer.kept = true
      facts.name, facts.view = name, v
      self.kept[#self.kept + 1] = facts
      return
    end
  end
end

-- instructions ---------------------------------------------------------------------------------

local function touch(v, index)
  if not v then return end
  v.buffer.first = v.buffer.first or index
  v.buffer.last = index
end

---@param o { site: string, micro?: integer, phase: string, path?: string }
function Lower:emit(op, inputs, outputs, attrs, o)
  local index = #self.instructions + 1
  self.instructions[index] = {
    op = op, inputs = inputs, outputs = outputs, attrs = attrs or {},
    site = o.site, micro = o.micro or 0, phase = o.phase, path = o.path,
  }
  for i = 1, #inputs do touch(inputs[i], index) end
  for i = 1, #outputs do touch(outputs[i], index) end
end

local function section(self, name, body)
  local first = #self.instructions + 1
  body()
  self.sections[name] = { first, #self.instructions - first + 1 }
end

-- nodes of a micro-batch -------------------------------------------------------------------------

-- linear: the rule of llama3 with no wave short enough to be kept
local rope_kinds = { linear = 1, llama3 = 1, yarn = 2 }

function Lower:rope_table(node)
  local a, width = node.attrs, node.head_dim
  local scaling = a.scaling or {}
  local kind = rope_kinds[scaling.name] or 0
  local rotated = a.dim or width
  local low, high = scaling.low or scaling.beta_slow or 1, scaling.high or scaling.beta_fast or 4
  local original = scaling.name == "linear" and 1 or scaling.original or 8192
  local magnitude = kind == 2 and yarn.magnitude(scaling) or 1
  local key = string.format("rope %d %s %s %s %s %s %s", rotated, a.base, kind, scaling.factor or 1,
    low, high, original)
  if kind == 2 then key = key .. " " .. magnitude end
  local known = self.tables[key]
  if not known then
    known = self:lasting(key, "f32", { self.l.length, rotated // 2, 2 }, "state", "rope table")
    self.tables[key] = known
    self.tables[#self.tables + 1] = {
      view = known, site = node.site,
      attrs = {
        kind = kind, original = original, base = a.base, factor = scaling.factor or 1,
        low = low, high = high, magnitude = magnitude,
      },
    }
  end
  return known
end

local lowering = {}
for op, fn in pairs(moe.lowering) do lowering[op] = fn end
for op, fn in pairs(heads_lowering) do lowering[op] = fn end

--- loss = sum / targets of the global batch, once a step.
function lowering.loss_finish(self, node, env, o)
  local count = self:lasting("count", "i64", { 1 }, "state")
  self:emit("loss_finish", { self:at(node.inputs[1], env), count },
    { self:at(node.outputs[1], env) }, {}, o)
end

function lowering.gather(self, node, env, o)
  if node.outputs[1].alias then return end
  local x = node.inputs[1]
  self:emit("all_gather", { self:at(x, env) }, { self:at(node.outputs[1], env) },
    { group = "tp", outer = self.l.samples }, o)
end

lowering.spread = lowering.gather

function lowering.reduce(self, node, env, o)
  local x, y = self:at(node.inputs[1], env), self:at(node.outputs[1], env)
  local bias = node.bias and self:at(node.bias, env)
  local direct = self.l.sp and not bias and y.dtype == "f32"
  local sum = x
  if self.l.sp then
    sum = direct and y or self:make("f32", y.shape, "activations", "root")
    self:emit("reduce_scatter", { x }, { sum }, { group = "tp", outer = self.l.samples }, o)
  else
    self:emit("all_reduce", { x }, { x }, { group = "tp" }, o)
  end
  if direct then return end
  if bias then self:emit("binary", { sum, bias }, { y }, { kind = 0, broadcast = 1 }, o)
  else self:emit("cast", { sum }, { y }, {}, o) end
end

local function all_reduce(op)
  return function(self, node, env, o)
    local x = self:at(node.inputs[1], env)
    self:emit(op, { x }, { x }, { group = node.group_name or "tp" }, o)
  end
end
lowering.all_reduce, lowering.all_reduce_max = all_reduce "all_reduce", all_reduce "all_reduce_max"

function lowering.rope(self, node, env, o)
  local x, cu = node.inputs[1], node.inputs[2]
  local shape = { x.rows, x.cols // node.head_dim, node.head_dim }
  self:emit("rope", { reshaped(self:at(x, env), shape), self:at(cu, env), self:rope_table(node) },
    { reshaped(self:at(node.outputs[1], env), shape) },
    { inverse = node.attrs.inverse or 0, interleaved = node.attrs.interleaved and 1 or 0 }, o)
end

local function heads(self, node, shape, v)
  local rows = self.l.tokens
  if shape == "q" then return reshaped(v, { rows, node.heads, node.width }) end
  if shape == "k" then return reshaped(v, { rows, node.kv_heads, node.width }) end
  if shape == "v" then return reshaped(v, { rows, node.kv_heads, node.v_width }) end
  if shape == "o" then return reshaped(v, { rows, node.heads, node.v_width }) end
  if shape == "l" then return reshaped(v, { rows, node.heads }) end
  return v
end

local function with_heads(inputs, outputs)
  return function(self, node, env, o)
    local of, ins, outs = node.shape_of or node, {}, {}
    for i, x in ipairs(node.inputs) do ins[i] = heads(self, of, inputs[i], self:at(x, env)) end
    for i, y in ipairs(node.outputs) do outs[i] = heads(self, of, outputs[i], self:at(y, env)) end
    self:emit(node.op, ins, outs, node.attrs, o)
  end
end
lowering.attention = with_heads({ "q", "k", "v", "cu" }, { "o", "l" })
lowering.attention_grad = with_heads({ "q", "k", "v", "o", "l", "o", "cu" }, { "q", "k", "v" })

function lowering.dropout(self, node, env, o)
  local a, attrs = node.attrs, {}
  for key, value in pairs(a) do attrs[key] = value end
  attrs.key, attrs.key_name = core.hash_int(a.key_name), nil
  attrs.first = (o.micro or 0) * self.l.samples
  if self.evaluating then attrs.rate = 0 end
  self:emit("dropout", { self:at(node.inputs[1], env) }, { self:at(node.outputs[1], env) }, attrs,
    o)
end

local function count_of(v)
  local count = 1
  for _, size in ipairs(v.shape) do count = count * size end
  return count
end

--- One number beside all elements is a column of one row.
function lowering.binary(self, node, env, o)
  local a, b = self:at(node.inputs[1], env), self:at(node.inputs[2], env)
  local y, attrs = self:at(node.outputs[1], env), node.attrs
  if attrs.broadcast == 1 and count_of(b) == 1 then
    local one_row = { 1, count_of(a) }
    a, y = reshaped(a, one_row), reshaped(y, one_row)
    attrs = { kind = attrs.kind, broadcast = 2 }
  end
  self:emit("binary", { a, b }, { y }, attrs, o)
end

--- A sum over tokens takes this micro-batch's; what is summed leads to states and the log alone.
function lowering.sum(self, node, env)
  if not self.evaluating then self:accumulate(node.use, env, "forward") end
end

--- One node (forward or backward) of a micro-batch.
function Lower:node(node, env, phase)
  local o = { site = node.site, micro = env.micro, phase = phase, path = node.path }
  if lowering[node.op] then return lowering[node.op](self, node, env, o) end
  local ins, outs = {}, {}
  for i, x in ipairs(node.inputs) do ins[i] = self:at(x, env) end
  for i, y in ipairs(node.outputs) do outs[i] = self:at(y, env) end
  self:emit(node.op, ins, outs, node.attrs, o)
end

-- sums of weight gradients -----------------------------------------------------------------------

--- Elements of a run's matrix and what fills it up to the alignment of views, 64 bytes.
local function padded(count) return (count + 15) // 16 * 16 end

local function runs_here(self, use)
  return use.region == "trunk" and self.l.sp and use.runs // self.l.t or use.runs
end

--- The stack of accumulators of a use, and what each micro-batch does with it.
function Lower:sum_of(use)
  local known = self.sums[use]
  if known then return known end
  if use.stack then
    self.sums[use] = moe.sum_of(self, use)
    return self.sums[use]
  end
  local runs = runs_here(self, use)
  local trunk = use.region == "trunk"
  local length = use.matrix and trunk and (self.l.length + use.runs - 1) // use.runs
    or self.l.length
  local actions, depth, spare = accumulate.plan {
    samples = use.samples or self.samples, micro = self.l.samples,
    leaves = self.spec.policy.leaves.dp // self.dp, length = length, matrix = use.matrix,
    together = use.op == "linear_grad_weight" and accumulate.leaves_together or 1,
  }
  local sum = { actions = actions, runs = runs, stack = {}, by_run = use.matrix and runs > 1 }
  local shape = use.matrix and { use.rows, use.cols } or { runs, use.rows * use.cols }
  if use.matrix and runs > 1 then shape = { runs, padded(use.rows * use.cols) } end
  local name = use.name or (use.value and use.value.name or use.path) .. ".grad"
  for depth_index = 0, depth - 1 do
    sum.stack[depth_index] = self:make("f32", shape, "gradients", name)
  end
  if spare then sum.stack[-1] = self:make("f32", shape, "gradients", name) end
  self.sums[use] = sum
  return sum
end

--- Run r of a stack buffer, as a matrix of its own.
local function run_view(v, r, use)
  return {
    buffer = v.buffer, dtype = v.dtype, shape = { use.rows, use.cols },
    offset = r * padded(use.rows * use.cols) * 4,
  }
end

--- Tokens of a matrix' run r of `runs`, cut by floor borders like those of a vector.
local function run_tokens(rows, runs, r)
  local first = r * rows // runs
  return first, (r + 1) * rows // runs - first
end

--- The action "sum" of a matrix that has an accumulator for each run of the samples.
local function sum_runs(self, use, sum, action, ins, attrs, o)
  local target, rows = sum.stack[action.buffer], attrs.length
  if action.mode == 0 and padded(use.rows * use.cols) ~= use.rows * use.cols then
    self:emit("fill", {}, { target }, { value = 0 }, o)
  end
  for r = 0, sum.runs - 1 do
    local first, count = run_tokens(rows, sum.runs, r)
    local skip = action.row or 0
    local length = math.min(action.rows or count, count - skip)
    if length > 0 then
      self:emit(use.op, ins, { run_view(target, r, use) }, {
        mode = action.mode, samples = action.samples, first = attrs.first + first + skip,
        length = length, stride = rows, leaves = attrs.leaves,
      }, o)
    elseif action.mode == 0 then
      self:emit("fill", {}, { run_view(target, r, use) }, { value = 0 }, o)
    end
  end
end

--- One action "sum": the instruction that adds tokens of this micro-batch to an accumulator.
local function sum_action(self, use, sum, action, env, o)
  local target = sum.stack[action.buffer]
  local rows = use.inputs[#use.inputs].rows // self.l.samples
  if use.op == "sum_tokens" then rows = use.inputs[1].rows // self.l.samples end
  local start = (action.first - env.micro * self.l.samples) * rows
  local ins = {}
  for i, x in ipairs(use.inputs) do ins[i] = self:at(x, env) end
  local attrs = { mode = action.mode, samples = action.samples, length = rows, first = start }
  for key, value in pairs(use.attrs) do attrs[key] = value end
  if use.op == "linear_grad_weight" then attrs.leaves = action.leaves or 1 end
  if use.op == "sum_tokens" then
    attrs.runs = sum.runs
    self:emit("sum_tokens", ins, { reshaped(target, { sum.runs, use.rows * use.cols }) }, attrs, o)
  elseif sum.by_run then
    sum_runs(self, use, sum, action, ins, attrs, o)
  else
    attrs.first, attrs.length = start + (action.row or 0), action.rows or rows
    if use.op == "linear_grad_weight" then attrs.stride = rows end
    self:emit(use.op, ins, { target }, attrs, o)
  end
end

--- What the use does once the gradients of micro-batch `env.micro` are there.
function Lower:accumulate(use, env, phase)
  local sum = self:sum_of(use)
  local o = { site = use.site, micro = env.micro, phase = phase, path = use.path }
  if use.stack then return moe.accumulate(self, use, sum, env, o) end
  for _, action in ipairs(sum.actions[env.micro + 1]) do
    local target = sum.stack[action.buffer]
    if action.kind == "sum" then
      sum_action(self, use, sum, action, env, o)
    elseif action.kind == "zero" then
      self:emit("fill", {}, { target }, { value = 0 }, o)
    else
      local addend = sum.stack[action.from]
      self:emit("binary", { target, addend }, { target }, { kind = 0, broadcast = 0 }, o)
    end
  end
end

--- The sum over heads of what each has summed over tokens: a chain inside a leaf, the tree over the
--- leaves of this rank, then over the tp ranks, of which one speaks for those that share a head.
local function add_heads(self, use, root, o)
  local a, t = use.apart, self.l.t
  local leaves = math.max(1, a.leaves * a.here // a.heads)
  local function made(rows) return self:make("f32", { rows, a.width }, "gradients", "heads") end
  local folded = root
  if a.here > leaves then
    folded = made(leaves)
    self:emit("sum_tokens", { reshaped(root, { a.here, a.width }) }, { folded },
      { kind = 0, first = 0, samples = 1, length = a.here, runs = leaves, mode = 0 }, o)
  end
  if leaves > 1 then
    local rows = folded
    folded = made(1)
    self:emit("fold", { reshaped(rows, { leaves, a.width }) }, { folded }, {}, o)
  end
  folded = reshaped(folded, { a.width })
  if t == 1 or use.region == "trunk" then return folded end
  if a.replicas > 1 then
    local speaks = require("tidelock.plan.stages.shard").by_tp(t, function(r)
      return r % a.replicas == 0 and 1 or 0
    end)
    self:emit("scale", { folded }, { folded }, { factor = speaks }, o)
  end
  self:emit("all_reduce", { folded }, { folded }, { group = "tp" }, o)
  return folded
end

--- The finished sum of a use: dp leaves, then runs of this rank, then the tp ranks.
function Lower:finish(use)
  local sum = self:sum_of(use)
  local o = { site = use.site, phase = "finish", path = use.path }
  if use.stack then return moe.finish(self, use, sum, o) end
  local root = sum.stack[0]
  if self.dp > 1 then self:emit("all_reduce", { root }, { root }, { group = "dp" }, o) end
  local count = use.rows * use.cols
  if sum.runs > 1 then
    local width = sum.by_run and padded(count) or count
    local folded = self:make("f32", { width }, "gradients", "folded runs")
    self:emit("fold", { reshaped(root, { sum.runs, width }) }, { folded }, {}, o)
    root = folded
  end
  root = reshaped(root, { count })
  if use.region == "trunk" and self.l.sp then
    self:emit("all_reduce", { root }, { root }, { group = "tp" }, o)
  end
  if use.apart then return add_heads(self, use, root, o) end
  return root
end

lower.section = section
lower.view = view
lower.reshaped = reshaped
lower.shape_of = shape_of
lower.Lower = Lower
return lower
