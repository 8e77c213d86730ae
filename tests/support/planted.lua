--- Traces of small runs with a fault planted in one of them, and what `./tl diff` says of two.
---
---     local lines = planted.diff({}, { ["layout.dp"] = 2 }, { op = "swiglu_grad", micro = 1,
---       rank = 1, kind = "ulp", step = 2, element = 38 })
local diff = require "tidelock.trace.diff"
local models = require "support.models"
local new_folder = require "support.folder"
local recorder = require "tidelock.run.recorder"
local traces = require "tidelock.trace.traces"

local planted = {}

--- The instruction of a rank's program that a fault means, from 1: the `nth` of an operator (the
--- first unless set), in a micro-batch if one is given, at a path if one is given.
function planted.instruction(options, fault)
  local plan = models.plan(options)
  local grid = require "tidelock.plan.layout"
  local at = grid.coordinates(plan.spec.layout, fault.rank)
  local rank, left = plan.ranks[at.pp + 1], fault.nth or 1
  local range = rank.sections[fault.section or "step"]
  for i = range[1], range[1] + range[2] - 1 do
    local made = rank.instructions[i]
    if made.op == fault.op and (not fault.micro or made.micro == fault.micro)
      and (not fault.path or made.path == fault.path) then
      left = left - 1
      if left == 0 then return i, made.site end
    end
  end
  error("no instruction " .. fault.op)
end

--- A folder with the trace of `steps` steps.
---@param start? table # options of driver.start; recorder = options of recorder.new
function planted.trace(options, start, steps)
  local own = { dir = new_folder().root, full = true, values = true }
  for key, value in pairs(start and start.recorder or {}) do own[key] = value end
  local all = {}
  for key, value in pairs(start or {}) do all[key] = value end
  all.recorder = recorder.new(own)
  local run <close> = models.start(options, all)
  for _ = 1, steps or 2 do run:step() end
  return own.dir
end

--- The text of the diff of a run of `left` and one of `right` with a fault; and the instruction.
function planted.diff(left, right, fault, recording)
  local index, site = planted.instruction(right, fault)
  local list = { { rank = fault.rank, instruction = index, kind = fault.kind,
    step = fault.step or 0, element = fault.element or 1 } }
  local a <close> = traces.open(planted.trace(left, { recorder = recording }))
  local b <close> = traces.open(planted.trace(right, { faults = list, recorder = recording }))
  local lines = diff.traces(a, b)
  return table.concat(lines, "\n"), index - 1, site
end

return planted
