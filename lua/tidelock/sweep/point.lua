--- sweep/point.lua - one point of a sweep, planned and measured in a process of its own.
--
--   plan -> start -> warm up -> time the other steps -> hash        and all again, --repeat times
--
-- The result is a row: what the point is, and `status` "ok", "planned" (no steps wanted),
-- "refused" (recipe or layout) or "failed", the latter two with `reason`. Repeats must agree in
-- every bit. The median is over the timed steps of all repeats, the spread half the distance of
-- their quartiles, as a share of the median.

local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local flops = require "tidelock.forecast.flops"
local planner = require "tidelock.plan"
local records = require "tidelock.bench.records"
local screen = require "tidelock.text.screen"
local schedules = require "tidelock.plan.schedules"
local summary = require "tidelock.plan.summary"

local sweep_point = {}

local peak_seconds = 0.05
local warm_most = 2

--- Value of `list` at the share `at` of its order, between neighbours in proportion.
local function quantile(list, at)
  local place = 1 + (#list - 1) * at
  local low = math.floor(place)
  local rest = place - low
  return rest > 0 and list[low] + rest * (list[low + 1] - list[low]) or list[low]
end

--- The middle of `list`, and half of the middle half's width as a share of it (nil for one value).
function sweep_point.middle(list)
  local sorted = table.move(list, 1, #list, 1, {})
  table.sort(sorted)
  local middle = quantile(sorted, 0.5)
  if #sorted < 2 then return middle end
  return middle, (quantile(sorted, 0.75) - quantile(sorted, 0.25)) / 2 / middle
end

--- How many steps a run of the point takes, and how many of them are warm-up.
function sweep_point.steps(spec, wanted)
  local steps = math.min(spec.train.steps, wanted)
  return steps, math.min(warm_most, steps - 1)
end

--- What a plan alone says.
local function describe(row, plan)
  local spec, layout = plan.spec, plan.spec.layout
  local numbers = plan.summary or summary.of(plan)
  row.ranks, row.planned_bytes = numbers.ranks, numbers.planned_bytes
  row.rank_bytes, row.bubble = numbers.rank_bytes, numbers.bubble
  row.layout = screen.layout_text(layout)
  if row.layout == "" then row.layout = "one rank" end
  row.dtype, row.device = spec.dtype, spec.device
  row.tokens = spec.batch.samples * spec.batch.length
  row.work = flops.of_step(plan.graph, spec.batch)
  if layout.pp > 1 and type(layout.schedule) == "string" then
    row.schedule = {
      name = layout.schedule, pp = layout.pp, micros = plan.micros,
      virtual_stages = schedules.virtual_stages(layout),
    }
  end
end

--- Shares of a step, one more: what rank 0 spends on messages and on waiting for them, and the part
--- of it that nothing hides.
local function communication(run)
  local list, wall, _, exposed = records.of(run, 1)
  local seconds = 0
  for _, one in ipairs(list) do seconds = seconds + (one.talks and one.seconds or 0) end
  return seconds / wall, math.min(exposed, seconds) / wall -- sums of the same, in another order
end

--- One run from the start. Adds the timed steps to `times`; returns what must repeat.
local function measure(recipe, row, options, times)
  local run <close> = driver.start(recipe, {
    threads = options.threads,
    planned = function(plan)
      describe(row, plan)
      row.peak = row.peak
        or flops.measure_peak(plan.spec.dtype, peak_seconds, options.threads, plan.spec.device)
    end,
  })
  local steps, warm = sweep_point.steps(run.spec, options.steps)
  local losses, words = {}, {}
  row.started = true
  for i = 1, steps do
    local step = run:step()
    if i > warm then times[#times + 1] = step.ms end
    losses[i] = step.loss
    words[i] = screen.bits(step.loss_bits) .. " " .. screen.bits(step.grad_norm_bits)
    row.loss, row.loss_bits = step.loss, screen.bits(step.loss_bits)
    row.experts = step.experts
  end
  local memory = run:memory()
  row.peak_bytes, row.beside_bytes = memory.peak_bytes, memory.beside_bytes
  row.steps, row.warm, row.losses = steps, warm, losses
  row.weights_hash = run:weights_hash()
  if row.ranks > 1 then row.comm, row.exposed = communication(run) end
  return core.hash(table.concat(words, "\n") .. "\n" .. row.weights_hash)
end

--- All repeats.
local function measure_all(recipe, row, options)
  local times = {}
  for i = 1, options.repeats do
    local bits = measure(recipe, row, options, times)
    if row.bits and row.bits ~= bits then
      error(("repeat %d has other bits than the first: %s, not %s"):format(i, bits, row.bits), 0)
    end
    row.bits = bits
  end
  row.ms, row.spread = sweep_point.middle(times)
  row.ms_steps = times
  row.tokens_per_s = row.tokens / (row.ms / 1000)
  row.mfu = row.work / (row.ms / 1000) / row.peak
  row.status = "ok"
end

--- What was raised, as a status and a message on one line. Before the first step it is the recipe,
--- the layout or the data that cannot be, unless the message begins with a place in our own files.
local function refusal(problem, started)
  local text = type(problem) == "table" and problem.message or tostring(problem)
  local refused = not started and not text:find "tidelock/[%w_/]+%.lua:%d+:"
  text = text:gsub("%s*%d+ errors?; nothing was started%s*$", ""):gsub("%s*\n%s*", "; ")
  return refused and "refused" or "failed", text
end
sweep_point.refusal = refusal

--- Measures (or only plans, with options.steps 0) a point; never raises.
---@param recipe tidelock.Recipe
---@param options { steps: integer, repeats: integer, threads: integer? }
---@return table row
function sweep_point.row(recipe, options)
  local row, begin = {}, core.files.seconds()
  local good, problem = pcall(function()
    if options.steps > 0 then return measure_all(recipe, row, options) end
    describe(row, planner(recipe))
    row.status = "planned"
  end)
  if not good then
    local status, reason = refusal(problem, row.started)
    row = { status = status, reason = reason }
  end
  row.started = nil
  row.seconds = core.files.seconds() - begin
  return row
end

return sweep_point
