--- predict.lua - the time of a planned step on a cluster: every instruction gets a duration, and
--- the lanes of the program are run through with what they wait for.
---
---     work        [products][attention][bytes].........[products]   launch us each, and
---     messages         [all_gather over tp      ]                   FLOP / speed, bytes / speed
---                      |<--- hidden ---->|exposed|
---
--- Of the slowest pipeline rank, stretched by the pipeline's bubble. A group whose ranks lie in one
--- island uses its links, another the network. Ranks of a host that share its processors (`shared`)
--- divide its speeds.
local experts = require "tidelock.plan.experts"
local experts_plan = require "tidelock.forecast.experts_plan"
local grid = require "tidelock.plan.layout"
local logical = require "tidelock.plan.logical"
local work = require "tidelock.forecast.work"

local predict = {}

predict.causes = { "matrix", "attention", "bandwidth", "launch" }
predict.words = {
  matrix = "matrix products", attention = "attention", bandwidth = "other bytes",
  launch = "launches", exposed = "waiting for messages", bubble = "the pipeline's bubble",
}

local grouped = { grouped_linear = true, grouped_linear_grad_input = true,
  grouped_linear_grad_weight = true }

local function elements(v)
  local count = 1
  for _, size in ipairs(v.shape) do count = count * size end
  return count
end

--- Products of experts, if every expert had as many rows: share of the rows that there is room for.
local function grouped_flops(made, share)
  local rows, flops = made.inputs[1].shape[1] * share, 0
  local slots = made.op == "grouped_linear_grad_weight" and made.outputs[1].shape[1]
  if slots then -- of so many of the samples that the segments have
    local part = made.attrs.samples / (made.inputs[3].shape[2] - 1)
    return 2 * rows * part * elements(made.outputs[1]) / slots
  end
  for _, v in ipairs(made.inputs) do
    if v.buffer.kind == "weights" then flops = flops + 2 * rows * elements(v) / v.shape[1] end
  end
  return flops
end

--- Operands as work.lua takes them.
local function tensors(list)
  local out = {}
  for i = 1, #list do out[i] = list[i] and { list[i].dtype, list[i].shape } or false end
  return out
end

local flops_of = { linear = "matrix", linear_grad_input = "matrix", linear_grad_weight = "matrix",
  attention = "attention", attention_grad = "attention" }

--- What an instruction without a message takes: cause and seconds.
local function work_of(made, spec, facts, share)
  if grouped[made.op] then
    return "matrix", grouped_flops(made, share.full) / (facts.matrix[spec.dtype] * 1e12)
  end
  local cause, ins = flops_of[made.op], tensors(made.inputs)
  if cause then
    local rate = cause == "matrix" and facts.matrix[spec.dtype] or facts.attention
    local flop = work.flop(made.op, ins, made.attrs, spec.batch.length)
    if made.op == "attention_grad" then flop = flop * 1.25 end -- five products for two
    return cause, flop / (rate * 1e12)
  end
  local bytes = work.bytes(ins, tensors(made.outputs))
  return "bandwidth", bytes * (made.op:find "expert" and share.full or 1) / (facts.bandwidth * 1e12)
end

--- Ranks of a group by its name, and ranks from its first to its last.
local function span_of(layout, name)
  local strides, stride = {}, 1
  for _, axis in ipairs(grid.parse_order(layout.order, layout)) do
    strides[axis], stride = stride, stride * layout[axis]
  end
  local kv = tonumber(name:match "^kv(%d+)$")
  if kv then return kv, strides.tp * kv end
  if name == "ep" then return layout.ep, layout.ep end
  if name == "edp" then
    local size = layout.tp * layout.dp // layout.ep
    return size, layout.tp * layout.dp
  end
  return layout[name], strides[name] * layout[name]
end

--- Seconds and bytes of a message of `moved` bytes, and the kind of link.
function predict.message(facts, span, moved)
  local network = facts.island ~= nil and span > facts.island
  local speed = network and facts.network or facts.link
  return facts.latency * 1e-6 + moved / (speed * 1e9), network and "network" or "link"
end

local function message_of(made, name, layout, facts, share)
  local size, span = span_of(layout, name)
  local ins, outs = tensors(made.inputs), tensors(made.outputs)
  local moved = work.moved(made.op, ins, outs, size)
  if made.op == "exchange" then
    local shape = ins[1][2]
    moved = work.bytes_of(ins[1]) / shape[1] * share.rows * (size - 1) / size
  end
  if size == 1 then moved = 0 end
  local seconds, kind = predict.message(facts, span, moved or 0)
  return size > 1 and seconds or 0, moved or 0, kind
end

