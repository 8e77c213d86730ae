--- estimate.lua - time and memory of a step in a layout, from what a model's layers cost: what
--- predict.lua says of a whole plan, without making the plan. Good to a tenth or so (the test says
--- how good), and a thousand times as quick.
---
---     stage     products / (tp speed) + attention + other bytes + launches     of a micro-batch
---     tp        gathers and sums of every branch, forward and backward, none hidden
---     dp, edp   two slices of the f32 gradients, once a step
---     pp        a border of activations each way; the bubble from the schedule's formula
---     ep        rows to their experts and back, twice; hidden behind products by waves
local cluster = require "tidelock.forecast.cluster"
local predict = require "tidelock.forecast.predict"

local estimate = {}

--- First and last layer of each stage: as even as can be, the head counted in layers.
local function stages_of(layers, pp)
  local count = #layers
  local per_layer, head = 0, layers.head.weights_cut + layers.head.weights_all
  for i = 1, count do
    per_layer = per_layer + layers[i].weights_cut + layers[i].weights_all
      + layers[i].weights_expert
  end
  local counts = require("tidelock.plan.stages.pipeline").balance(count, pp,
    pp > 1 and head / math.max(1, per_layer / count) or 0)
  local list, first = {}, 1
  for c = 1, pp do
    list[c] = { first, first + counts[c] - 1 }
    first = first + counts[c]
  end
  return list
end

