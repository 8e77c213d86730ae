--- replays.lua - runs of the past once more, traced, for `./tl diff`.
---
---     nearest checkpoint at or before a step, or the start  ->  step, step, ..  ->  a trace
---
--- The traces lie in a folder of their own that is removed at the end.
local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local recorder = require "tidelock.run.recorder"
local requests = require "tidelock.plan.requests"
local screen = require "tidelock.text.screen"
local traces = require "tidelock.trace.traces"

local replays = {}

local function remove(folder)
  for _, name in ipairs(core.files.list(folder) or {}) do
    local path = folder .. "/" .. name
    if core.files.is_directory(path) then remove(path) else os.remove(path) end
  end
  os.remove(folder)
end

--- A folder for traces; close it, and it is gone with them.
function replays.folder()
  local base = (os.getenv "TMPDIR" or "/tmp") .. "/tidelock-diff-" .. core.files.getpid()
  local path, n = base, 1
  while core.files.exists(path) do
    n = n + 1
    path = base .. "-" .. n
  end
  local function close(self) remove(self.path) end
  return setmetatable({ path = path, count = 0 }, { __close = close })
end

--- The newest checkpoint in a run's folder after at most `step` steps; nil: from the start.
function replays.nearest(folder, step)
  local dir = folder and checkpoint.dir(folder)
  local best
  for _, saved in ipairs(dir and checkpoint.list(dir) or {}) do
    if saved <= step then best = saved end
  end
  return best and checkpoint.find(("%s/step-%08d"):format(dir, best), "diff")
end

--- The run of a side, with the options of the driver in side.start; it must have the key that it
--- had.
local function start(side, found, options)
  local recipe = requests.recipe(side.recipe, side.overrides, side.point)
  local all = { recorder = options, resume = found }
  for name, value in pairs(side.start or {}) do all[name] = value end
  local run = requests.guarded(driver.start, recipe, all)
  if run.plan.key ~= side.key then
    local key = run.plan.key
    run:close()
    local text = "tidelock: diff: %s was run with key %s; %s now gives %s"
    error({ status = 2, message = text:format(side.folder, screen.spaced(side.key),
      side.recipe, screen.spaced(key)) }, 0)
  end
  return run
end

--- Runs a side to step `last`, recording steps first .. last; from a checkpoint where one serves.
local function trace_of(side, first, last, values, temporary)
  temporary.count = temporary.count + 1
  local dir = ("%s/%d"):format(temporary.path, temporary.count)
  local found = first > 0 and replays.nearest(side.run, first - 1) or nil
  local run <close> = start(side, found, recorder.new {
    dir = dir, first = first, last = last, full = values, values = values, recipe = side.recipe,
    overrides = side.overrides, point = side.point,
  })
  for _ = run.done + 1, last do run:step() end
  run:close()
  return traces.open(dir)
end

--- Both sides to step `last`, hashes of all steps on the way.
function replays.both(left, right, last, temporary)
  return trace_of(left, 0, last, false, temporary), trace_of(right, 0, last, false, temporary)
end

--- Both sides at one step, with values.
function replays.values(left, right, step, temporary)
  return trace_of(left, step, step, true, temporary), trace_of(right, step, step, true, temporary)
end

--- What a side's log has that its recipe does not give again; nil when it gives all of it.
function replays.unlike(side, trace)
  for _, step in ipairs(trace.steps) do
    local record = side.records[step.step]
    if record and record.loss_bits ~= step.loss_bits then
      return ("step %d of %s gives %s when it is run again; its log has %s"):format(step.step,
        side.folder, step.loss_bits, record.loss_bits)
    end
  end
end

return replays
