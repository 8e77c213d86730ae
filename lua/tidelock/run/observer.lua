--- observer.lua - what a step did beside its numbers, for `--metrics`: messages and plan.
---
---     observer.new(run, facts)        planned bytes of each axis, a step; facts: of cluster.read
---     observer:step(record)  ->  { axes = { { axis, planned, total } .. }, waits, deviation }
---     observer:mark()                 what was exchanged until here is none of a step's
---
--- Bytes count what a rank reads from others or sends to them, over the ranks of this process. On a
--- GPU only the plan is known. Deviation is measured / planned - 1.
local experts = require "tidelock.plan.experts"
local flops = require "tidelock.forecast.flops"
local predict = require "tidelock.forecast.predict"
local summaries = require "tidelock.plan.summary"
local work = require "tidelock.forecast.work"

local observer = {}

local Observer = {}
Observer.__index = Observer

--- { dtype, shape } of views, as work.lua takes operands; false where there is none.
local function operands(views, count)
  local list = {}
  for i = 1, count do list[i] = views[i] and { views[i].dtype, views[i].shape } or false end
  return list
end

--- Adds a rank's planned bytes of a step to `planned`, by axis; an axis whose messages depend on
--- the data becomes false.
local function add_planned(planned, rank, groups)
  local range = rank.sections.step
  for i = range[1], range[1] + range[2] - 1 do
    local made = rank.instructions[i]
    local axis = made.attrs.group
    if axis then
      local moved = work.moved(made.op, operands(made.inputs, #made.inputs),
        operands(made.outputs, #made.outputs), #groups[axis])
      if moved and planned[axis] ~= false then
        planned[axis] = (planned[axis] or 0) + moved
      else
        planned[axis] = false
      end
    end
  end
end

---@param run tidelock.Run
---@param facts? table # machine facts: the step's time is planned too
function observer.new(run, facts)
  local self = setmetatable({
    run = run, path = run.launched and "processes" or "threads", planned = {}, axes = {},
    totals = {}, planned_bytes = run.plan.summary.planned_bytes,
  }, Observer)
  for index, entry in ipairs(run.table) do
    if not run.launched or index == 1 then
      add_planned(self.planned, run.plan.ranks[experts.plan_index(run.spec.layout,
        entry.coordinates)], entry.groups)
    end
  end
  for axis in pairs(self.planned) do self.axes[#self.axes + 1] = axis end
  table.sort(self.axes)
  if facts then
    self.step_seconds = predict.of(run.plan, facts, summaries.bubble(run.plan),
      flops.of_step(run.plan.graph, run.spec.batch)).step_s
  end
  self.last = self:traffic()
  return self
end

--- Bytes by axis since the ranks were opened, and ns waited by rank; nil where not counted.
function Observer:traffic()
  local bytes, waits = {}, {}
  for index, entry in ipairs(self.run.table) do
    local moved, waited = self.run.ranks:traffic(index - 1)
    if moved then
      local names = self.run.plan.programs[entry.program].groups
      for i, name in ipairs(names) do bytes[name] = (bytes[name] or 0) + moved[i] end
      waits[#waits + 1] = { rank = index - 1, seconds = waited / 1e9 }
    elseif index == 1 then
      return nil
    end
  end
  return { bytes = bytes, waits = waits }
end

--- What was exchanged since the last step ended, as in an evaluation, belongs to no step.
function Observer:mark() self.last = self:traffic() end

--- measured / planned - 1; nil without both.
local function deviation(measured, planned)
  return measured and planned and planned > 0 and measured / planned - 1 or nil
end

---@param record table # of the step that has just ended
---@return table
function Observer:step(record)
  local now, axes, moved, planned = self:traffic(), {}, 0, 0
  for i, axis in ipairs(self.axes) do
    local bytes = now and now.bytes[axis] - self.last.bytes[axis]
    self.totals[axis] = (self.totals[axis] or 0) + (bytes or 0)
    axes[i] = { axis = axis, planned = self.planned[axis] or nil, total = now and
      self.totals[axis] }
    if bytes and self.planned[axis] then
      moved, planned = moved + bytes, planned + self.planned[axis]
    end
  end
  self.last = now
  return {
    axes = axes, waits = now and now.waits or {}, path = self.path,
    deviation = {
      memory = deviation(record.bytes, self.planned_bytes),
      messages = now and deviation(moved, planned),
      step = deviation(record.ms / 1000, self.step_seconds),
    },
  }
end

return observer