--- Sums of the layers of a stage.
local function sum_of(layers, stage, first, last)
  local sum = { mixtures = {} }
  local function add(layer)
    for name, value in pairs(layer) do
      if type(value) == "number" then sum[name] = (sum[name] or 0) + value end
    end
    table.move(layer.mixtures, 1, #layer.mixtures, #sum.mixtures + 1, sum.mixtures)
  end
  for i = stage[1], stage[2] do add(layers[i]) end
  if first then add(layers.embed) end
  if last then add(layers.head) end
  return sum
end

--- Idle share of a pipeline: schedules.lua's formulas, all passes equal.
function estimate.bubble(schedule, pp, micros, virtual)
  if pp == 1 then return 0 end
  local idle = (pp - 1) / (schedule == "interleaved" and virtual or 1)
  if schedule == "zb-h1" then
    idle = (pp - 1) / 3 + math.max(0, pp - micros) / 3
  end
  return idle / (micros + idle)
end

--- Micro-batches whose activations are alive at once on the first stage.
local function alive(schedule, pp, micros)
  if schedule == "gpipe" then return micros end
  if schedule == "interleaved" then return math.min(micros, pp + 1) end
  return math.min(pp, micros)
end

--- Rows and products of experts of a stage in a micro-batch: seconds on links, and FLOP.
local function experts_of(sum, c, facts, tokens, width)
  local flop, seconds, bytes = 0, 0, 0
  for _, one in ipairs(sum.mixtures) do
    local own = tokens / c.tp -- a rank routes its run of every sample
    flop = flop + one.flop * own * (c.keep and 1 or 4 / 3) -- else forward once more
    local rows = own * one.top_k * (c.ep - 1) / c.ep
    local moved = (c.keep and 4 or 5) * rows * one.dim * width
    bytes = bytes + moved
    if c.ep > 1 then
      seconds = seconds + predict.message(facts, c.ep, moved)
        + 6 * c.waves * facts.latency * 1e-6
    end
  end
  return flop, seconds, bytes
end

--- Bytes of a rank of a stage.
local function memory_of(layers, sum, c, spec, tokens, stage)
  local width, leaves = layers.width, math.max(1, c.leaves_dp // c.dp)
  local own = sum.weights_cut / c.tp + sum.weights_all + sum.weights_expert / c.ep
  local whole = c.micro * leaves >= spec.batch.samples // c.dp -- a micro-batch has whole leaves
  local buffers = whole and math.max(1, math.log(c.micros, 2)) or 1 + math.log(leaves, 2)
  local live = math.max(1, alive(c.schedule, c.pp, c.micros) - stage + 1)
  local kept = (sum.kept_cut + sum.kept_all) / c.tp * tokens * live
  local rows = 0
  for _, one in ipairs(sum.mixtures) do -- the worst routing of a wave, two of them at once
    local slots = math.max(1, one.experts // c.ep // c.waves)
    local most = c.ep * tokens / c.tp * math.min(one.top_k, slots)
    local wave = most * (2 * one.dim + 3 * one.hidden) * width
    rows = math.max(rows, math.min(2, c.waves) * wave)
    if c.keep then kept = kept + c.waves * wave * live end
    kept = kept + tokens / c.tp * one.top_k * one.dim * width / #sum.mixtures
  end
  local masters = spec.dtype == "bf16" and 12 or 8
  return own * (width + masters) + own * 4 * buffers + kept + rows
end

--- Time and memory of a stage.
local function stage_of(layers, sum, c, spec, facts, stage)
  local width, tokens = layers.width, c.micro * spec.batch.length
  local launch = (facts.launch or 0) * 1e-6
  local flop, links, rows = experts_of(sum, c, facts, tokens, width)
  -- a third of the products have sums that are cut into leaves
  local leaves = math.max(1, spec.policy.leaves.tp // c.tp)
  local speed = cluster.products(facts, spec.dtype)
  local time = {
    matrix = flop * c.micros / speed + (sum.flop_cut + sum.flop_all) / c.tp * tokens * c.micros
      * (2 / 3 / speed + 1 / 3 / cluster.products(facts, spec.dtype, leaves)),
    attention = (sum.attention / cluster.attention(facts, 128) + sum.attention_64
      / cluster.attention(facts, 64)) / c.tp * tokens * c.micros * 7 / 6,
    bandwidth = (sum.bytes_cut / c.tp + sum.bytes_all / c.tp) * tokens * c.micros
      / (facts.bandwidth * 1e12),
    launch = 3.2 * sum.calls * c.micros * launch,
  }
  local own = sum.weights_cut / c.tp + sum.weights_all + sum.weights_expert / c.ep
  time.bandwidth = time.bandwidth + own * (28 + width) / (facts.bandwidth * 1e12)
  -- experts' gradients are summed in blocks of 8,192 tokens of all ranks of ep, each a call
  local blocks = math.max(1, c.ep * tokens / 8192) * c.micros
  time.bandwidth = time.bandwidth + sum.weights_expert / c.ep * 40 * blocks
    / (facts.bandwidth * 1e12)
  time.launch = time.launch + #sum.mixtures * (4.5 * blocks + 7 * c.micros) * c.waves * launch
  local axes = { tp = 0, dp = 0, pp = 0, ep = links * c.micros }
  local share = (c.tp - 1) / c.tp
  local columns = share * (sum.gathers + sum.reduces) * (width + 4) * tokens
  if c.tp > 1 then
    local one = predict.message(facts, c.tp, columns)
    axes.tp = c.micros * (one + 4 * sum.calls / 6 * facts.latency * 1e-6)
  end
  if c.dp > 1 then
    local dense = sum.weights_cut / c.tp + sum.weights_all
    local span = c.tp * c.dp
    axes.dp = predict.message(facts, span, 8 * dense * (c.dp - 1) / c.dp)
      + sum.calls * 0.8 * facts.latency * 1e-6
    local edp = c.tp * c.dp // c.ep
    if sum.weights_expert > 0 and edp > 1 then
      axes.dp = axes.dp + predict.message(facts, span, 8 * sum.weights_expert / c.ep * (edp - 1)
        / edp)
    end
  end
  if c.pp > 1 then
    axes.pp = 4 * c.micros * predict.message(facts, c.tp * c.dp * 2, tokens / c.tp * layers.dim
      * width)
  end
  local products = time.matrix
  local hidden = c.waves > 1 and math.min(axes.ep, flop * c.micros / speed) * (c.waves - 1)
    / c.waves or 0
  if spec.device == "cuda" then -- beside the backward pass of the last micro-batch
    hidden = hidden + math.min(axes.dp, (products + time.attention) * 2 / 3 / c.micros)
  end
  time.axes, time.hidden = axes, hidden
  time.exposed = axes.tp + axes.dp + axes.pp + axes.ep - hidden
  time.total = products + time.attention + time.bandwidth + time.launch + time.exposed
  time.bytes = memory_of(layers, sum, c, spec, tokens, stage)
  time.rows = rows * c.micros
  return time
end

--- The estimate of a candidate.
---@param layers table # of layer_costs.lua
---@param c table # tp, dp, pp, ep, micro, micros, schedule, virtual, waves, keep, leaves_dp
---@param spec table
---@param facts table
---@param work number # FLOP of a step
function estimate.of(layers, c, spec, facts, work)
  local slowest, bytes = nil, 0
  local own = predict.shared_facts(facts, c.tp * c.dp * c.pp)
  for stage, range in ipairs(stages_of(layers, c.pp)) do
    local time = stage_of(layers, sum_of(layers, range, stage == 1, stage == c.pp), c, spec, own,
      stage)
    bytes = math.max(bytes, time.bytes)
    if not slowest or time.total > slowest.total then slowest = time end
  end
  local bubble = estimate.bubble(c.schedule, c.pp, c.micros, c.virtual)
  local step = predict.step(facts, slowest.total, c.tp * c.dp * c.pp, bubble)
  local causes, bound = { bubble = step - slowest.total, exposed = slowest.exposed }, "matrix"
  for _, name in ipairs(predict.causes) do causes[name] = slowest[name] end
  for _, name in ipairs { "attention", "bandwidth", "launch", "exposed", "bubble" } do
    if causes[name] > causes[bound] then bound = name end
  end
  return {
    step_s = step, bytes = bytes, bubble = causes.bubble / step, causes = causes,
    axes = slowest.axes, bound = bound,
    tokens_per_s = spec.batch.samples * spec.batch.length / step,
    mfu = work / step / (own.matrix[spec.dtype] * 1e12 * c.tp * c.dp * c.pp),
  }
end

return estimate
