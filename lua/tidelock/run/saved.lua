--- saved.lua - what two runs of unequal length kept at the same steps, for `./tl diff` and for the
--- end of a run whose key is known.
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
local sorted_keys = require "tidelock.text.sorted_keys"

local saved = {}

---@class tidelock.SavedSide
---@field folder string # of the run
---@field key string
---@field last integer # step
---@field weights string # hash after that step

---@class tidelock.SavedBoth # of two runs
---@field equal integer[] # steps whose state is equal
---@field optimizers integer # of them, those whose optimizer was compared too
---@field differs? integer # the first step whose state differs
---@field text? string # how
---@field alone string[] # what one side alone kept, in words
---@field shared? string # the one folder that has the checkpoints of both

--- What is known of a side's state by step, { weights, optimizer? }; or nil and what is damaged.
local function states_of(side, dir)
  local states = { [side.last] = { weights = side.weights } }
  for _, step in ipairs(checkpoint.list(dir)) do
    local state, message = checkpoint.read(("%s/step-%08d"):format(dir, step))
    if not state then return nil, message end
    if state.key == side.key and step <= side.last then
      states[step] = { weights = state.weights_hash, optimizer = state.optimizer_hash }
    end
  end
  return states
end

--- "step 4", or "steps 2, 4".
local function named(steps) return (#steps == 1 and "step " or "steps ") .. fit.list(steps) end

--- The steps of one side that the other has not, in words; nil where there are none.
local function alone(states, others, name)
  local steps = {}
  for _, step in ipairs(sorted_keys(states)) do
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

--- Compares what both kept. Nil and a message where a checkpoint is damaged.
---@param left tidelock.SavedSide
---@param right tidelock.SavedSide
---@return tidelock.SavedBoth?
---@return string? message
function saved.compare(left, right)
  local dirs = { checkpoint.dir(left.folder), checkpoint.dir(right.folder) }
  local a, damaged = states_of(left, dirs[1])
  local b, also = states_of(right, dirs[2])
  if not a or not b then return nil, damaged or also end
  local result = { equal = {}, optimizers = 0, alone = { alone(a, b, "a") } }
  result.alone[#result.alone + 1] = alone(b, a, "b")
  for _, step in ipairs(sorted_keys(a)) do
    local x, y = a[step], b[step]
    local text = y and difference(x, y)
    if text then
      result.differs, result.text = step, text
      break
    elseif y then
      result.equal[#result.equal + 1] = step
      result.optimizers = result.optimizers + (x.optimizer and y.optimizer and 1 or 0)
    end
  end
  local first = core.files.realpath(dirs[1])
  if first and first == core.files.realpath(dirs[2]) then result.shared = dirs[1] end
  return result
end

--- "after steps 2, 4".
---@param result tidelock.SavedBoth
function saved.equal_text(result) return "after " .. named(result.equal) end

--- A comparison as lines of a report.
---@param result tidelock.SavedBoth
---@return string[]
function saved.texts(result)
  local texts = {}
  if #result.equal > 0 then
    texts[1] = ("equal %s%s"):format(saved.equal_text(result), result.optimizers > 0
      and (", the optimizer's state too in %s"):format(
        screen.plural(result.optimizers, "checkpoint")) or "")
  end
  if result.differs then
    texts[#texts + 1] = ("step %d: %s"):format(result.differs, result.text)
  else
    texts[1] = texts[1] or "no step that both have kept"
    if #result.alone > 0 then
      texts[#texts + 1] = "not compared: " .. table.concat(result.alone, "; ")
    end
  end
  if result.shared and result.optimizers > 0 then
    texts[#texts + 1] = ("both have their checkpoints in %s: those are compared with themselves")
      :format(result.shared)
  end
  return texts
end

return saved
