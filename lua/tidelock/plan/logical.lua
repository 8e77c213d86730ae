--- logical.lua - what the outputs of a program are in the whole run, whatever the layout.
---
---     rank 0 of tp 2   instruction 40 attention -> rows 0 .. 255, columns 0 .. 63 of
---                      layers.1.attention.o, micro-batch 0
---
--- Every output has a key. Outputs with one key are shares of one logical tensor: those that lie at
--- different places add up, those at one place are copies and must agree. What has no layout-free
--- meaning (partial sums on their way, accumulators) is `own`: it can be compared between runs of
--- one layout only.
---
--- `phase` and `order` put outputs in an order in which causes come before effects.
local core = require "tidelock.core"
local emit = require "tidelock.plan.stages.emit"

local logical = {}

logical.phases = {
  init = 0, prologue = 1, data = 2, forward = 3, loss = 4, backward = 5, sums = 6, finish = 7,
  norm = 8, update = 9,
}

--- Logical tensors up to this size are hashed whole, also where others are sampled.
logical.sampled_above = 4096

---@class tidelock.Output # one output of one instruction
---@field instruction integer # from 1
---@field position integer # from 1
---@field key string
---@field own boolean
---@field phase integer
---@field order integer
---@field micro integer
---@field rows integer # of the share: rows by cols elements, `pitch` apart in memory
---@field cols integer
---@field pitch integer
---@field row_first integer # in the logical tensor
---@field piece_rows integer
---@field piece_stride integer
---@field col_first integer
---@field cols_full integer
---@field rows_full integer
---@field rows_per_sample integer

local function real(value)
  while value.alias do value = value.alias end
  return value
end

