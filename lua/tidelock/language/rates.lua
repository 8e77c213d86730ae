--- Learning rates: one f32 for each step, from 1.
--
--     constant              warm-up, then value
--     cosine                warm-up, then floor + (peak - floor) (1 + cos(pi p)) / 2, p = 0 .. 1
--     warmup_stable_decay   warm-up, peak, then a line down to floor over the last `decay` steps
--     function(step)        called once for each step when the recipe is planned
--
--     warm-up: peak * step / warmup while step <= warmup. It is not clipped to the run: a run of 10
--     steps with warmup 100 ends at a tenth of the peak.
--
-- Steps are IEEE f64 with one rounding to f32 at the end; cos is the one of numbers.lua.
local core = require "tidelock.core"
local numbers = require "tidelock.language.numbers"
local types = require "tidelock.language.types"
local where = require "tidelock.language.where"

local rates = {}

local at = {}

function at.constant(lr, step)
  if step <= lr.warmup then return lr.value * step / lr.warmup end
  return lr.value
end

function at.cosine(lr, step)
  if step <= lr.warmup then return lr.peak * step / lr.warmup end
  if step >= lr.steps then return lr.floor end
  local part = (step - lr.warmup) / (lr.steps - lr.warmup)
  return lr.floor + (lr.peak - lr.floor) * (0.5 * (1.0 + numbers.cos(math.pi * part)))
end

function at.warmup_stable_decay(lr, step)
  if step <= lr.warmup then return lr.peak * step / lr.warmup end
  local start = lr.steps - lr.decay
  if step <= start then return lr.peak end
  if step >= lr.steps then return lr.floor end
  return lr.peak + (lr.floor - lr.peak) * ((step - start) / lr.decay)
end

at["function"] = function(lr, step) return lr.values[math.min(step, #lr.values)] end

--- The learning rate of step `step` (from 1), in f32.
function rates.at(lr, step) return core.f32(at[lr.name](lr, step)) end

rates.steps_max = 1 << 24 -- the key takes microseconds for each

--- Calls a function of the step for steps 1 .. count under the recipe's limits; nil when it fails.
local function tabulate(call, count, context, report)
  local values = {}
  local good, message = where.run(context, function()
    for step = 1, count do
      context.lines = 0 -- the limit is for one step
      local value = call(step)
      if type(value) ~= "number" or value ~= value or value < 0 or value == math.huge then
        report("train.lr", "gave %s for step %d; expected a number, 0 or more", tostring(value),
          step)
        return
      end
      values[step] = numbers.f32(value)
    end
  end)
  if not good then report("train.lr", "%s", types.raised(message)) end
  return #values == count and values or nil
end

--- Whether everything that rates.at needs was given rightly.
local function is_complete(lr)
  if lr.name == "constant" then return lr.value ~= nil end
  return lr.peak ~= nil and (lr.name == "cosine" or lr.decay ~= nil)
end

--- The learning rate of a checked section "train", ready for rates.at; nil when something is
--- wrong.
function rates.resolve(train, context, report)
  local lr = train.lr
  if not lr or not train.steps then return nil end
  if train.steps > rates.steps_max then
    report("train.steps", "steps %d is above %d, the most whose learning rates the key of a run "
      .. "can list; try steps = %d, and --stop-at N ends it earlier", train.steps, rates.steps_max,
      rates.steps_max)
    return nil
  end
  if lr.name == "function" then
    if train.warmup then
      report("train.warmup", "lr is a function of the step, which has no warm-up but its own; "
        .. "write it there")
    end
    local values = tabulate(lr.call, train.steps, context, report)
    return values and { name = "function", values = values }
  end
  local resolved = {}
  for key, value in pairs(lr) do resolved[key] = value end
  if lr.name == "constant" then
    resolved.warmup = train.warmup or lr.warmup
  else
    resolved.steps = lr.steps or train.steps
    if train.warmup then
      report("train.warmup", "lr = { %q, .. } has a warmup of its own; write it there", lr.name)
    end
  end
  if lr.peak and lr.floor > lr.peak then
    report("train.lr.floor", "floor %.7g is above peak %.7g", lr.floor, lr.peak)
  end
  return is_complete(lr) and resolved or nil
end

return rates
