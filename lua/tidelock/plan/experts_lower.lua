--- experts_lower.lua - stacks of expert weights in memory, their gradients, and the load of
--- experts.
---
---     stack   | expert 0 | expert 8 | ... |     weights of a wave on this rank; a logical
---                                               weight is a view of its slot
---     sums    one stack of accumulators for each group of samples that the owner serves, then
---             | source 0 | source 1 | -> fold -> all_reduce over edp: the tree over dp leaves
local accumulate = require "tidelock.plan.accumulate"
local experts = require "tidelock.plan.experts"

local moe = {}

local element = { f32 = 4, bf16 = 2 }

--- The whole stack, in one of the four kinds of state of a weight ("weight", "m", "v", "master").
function moe.stack(self, stack, kind, dtype)
  return self:lasting(kind .. " stack " .. stack.name, dtype, { stack.slots, stack.stride },
    kind == "weight" and "weights" or "optimizer", kind == "weight" and stack.name
      or kind .. " " .. stack.name)
end

--- The view of an expert's weight, or of its state, in the stack.
function moe.view(self, param, kind, dtype, shape)
  local key = kind .. " " .. param.name
  local known = self.persistent[key]
  if known then return known end
  local place, whole = param.expert, moe.stack(self, param.expert.stack, kind, dtype)
  known = { buffer = whole.buffer, dtype = dtype, shape = shape, name = param.name,
    offset = place.slot * place.stack.stride * element[dtype] }
  self.persistent[key] = known
  return known
end

--- Fills the stacks of this rank: slots may be empty, and borders are rounded up.
function moe.clear(self, shared)
  local seen = {}
  for _, param in ipairs(self.l.params) do
    local stack = param.expert and param.expert.stack
    if stack and not seen[stack] and shared.holders[param.name].on[self.rank] then
      seen[stack] = true
      local o = { path = stack.name, phase = "init", site = param.weight.site }
      moe.stack(self, stack, "weight", stack.dtype)
      for _, kind in ipairs { "weight", "m", "v", "master" } do
        local whole = self.persistent[kind .. " stack " .. stack.name]
        if whole then self:emit("fill", {}, { whole }, { value = 0 }, o) end
      end
    end
  end
end

-- gradients
-- ----------------------------------------------------------------------------------------

local function padded(count) return (count + 15) // 16 * 16 end

--- Accumulators of a use: depth 0 of all sources side by side, the others one by one.
function moe.sum_of(self, use)
  local actions, depth, spare = accumulate.plan {
    samples = self.samples, micro = self.l.samples, leaves = self.spec.policy.leaves.dp // self.dp,
    length = self.l.length, matrix = true, together = accumulate.leaves_together,
  }
  local count, name = use.rows * use.cols, use.stack.name .. ".grad"
  assert(padded(count) == count, "a stack ends on a border of 64 bytes")
  local sum = { actions = actions, runs = 1, stack = {}, sources = {} }
  sum.root = self:make("f32", { use.sources, count }, "gradients", name)
  for source = 0, use.sources - 1 do
    local own = { [0] = { buffer = sum.root.buffer, dtype = "f32", shape = { use.rows, use.cols },
      offset = source * count * 4 } }
    for level = spare and -1 or 1, depth - 1 do
      own[level] = own[level] or self:make("f32", { use.rows, use.cols }, "gradients", name)
    end
    sum.sources[source] = own
    for level in pairs(own) do sum.stack[source .. " " .. level] = own[level] end
  end
  return sum
end

--- Pieces of an action: all of its samples, or one block of a sample that has several.
local function pieces_of(self, use, action, source, micro)
  local first = (source * self.l.samples + action.first - micro * self.l.samples) * use.pieces
  if action.row then return first + action.row // experts.block_tokens, 1 end
  return first, action.samples * use.pieces
end

