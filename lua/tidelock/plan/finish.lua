--- finish.lua - what surrounds the micro-batches of a step: initial values, the target count, the
--- finished sums, gradient norm and clip, and the update of every weight.
local after = require "tidelock.plan.after"
local core = require "tidelock.core"
local lower = require "tidelock.plan.lower"
local moe = require "tidelock.plan.experts_lower"

local finish = {}

local function at(path, phase, site) return { site = site, phase = phase, path = path } end

local function held(self, shared, param)
  local here = not param.expert or param.expert.owner == self.ep
  return here and shared.holders[param.name].on[self.rank]
end

local function flat(v)
  local count = 1
  for _, size in ipairs(v.shape) do count = count * size end
  return lower.reshaped(v, { count })
end

-- weights and their state
-- --------------------------------------------------------------------------

--- m, v and, beside bf16 weights, the f32 master.
local function state(self, param)
  local shape, own = lower.shape_of(param.value), { weight = self:weight(param) }
  local function add(kind)
    own[kind] = param.expert and moe.view(self, param, kind, "f32", shape)
      or self:lasting(kind .. " " .. param.name, "f32", shape, "optimizer")
  end
  add "m"
  add "v"
  if param.fields.dtype ~= "f32" then add "master" end
  return own
end

--- Claims the persistent buffers first, so that they lie at the start of the arena.
function finish.weights(self, shared)
  for _, param in ipairs(self.l.params) do
    if held(self, shared, param) then
      self:weight(param)
      if not param.fields.frozen then state(self, param) end
    end
  end
end

local init_kinds = { constant = 0, normal = 1, uniform = 2, ["function"] = 0 }

function finish.init(self, shared)
  for _, entry in ipairs(self.tables) do
    self:emit("rope_table", {}, { entry.view }, entry.attrs, at("rope", "init", entry.site))
  end
  moe.clear(self, shared)
  for _, param in ipairs(self.l.params) do
    if held(self, shared, param) then
      local o = at(param.name, "init", param.weight.site)
      local init = param.fields.init
      local own = not param.fields.frozen and state(self, param) or { weight = self:weight(param) }
      local target = own.master or own.weight
      self:emit("init", {}, { lower.reshaped(target, { param.rows, param.cols }) }, {
        kind = init_kinds[init.kind], first = init.first, second = init.second,
        name_hash = core.hash_int(param.name), row_first = param.row_first,
        col_first = param.col_first, cols_full = param.full_cols,
      }, o)
      if own.master then self:emit("cast", { own.master }, { own.weight }, {}, o) end
      for _, name in ipairs { "m", "v" } do
        if own[name] and not param.expert then
          self:emit("fill", {}, { own[name] }, { value = 0 }, o)
        end
      end
    end
  end
end

--- The sum over pipeline ranks of slots that one of them filled and the others left at +0: exact in
--- any order, and for any number of ranks.
local function spread(self, v, o)
  if self.pp == 1 then return end
  local count = flat(v).shape[1]
  local all = self:make(v.dtype, { self.pp, count }, "state", "of all stages")
  local whole, gathered = flat(v), lower.reshaped(all, { self.pp * count })
  self:emit("all_gather", { whole }, { gathered }, { group = "pp", outer = 1 }, o)
  for rank = 0, self.pp - 1 do
    local part = lower.reshaped(all, { count })
    part.offset = rank * count * 4
    if rank == 0 then self:emit("cast", { part }, { whole }, {}, o)
    else self:emit("binary", { whole, part }, { whole }, { kind = 0, broadcast = 0 }, o) end
  end
end

-- the count of targets and the loss ---------------------------------------------------------------

function finish.count(self, samples, source)
  local count = self:lasting("count", "i64", { 1 }, "state")
  local o = at("targets", "prologue", self.spec.model.site)
  self:emit("count_targets", {}, { count }, {
    samples = samples, length = self.l.length, source = source,
  }, o)
  if self.dp > 1 then self:emit("all_reduce_count", { count }, { count }, { group = "dp" }, o) end
end

function finish.loss(self, use)
  local o = at("loss", "finish", self.spec.model.site)
  local loss = self:lasting("loss", "f32", { 1 }, "state")
  local owner = self.chunk_of.head % self.pp
  if owner == self.rank then
    local inputs = { self:finish(use), self:lasting("count", "i64", { 1 }, "state") }
    self:emit("loss_finish", inputs, { loss }, {}, o)
    for peer = 0, self.pp - 1 do
      local attrs = { group = "pp", peer = peer, channel = 2 }
      if peer ~= owner then self:emit("send", { loss }, {}, attrs, o) end
    end
  else
    self:emit("recv", {}, { loss }, { group = "pp", peer = owner, channel = 2 }, o)
  end
  return loss
end

-- finished gradients
-- -------------------------------------------------------------------------------