local function count_of(shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return count
end

-- names -----------------------------------------------------------------------------------------

--- "path.op", or "path.op#2" for the second of that name.
local function numbered(used, base)
  used[base] = (used[base] or 0) + 1
  return used[base] == 1 and base or base .. "#" .. used[base]
end

--- Where a node stands in the model; what follows the layers has no path.
local function place_of(node) return node.path ~= "" and node.path or "head" end

--- Names of the values of the forward pass that are in the model's graph, so that they do not
--- depend on the layout; then of those that the operators add.
local function forward_names(plan)
  local l, names, used, op_of = plan["local"], {}, {}, {}
  for _, node in ipairs(plan.graph.nodes) do
    for _, y in ipairs(node.outputs) do op_of[y.id] = node.op end
  end
  for _, value in ipairs(l.values) do
    if value.input then names[value.id] = value.input
    elseif value.param then names[value.id] = value.param.name end
  end
  for _, in_graph in ipairs { true, false } do
    for _, node in ipairs(l.nodes) do
      for _, output in ipairs(node.outputs) do
        local y = real(output) -- what a node writes and a collective then changes is one value
        if (y.of ~= nil) == in_graph and not names[y.id] then
          local base = place_of(node) .. "." .. (op_of[y.of] or y.name or node.op)
          if in_graph and y.name then base = y.name end
          if node.op == "gather" or node.op == "spread" then base = base .. " gathered" end
          names[y.id] = numbered(used, base)
        end
      end
    end
  end
  return names
end

--- "x.grad from PATH": the gradient that the node at PATH gives to x.
local function backward_names(plan, names, pending)
  local used, values = {}, plan.backward.values
  local function name_of(value)
    value = real(value)
    if not names[value.id] and value.gradient_of then
      return name_of(values[value.gradient_of]) .. ".grad"
    end
    return names[value.id] or "value"
  end
  for _, nodes in ipairs { plan.backward.nodes, plan.backward.step } do
    for _, node in ipairs(nodes) do
      for _, y in ipairs(node.outputs) do
        local root = (pending[y.id] or "tp") ~= "tp" -- of ranks that share a KV head
        if not names[y.id] and not y.alias and y.region ~= "partial" and not root then
          local x = y.gradient_of and values[y.gradient_of]
          local base = x and name_of(x) .. ".grad" or place_of(node) .. "." .. node.op
          if node.op == "gather" then base = base .. " gathered" end
          names[y.id] = numbered(used, ("%s from %s (%s)"):format(base, place_of(node), y.dtype))
        end
      end
    end
  end
end

--- Values whose sum or maximum over ranks is still to come: what an operator writes there is a
--- share that no layout-free name fits.
local function pending_of(plan)
  local pending = {}
  for _, nodes in ipairs { plan["local"].nodes, plan.backward.nodes } do
    for _, node in ipairs(nodes) do
      if node.op == "all_reduce" or node.op == "all_reduce_max" then
        pending[real(node.inputs[1]).id] = node.group_name or "tp"
      end
    end
  end
  return pending
end

-- places ----------------------------------------------------------------------------------------

--- Elements of a value beside its tokens, over all ranks.
local function full_cols(plan, value)
  while value.gradient_of do value = plan.backward.values[value.gradient_of] end
  local global = value.of and plan.graph.values[value.of]
  if not global then return value.cols end
  local count = 1
  for _, dim in ipairs(global.dims) do
    if dim.name ~= "tokens" then count = count * (dim.padded or dim.size) end
  end
  return count
end

local function replicas_of(plan, value)
  while value.gradient_of do value = plan.backward.values[value.gradient_of] end
  return value.replicas or 1
end

--- A value with tokens: its rows of the global batch, its share of the columns.
local function token_place(self, value, micro, whole)
  local l, spec = self.plan["local"], self.plan.spec
  local split = value.region == "trunk" and l.sp
  local full = whole and value.cols or full_cols(self.plan, value)
  local first = micro * l.samples * l.length
  local place = {
    rows = value.rows, cols = value.cols, row_first = first, piece_rows = value.rows,
    piece_stride = value.rows, col_first = 0, cols_full = full, rows_per_sample = l.length,
    rows_full = spec.batch.samples * l.length,
  }
  if split then
    place.piece_rows, place.piece_stride = l.length // l.t, l.length
    place.row_first = first + self.tp * place.piece_rows
  end
  if full > value.cols then
    place.col_first = self.tp // replicas_of(self.plan, value) * value.cols
  end
  return place
end

local function param_place(self, param)
  local row_first = emit.resolve(param.row_first, self.tp)
  return {
    rows = math.max(0, math.min(param.rows, param.weight.rows - row_first)), cols = param.cols,
    row_first = row_first, col_first = emit.resolve(param.col_first, self.tp),
    cols_full = param.full_cols, rows_full = param.weight.rows,
  }
end

--- A value without tokens: whole on every rank, or one share a rank where its dim is cut.
local function step_place(self, value)
  local size = 1
  for _, dim in ipairs(value.global.dims) do size = size * dim.size end
  local cut = value.rows < size
  local first = cut and self.tp // value.replicas * value.rows or 0
  return {
    rows = math.max(0, math.min(value.rows, size - first)), cols = 1, row_first = first,
    cols_full = 1, rows_full = size,
  }
end

local function whole_place(v)
  local rows = v.shape[1]
  local cols = count_of(v.shape) // math.max(1, rows)
  return { rows = rows, cols = math.max(1, cols), cols_full = math.max(1, cols), rows_full = rows }
end

-- outputs ---------------------------------------------------------------------------------------

--- Regions whose shares have a place in the whole tensor. Rows of experts hang on the routing.
local placed = { trunk = true, heads = true, loss = true, step = true }

--- Key and place of an output; no key where it is the rank's own.
local function describe(self, made, i, v)
  local buffer, layout = v.buffer, self.plan.spec.layout
  local known = buffer.persistent and self.persistent[buffer]
  if known == false then return nil end
  if known and known.param then return known.key, param_place(self, known.param) end
  if known then
    if made.op == "count_targets" and layout.dp > 1 then return nil end
    return known.key, whole_place(v)
  end
  if buffer.final and self.last_write[buffer] == i then
    return buffer.final.name .. ".grad", param_place(self, buffer.final)
  end
  local value = buffer.value
  if not value or not placed[value.region] or value.input == "cu" then return nil end
  local group, reduces = self.pending[value.id], made.op:find "^all_reduce" ~= nil
  if group and not (reduces and group == "tp") then return nil end
  if value.region == "step" then
    if not value.global then return nil end
    return self.names[value.id], step_place(self, value)
  end
  local whole = made.op == "all_gather"
  return self.names[value.id], token_place(self, value, buffer.micro, whole)
end

--- Where the output stands in the order of causes.
local function order_of(made, i, v)
  local value, phase = v.buffer.value, made.phase
  if made.path == "data" then return logical.phases.data, 0 end
  if phase == "forward" or phase == "loss" or phase == "backward" then
    if value and v.buffer.kind ~= "gradients" then
      return logical.phases[phase], value.id
    end
    return logical.phases.sums, i
  end
  return logical.phases[phase] or logical.phases.finish, i
end

local function output_of(self, made, i, k, v)
  local key, place = describe(self, made, i, v)
  local own = key == nil
  if own then
    key, place = ("%s of %s"):format(made.op, made.path and place_of(made) or "?"), whole_place(v)
  end
  local phase, order = order_of(made, i, v)
  return {
    instruction = i, position = k, key = key, own = own, phase = phase, order = order,
    micro = made.micro, rows = place.rows, cols = place.cols, pitch = place.cols,
    row_first = place.row_first or 0, piece_rows = math.max(1, place.piece_rows or place.rows),
    piece_stride = math.max(1, place.piece_stride or place.rows), col_first = place.col_first or 0,
    cols_full = place.cols_full, rows_full = place.rows_full,
    rows_per_sample = place.rows_per_sample or 0,
  }
end

--- The names of persistent buffers, and the weights whose parts they are.
local function persistent_names(plan, rank)
  local params, list = {}, {}
  for _, param in ipairs(plan["local"].params) do
    for arena, prefix in pairs {
      ["weight "] = "", ["m "] = "m.", ["v "] = "v.", ["master "] = "master.",
    } do params[arena .. param.name] = { key = prefix .. param.name, param = param } end
  end
  local shared = {} -- buffers that hold several: the weights of experts
  for key, v in pairs(rank.persistent) do
    shared[v.buffer] = list[v.buffer] ~= nil
    list[v.buffer] = params[key] or { key = key == "loss" and "mean loss" or key }
  end
  for buffer, several in pairs(shared) do
    if several then list[buffer] = false end
  end
  return list
end

local function last_writes(rank, instructions)
  local last, range = {}, rank.sections.step
  for i = range[1], range[1] + range[2] - 1 do
    local made = instructions[i]
    for k = 1, #made.outputs do last[made.outputs[k].buffer] = i end
  end
  return last
end

--- The instructions of a rank in the order of its program: lanes of a GPU have one of their own.
function logical.instructions(rank)
  if not rank.position then return rank.instructions end
  local list = {}
  for i, made in ipairs(rank.instructions) do list[rank.position[i]] = made end
  return list
end

--- Everything that the outputs of all programs share.
function logical.names(plan)
  local names, pending = forward_names(plan), pending_of(plan)
  backward_names(plan, names, pending)
  return { names = names, pending = pending }
end

--- The outputs of sections init and step, in the order of instructions.
---@param plan table # after the stage emit
---@param shared table # logical.names(plan)
---@param rank table # of plan.ranks: that of the program
---@param tp integer # coordinate of the program's ranks
---@return tidelock.Output[]
function logical.outputs(plan, shared, rank, tp)
  local instructions = logical.instructions(rank)
  local self = {
    plan = plan, tp = tp, names = shared.names, pending = shared.pending,
    persistent = persistent_names(plan, rank), last_write = last_writes(rank, instructions),
  }
  local list = {}
  for _, name in ipairs { "step", "init" } do
    local range = rank.sections[name]
    for i = range[1], range[1] + range[2] - 1 do
      local made = instructions[i]
      for k = 1, #made.outputs do
        local v = made.outputs[k]
        if v then list[#list + 1] = output_of(self, made, i, k, v) end
      end
    end
  end
  return list
end

--- The row of an output as ranks:trace takes it (runtime/bind/bind_trace.c).
---@param o tidelock.Output
---@param sampled boolean
function logical.row(o, sampled)
  local large = o.rows_full * o.cols_full > logical.sampled_above
  return {
    o.instruction, o.position, core.hash_int(o.key), o.rows, o.cols, o.pitch, o.row_first,
    o.piece_rows, o.piece_stride, o.col_first, o.cols_full, sampled and large and 1 or 0,
    o.rows_per_sample,
  }
end

return logical
