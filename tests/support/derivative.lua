--- The slope of the loss along a direction of a weight: central differences of the runtime.
---
--- A run that never steps: its learning rate is 0, its weights are written before each evaluation.
local core = require "tidelock.core"
local models = require "support.models"
local states = require "tidelock.model.states"
local support = require "support"
local warm = require "tidelock.run.warm"

local derivative = {}

--- The states of a run as they are now: { param, tensor }.
local function states_of(run)
  local list = {}
  for _, weight in ipairs(run:weights()) do
    if weight.param.weight.kind == "state" then
      list[#list + 1] = { weight.param, run:weight(weight.name) }
    end
  end
  return list
end

--- Loss of the first step with the weights as they are. It sets states, which are then put back.
local function loss(run)
  local kept = states_of(run)
  local scalars = states.scalars(run.plan.graph, 1, { 0, 1, 1 })
  local result = run.ranks:run("step", { step = 0, scalars = scalars }).loss
  for _, state in ipairs(kept) do warm.set(run, state[1], state[2]) end
  return result
end

--- d = g / |g| + random signs / sqrt(n): sees a wrong size, and a part that is missing or too much.
local function direction_of(gradient, stream)
  local sum, d = 0, {}
  for _, x in ipairs(gradient) do sum = sum + x * x end
  local size, n = math.sqrt(sum), #gradient
  for i, x in ipairs(gradient) do
    local sign = support.fill_value(stream, i) < 0 and -1 or 1
    d[i] = (size > 0 and x / size or 0) + sign / math.sqrt(n)
  end
  return d, size
end

local function moved(weight, d, step)
  local list = {}
  for i, x in ipairs(weight) do list[i] = x + step * d[i] end
  return list
end

--- The gradient of all weights of a model that agrees worst with its slope: { name, slope,
--- expected, size, ratio }. A ratio of 1 is 2 % of the gradient's size and what rounding of the
--- loss may do.
function derivative.worst(options)
  local run <close> = models.start(models.with(options, { clip = 1e9 }), { keep = { "*.grad" } })
  loss(run)
  local gradients, worst = {}, { ratio = 0 }
  for _, entry in ipairs(run:weights()) do
    if not entry.param.fields.frozen then
      gradients[entry.name] = run:kept(entry.name .. ".grad"):flat()
    end
  end
  for i, entry in ipairs(run:weights()) do
    local gradient = gradients[entry.name]
    if gradient then
      local shape = { entry.param.weight.rows, entry.param.weight.cols }
      local weight = run:weight(entry.name):flat()
      local d, size = direction_of(gradient, 100 + i)
      local step, slope = math.min(4e-3 / math.max(size, 1e-9), 0.02), 0
      for _, side in ipairs { 1, -1 } do
        warm.set(run, entry.param, core.tensor("f32", shape, moved(weight, d, side * step)))
        slope = slope + side * loss(run) / (2 * step)
      end
      warm.set(run, entry.param, core.tensor("f32", shape, weight))
      local expected = 0
      for k, x in ipairs(gradient) do expected = expected + x * d[k] end
      local allowed = 0.02 * size + 1e-6 / step
      local ratio = math.abs(slope - expected) / allowed
      if ratio >= worst.ratio then
        worst = { name = entry.name, slope = slope, expected = expected, size = size }
        worst.ratio = ratio
      end
    end
  end
  return worst
end

return derivative
