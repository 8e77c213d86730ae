--- saved.lua - what two runs of unequal length kept at the same steps, for `./tl diff`.
---
---     a   step-2  step-4  step-6  end 7        both: 2, 4      compared by the hashes that were
---     b   step-2  step-4  end 5                alone: 6, 7 of a; 5 of b         noted when saved
---
--- A run has a hash of its weights after its last step, and of weights and optimizer in each of its
--- checkpoints.
local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local fit = require "tidelock.text.fit"
local screen = require "tidelock.text.screen"

local saved = {}

--- Where a run has its checkpoints.
local function folder_of(side)
  local own = ("\n" .. side.fields):match '\ntrain%.save[^\n]-%f[%w]dir = "([^"\n]*)"'
  return own or side.run .. "/checkpoints"
end

--- What is known of a side's state by step: { weights, optimizer? }.
---@param side tidelock.Side
---@return table<integer, { weights: string, optimizer?: string }>
local function states_of(side)
  local states = {}
  if not side.run then return states end
  states[side.last] = side.weights and { weights = side.weights }
  local dir = folder_of(side)
  for _, step in ipairs(checkpoint.list(dir)) do
    local state, message = checkpoint.read(("%s/step-%08d"):format(dir, step))
    if not state then error({ status = 2, message = "tidelock: diff: " .. message }, 0) end
    if state.key == side.key and step <= side.last then
      states[step] = { weights = state.weights_hash, optimizer = state.optimizer_hash }
    end
  end
  return states
end

local function sorted(states)
  local steps = {}
  for step in pairs(states) do steps[#steps + 1] = step end
  table.sort(steps)
  return steps
end

--- "step 4", or "steps 2, 4".
local function named(steps) return (#steps == 1 and "step " or "steps ") .. fit.list(steps) end

--- The steps of one side that the other has not, in words; nil where there are none.
local function alone(states, others, name)
  local steps = {}
  for _, step in ipairs(sorted(states)) do
    if not others[step] then steps[#steps + 1] = step end
  end
  return #steps > 0 and ("%s of %s alone"):format(named(steps), name) or nil
end

--- What differs of a step's state, in words; nil when all of it is equal.
local function difference(x, y)
  if x.weights ~= y.weights then
    return ("weights %s | %s"):format(x.weights, y.weights)
  elseif x.optimizer and y.optimizer and x.optimizer ~= y.optimizer then
    return ("weights equal, optimizer %s | %s"):format(x.optimizer, y.optimizer)
  end
end

--- What both sides kept, and what one alone.
---@param left tidelock.Side
---@param right tidelock.Side
---@return string[] texts # for the lines "weights"
---@return integer? step # the first whose state differs
function saved.compare(left, right)
  local a, b, equal, optimizers = states_of(left), states_of(right), {}, 0
  local texts, differs = {}, nil
  for _, step in ipairs(sorted(a)) do
    local x, y = a[step], b[step]
    local text = y and difference(x, y)
    if text then
      texts[1], differs = ("step %d: %s"):format(step, text), step
      break
    elseif y then
      equal[#equal + 1] = step
      optimizers = optimizers + (x.optimizer and y.optimizer and 1 or 0)
    end
  end
  if #equal > 0 then
    table.insert(texts, 1, ("equal after %s%s"):format(named(equal),
      optimizers > 0 and (", the optimizer's state too in %s"):format(
        screen.plural(optimizers, "checkpoint")) or ""))
  elseif not differs then
    texts[1] = "no step that both have kept"
  end
  local rest = { alone(a, b, "a") }
  rest[#rest + 1] = alone(b, a, "b")
  if not differs and #rest > 0 then
    texts[#texts + 1] = "not compared: " .. table.concat(rest, "; ")
  end
  local dir = left.run and right.run and core.files.realpath(folder_of(left))
  if optimizers > 0 and dir == core.files.realpath(folder_of(right)) then
    texts[#texts + 1] = ("both have their checkpoints in %s: those are compared with themselves")
      :format(folder_of(left))
  end
  return texts, differs
end

return saved