local function add(self, a, b, use)
  local y = self:make("f32", flat(a).shape, "gradients", "sum of uses")
  self:emit("binary", { flat(a), flat(b) }, { y }, { kind = 0, broadcast = 0 }, at(use.path,
    "finish", use.site))
  return y
end

local total

--- The gradient of a value made of weights alone, in its dtype: made from its finished sum when it
--- is first asked for.
local function settled(self, shared, dy)
  local y = flat(self:at(dy, self.step_env))
  self.settled = self.settled or {}
  if dy.total_of and not self.settled[dy.total_of] then
    self.settled[dy.total_of] = true
    local uses = self.b.uses[dy.total_of]
    local sum = total(self, shared, uses[1].value, uses)
    self:emit("cast", { sum }, { y }, {}, at(uses[1].path, "finish", uses[1].site))
  end
  return y
end

--- The share of one use in a finished sum, in f32.
local function share(self, shared, use)
  if not use.total then return self:finish(use) end
  local part = settled(self, shared, use.total)
  if part.dtype == "f32" then return part end
  local y = self:make("f32", part.shape, "gradients", "gradient of a use")
  self:emit("cast", { part }, { y }, {}, at(use.path, "finish", use.site))
  return y
end

--- Sums of all uses of a value, in order of use, on every pipeline rank that holds it.
function total(self, shared, value, uses)
  local named = value.param or value.stack and value.stack.params[1]
  local ranks = named and shared.holders[named.name].ranks
  local sum
  for _, use in ipairs(uses) do
    local owner = self.chunk_of[use.layer] % self.pp
    local part = owner == self.rank and share(self, shared, use) or nil
    if ranks and #ranks > 1 then
      for _, peer in ipairs(ranks) do
        local o = at(use.path, "finish", use.site)
        if peer ~= owner and owner == self.rank then
          self:emit("send", { part }, {}, { group = "pp", peer = peer, channel = 2 }, o)
        elseif peer ~= owner and peer == self.rank then
          part = self:make("f32", { use.value.rows * use.value.cols }, "gradients",
            "use of another stage")
          self:emit("recv", {}, { part }, { group = "pp", peer = owner, channel = 2 }, o)
        end
      end
    end
    if part then sum = sum and add(self, sum, part, use) or part end
  end
  return sum
end

--- Gradients of values that were made of weights alone, from their finished sums.
local function epilogue(self, shared)
  for _, node in ipairs(self.b.step) do
    if self.chunk_of[node.layer] % self.pp == self.rank then
      for _, input in ipairs(node.inputs) do
        if input.total_of then settled(self, shared, input) end
      end
      self:node(node, self.step_env, "finish")
    end
  end
end

-- norm, clip, update
-- -------------------------------------------------------------------------------