--- Adds a message to the traffic of its axis.
local function note(time, name, kind, moved, seconds)
  local one = time.axes[name]
  if not one then
    one = { name = name, bytes = 0, seconds = 0, exposed = 0, count = 0, link = kind }
    time.axes[name], time.axes[#time.axes + 1] = one, one
  end
  one.bytes, one.seconds, one.count = one.bytes + moved, one.seconds + seconds, one.count + 1
  return one
end

--- The program of a planned rank: that of its first tp coordinate.
local function program_of(plan, rank)
  local layout = plan.spec.layout
  local tp = layout.ep == 1 and 0 or rank.ep % layout.tp
  return plan.programs and plan.programs[experts.program_index(layout,
    { pp = rank.rank, tp = tp, dp = rank.ep // layout.tp })]
end

--- The lanes of one pipeline rank, run through.
local function run(plan, index, facts, share)
  local rank, spec = plan.ranks[index], plan.spec
  local list, program = logical.instructions(rank), program_of(plan, rank)
  local range, time = rank.sections.step, { axes = {}, exposed = 0, messages = 0 }
  for _, cause in ipairs(predict.causes) do time[cause] = 0 end
  local free, ends, axis_of = { [0] = 0 }, {}, {}
  for i = range[1], range[1] + range[2] - 1 do
    local made = list[i]
    local flat = program and program.instructions[i] or {}
    local lane, ready, blamed = flat.lane or 0, 0, nil
    for _, other in ipairs(flat.waits or {}) do
      if ends[other] > ready then ready, blamed = ends[other], axis_of[other] end
    end
    local start, seconds = math.max(free[lane] or 0, ready), facts.launch and facts.launch * 1e-6
      or 0
    if lane == 0 and ready > free[0] and blamed then
      blamed.exposed, time.exposed = blamed.exposed + ready - free[0], time.exposed + ready
        - free[0]
    end
    if made.attrs.group then
      local name = made.attrs.group
      local cost, moved, kind = message_of(made, name, spec.layout, facts, share)
      local one = note(time, name, kind, moved, cost)
      axis_of[i], time.messages, seconds = one, time.messages + cost, cost
      if lane == 0 then one.exposed, time.exposed = one.exposed + cost, time.exposed + cost end
    else
      local cause, cost = work_of(made, spec, facts, share)
      time.launch, time[cause] = time.launch + seconds, time[cause] + cost
      seconds = seconds + cost
    end
    ends[i] = start + seconds
    free[lane] = ends[i]
  end
  time.total = 0
  for _, at in pairs(free) do time.total = math.max(time.total, at) end
  time.exposed = math.max(0, time.total - time.matrix - time.attention - time.bandwidth
    - time.launch)
  return time
end

--- The facts of one of `ranks` ranks that share the processors of their host.
local function shared_facts(facts, ranks)
  if not facts.shared then return facts end
  local own, share = {}, math.max(1, ranks / facts.shared)
  for name, value in pairs(facts) do own[name] = value end
  own.matrix = { f32 = facts.matrix.f32 / share, bf16 = facts.matrix.bf16 / share }
  for _, name in ipairs { "attention", "bandwidth" } do own[name] = facts[name] / share end
  return own
end
predict.shared_facts = shared_facts

--- Seconds of a step: the slowest rank's, stretched by the bubble. Where more ranks than processors
--- share a host, those that wait leave theirs to others, so the bubble is filled as long as there
--- is other work.
---@param total number # seconds of the slowest rank when all ranks share
---@param ranks integer
function predict.step(facts, total, ranks, bubble)
  if not facts.shared or ranks <= facts.ranks then return total / (1 - bubble) end
  return math.max(total, total * facts.ranks / ranks / (1 - bubble))
end

--- The prediction.
---@param plan table # all stages
---@param facts table # of cluster.read
---@param bubble number # share of a pipeline's time that is idle
---@param work_flop number # of a step, all ranks
---@return { time: table, step_s: number, bound: string, tokens_per_s: number, mfu: number,
---  fits: boolean, bytes: integer, bubble: number } # time: of the slowest rank, without the
---  bubble, by cause; its axes: { name, bytes, seconds, exposed, count, link } each
function predict.of(plan, facts, bubble, work_flop)
  local layout = plan.spec.layout
  local ranks, most, slowest = layout.tp * layout.dp * layout.pp, 0, nil
  local own = shared_facts(facts, ranks)
  local share = { full = experts_plan.share(plan), rows = experts_plan.wave_rows(plan) }
  for index = 1, #plan.ranks do
    local time = run(plan, index, own, share)
    if not slowest or time.total > slowest.total then slowest = time end
  end
  for _, place in ipairs(plan.places) do most = math.max(most, place.bytes) end
  local step = predict.step(facts, slowest.total, ranks, bubble)
  local causes, bound = { exposed = slowest.exposed, bubble = step - slowest.total }, "matrix"
  for _, name in ipairs(predict.causes) do causes[name] = slowest[name] end
  for _, name in ipairs { "attention", "bandwidth", "launch", "exposed", "bubble" } do
    if causes[name] > causes[bound] then bound = name end
  end
  local peak = own.matrix[plan.spec.dtype] * 1e12 * ranks
  return {
    time = slowest, step_s = step, bound = predict.words[bound], bubble = step - slowest.total,
    tokens_per_s = plan.spec.batch.samples * plan.spec.batch.length / step,
    mfu = (work_flop or 0) / step / peak, fits = most <= facts.memory * 2 ^ 30, bytes = most,
  }
end

return predict