function moe.accumulate(self, use, sum, env, o)
  local ins = {}
  for i, x in ipairs(use.inputs) do ins[i] = self:at(x, env) end
  for source = 0, use.sources - 1 do
    local stack = sum.sources[source]
    for _, action in ipairs(sum.actions[env.micro + 1]) do
      local target = stack[action.buffer]
      if action.kind == "sum" then
        local first, pieces = pieces_of(self, use, action, source, env.micro)
        self:emit(use.op, ins, { target }, { first = first, samples = pieces, mode = action.mode,
          leaves = action.leaves or 1 }, o)
      elseif action.kind == "zero" then
        self:emit("fill", {}, { target }, { value = 0 }, o)
      else
        self:emit("binary", { target, stack[action.from] }, { target }, { kind = 0,
          broadcast = 0 }, o)
      end
    end
  end
end

--- The finished sum of a use, flat: sources of this group, then the groups.
function moe.finish(self, use, sum, o)
  local root, count = sum.root, use.rows * use.cols
  if use.sources > 1 then
    local folded = self:make("f32", { count }, "gradients", "folded sources")
    self:emit("fold", { root }, { folded }, {}, o)
    root = folded
  end
  root = { buffer = root.buffer, dtype = "f32", shape = { count } }
  local group = self.spec.layout.ep > 1 and "edp" or "dp"
  if use.edp > 1 then self:emit("all_reduce", { root }, { root }, { group = group }, o) end
  return root
end

--- An expert's share of the finished gradient of its stack.
function moe.gradient(param, whole)
  return { buffer = whole.buffer, dtype = "f32", shape = { param.rows * param.cols },
    offset = (whole.offset or 0) + param.expert.slot * param.expert.stack.stride * 4 }
end

-- instructions of a micro-batch
-- ---------------------------------------------------------------------

moe.lowering = {}

--- Which experts are this rank's: its position in the group.
function moe.lowering.expert_segments(self, node, env, o)
  local attrs, ins, outs = { position = self.ep }, {}, {}
  for key, value in pairs(node.attrs) do attrs[key] = value end
  for i, x in ipairs(node.inputs) do ins[i] = self:at(x, env) end
  for i, y in ipairs(node.outputs) do outs[i] = self:at(y, env) end
  self:emit("expert_segments", ins, outs, attrs, o)
end

--- The load of a step, on this rank first; an evaluation does not count.
function moe.lowering.expert_load(self, node, env, o)
  if self.evaluating then return end
  local load = self:lasting("load " .. node.load, "i64", { node.experts }, "state")
  self.loads = self.loads or {}
  local begun = self.loads[node.load]
  if not begun then
    self.loads[node.load] = true
    self.loads[#self.loads + 1] = { view = load, site = node.site, path = node.load }
  end
  self:emit("expert_load", { self:at(node.inputs[1], env) }, { load }, { mode = begun and 1 or 0 },
    o)
end

function moe.lowering.load_sign(self, node, env, o)
  local load = self:lasting("load " .. node.load, "i64", { node.experts }, "state")
  self:emit("load_sign", { load }, { self:at(node.outputs[1], env) }, {}, o)
end

function moe.lowering.balance_loss(self, node, env, o)
  local ins = { self:at(node.inputs[1], env), self:at(node.inputs[2], env) }
  self:emit("balance_loss", ins, { self:at(node.outputs[1], env) }, node.attrs, o)
  if self.evaluating then return end
  self.balances = self.balances or {}
  if not self.balances[node] then
    self.balances[node] = true
    self.balances[#self.balances + 1] = node
  end
  self:accumulate(node.sum, env, "forward")
end

--- Loads and balance losses of the step over all ranks.
function moe.step(self)
  for _, one in ipairs(self.loads or {}) do
    local o = { site = one.site, phase = "finish", path = one.path }
    for _, axis in ipairs { self.l.sp and "tp" or false, self.dp > 1 and "dp" or false } do
      if axis then
        self:emit("all_reduce_count", { one.view }, { one.view }, { group = axis }, o)
      end
    end
  end
  for _, node in ipairs(self.balances or {}) do
    local o = { site = node.site, phase = "finish", path = node.path }
    local y = self:lasting("balance " .. node.balance, "f32", { 1 }, "state")
    self:emit("scale", { self:finish(node.sum) }, { y }, { factor = node.factor }, o)
  end
end

return moe