--- Slots of the squared sums: 16 or leaves.tp floats per tensor, in bytewise order of names.
local function slot_table(self)
  local list = {}
  for _, param in ipairs(self.l.params) do
    if not param.fields.frozen then list[#list + 1] = param end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  local width = math.max(16, self.l.n)
  return list, width
end

local function square(self, shared, param, gradient, slot)
  local t, n, ranks = self.l.t, self.l.n, shared.holders[param.name].ranks
  if ranks[1] ~= self.rank then return end
  if self.ep >= t then return end -- another rank of the ep group has the same
  local by_tp = require("tidelock.plan.stages.shard").by_tp
  local axis = param.axis or 0
  local whole = axis == 0 and param.full_rows or param.full_cols
  local extent = param.axis and whole // t or whole
  local first = axis == 0 and param.row_first or param.col_first
  local parts = param.axis and n // t or 1
  local attrs = {
    axis = axis, extent = extent,
    begin = by_tp(t, function(r)
      if not param.axis then return 0 end
      return r * extent - (type(first) == "table" and first[r + 1] or first)
    end),
    parts = param.axis and parts or by_tp(t, function(r) return r == 0 and 1 or 0 end),
    slot_first = param.axis and by_tp(t, function(r) return r * parts end) or 0,
  }
  self:emit("square_sum", { lower.reshaped(gradient, { param.rows, param.cols }) }, { slot }, attrs,
    at(param.name, "norm", param.weight.site))
end

--- Squares of all experts of a stack at once, whose gradients lie one after the other.
local function square_stack(self, shared, stack, slots, index, width)
  local places, one = {}, nil
  for i = 1, stack.slots do places[i] = -1 end
  for _, param in ipairs(stack.params) do
    if param.expert.owner == self.ep and index[param.name]
        and shared.holders[param.name].ranks[1] == self.rank then
      places[param.expert.slot + 1], one = (index[param.name] - 1) * width, param
    end
  end
  if not one then return end
  self:emit("square_sum_rows", { lower.reshaped(self.totals[stack.value], { stack.slots,
    stack.stride }) }, { slots }, { places = places }, at(stack.name, "norm", one.weight.site))
end

--- One sum of squares for each weight, or for each stack of experts.
local function square_all(self, shared, gradients, list, slots, width)
  local index, seen = {}, {}
  for i, param in ipairs(list) do
    index[param.name] = gradients[param.name] and i or nil
  end
  for i, param in ipairs(list) do
    local stack = param.expert and param.expert.stack
    if stack and not seen[stack] then
      seen[stack] = true
      square_stack(self, shared, stack, slots, index, width)
    elseif not stack and gradients[param.name] then
      square(self, shared, param, gradients[param.name], {
        buffer = slots.buffer, dtype = "f32", shape = { width }, offset = (i - 1) * width * 4,
      })
    end
  end
end

local function norm(self, shared, gradients, loss)
  local list, width = slot_table(self)
  local o = at("gradient norm", "norm", self.spec.model.site)
  local slots = self:make("f32", { #list * width }, "state", "squared sums")
  local counts = {}
  self:emit("fill", {}, { slots }, { value = 0 }, o)
  for i in ipairs(list) do counts[i] = width end
  square_all(self, shared, gradients, list, slots, width)
  local ep = self.spec.layout.ep > 1
  if self.l.t > 1 or ep then
    self:emit("all_reduce", { slots }, { slots }, { group = ep and "ep" or "tp" }, o)
  end
  spread(self, slots, o)
  local value = self:lasting("grad norm", "f32", { 1 }, "state")
  local control = self:lasting("control", "f32", { 2 }, "state")
  self:emit("grad_norm", { slots, self:lasting("count", "i64", { 1 }, "state"), loss },
    { value, control },
    { counts = counts, clip = self.spec.train.clip or 0 }, o)
  return control
end

local function update(self, own, gradient, fields, control, o)
  local optimizer = self.spec.train.optimizer
  self:emit("adamw", { lower.reshaped(gradient, own.weight.shape), control }, { own.weight, own.m,
    own.v, own.master }, {
    scalar_first = 0, beta1 = optimizer.beta1, beta2 = optimizer.beta2, eps = optimizer.eps,
    decay = fields.decay, lr_scale = fields.lr_scale,
  }, o)
end

--- Updates all experts of a stack at once; false where their rules differ. Elements do not see each
--- other, and what is between experts stays +0: a gradient of +0, over eps.
local function update_stack(self, stack, gradients, control)
  local first
  for _, param in ipairs(stack.params) do
    local here, fields = param.expert.owner == self.ep, param.fields
    first = first or here and param
    if here and (not gradients[param.name] or fields.decay ~= first.fields.decay
        or fields.lr_scale ~= first.fields.lr_scale) then
      return false
    end
  end
  if self.spec.train.optimizer.eps <= 0 then return false end
  local own = { weight = moe.stack(self, stack, "weight", stack.dtype),
    m = moe.stack(self, stack, "m", "f32"), v = moe.stack(self, stack, "v", "f32"),
    master = stack.dtype ~= "f32" and moe.stack(self, stack, "master", "f32") or nil }
  update(self, own, self.totals[stack.value], first.fields, control, at(stack.name, "update",
    first.weight.site))
  return true
end

--- One update for each weight, or for each stack of experts.
local function update_all(self, gradients, control)
  local stacks = {}
  for _, param in ipairs(self.l.params) do
    local stack = param.expert and param.expert.stack
    if gradients[param.name] then
      if stack and stacks[stack] == nil then
        stacks[stack] = update_stack(self, stack, gradients, control)
      end
      if not (stack and stacks[stack]) then
        update(self, state(self, param), gradients[param.name], param.fields, control,
          at(param.name, "update", param.weight.site))
      end
    end
  end
end

--- The finished gradient of a weight; of an expert's its part of the stack's.
local function gradient_of(self, shared, param)
  if not param.expert then
    return total(self, shared, param.value, self.b.uses[param.value.id])
  end
  local value = param.expert.stack.value
  self.totals = self.totals or {}
  self.totals[value] = self.totals[value] or total(self, shared, value, self.b.uses[value.id])
  return moe.gradient(param, self.totals[value])
end

--- Everything after the last micro-batch.
function finish.step(self, shared)
  local loss = finish.loss(self, self.b.loss_use)
  epilogue(self, shared)
  moe.step(self)
  local gradients = {}
  for _, param in ipairs(self.l.params) do
    if held(self, shared, param) and not param.fields.frozen then
      gradients[param.name] = gradient_of(self, shared, param)
      if not param.expert then gradients[param.name].buffer.final = param end
      self:keep(param.name .. ".grad", gradients[param.name], { value = param.value,
        param = param })
    end
  end
  local updates = after.values(self, shared)
  local control = norm(self, shared, gradients, loss)
  update_all(self, gradients, control)
  after.set(self, updates, control)
end

return finish
