--- Pipeline schedules as data: for each pipeline rank, the list of what it does, in order.
--
-- A schedule only says *when* work happens. It may not change a bit, so in every schedule the
-- weight gradients of a chunk are made in ascending order of micro-batches; schedule_check.lua
-- enforces it.
--
--   an operation   { phase = "forward", micro = 3, chunk = 0 }
--   phase          forward | backward | input | weight      (backward = input, then weight)
--   micro          micro-batch, from 0
--   chunk          which of the rank's virtual stages, from 0; rank r holds the pipeline stages
--                  r, r + pp, r + 2 pp, ...: stage = chunk * pp + r
--
--   1f1b, pp 3, 4 micro-batches            gpipe                    zb-h1 (i input, w weight)
--   rank 0   F0 F1 F2 B0 F3 B1 B2 B3       F0 F1 F2 F3 B0 .. B3     F0 F1 F2 i0 w0 F3 i1 w1 ..
--   rank 1      F0 F1 B0 F2 B1 F3 B2 B3    F0 F1 F2 F3 B0 .. B3     F0 F1 i0 F2 i1 w0 ..
--   rank 2         F0 B0 F1 B1 F2 B2 ..    F0 F1 F2 F3 B0 .. B3     F0 i0 F1 i1 F2 i2 w0 ..
--
-- The bubble and the peak of activations of each (F, I, W: the costs of a rank's whole share):
--
--   gpipe         (pp - 1)(F + B)       m
--   1f1b          (pp - 1)(F + B)       min(pp - r, m)
--   interleaved   (pp - 1)(F + B) / v   min(2(pp - r - 1) + (v - 1)pp + 1, mv) chunks, when pp
--                                       divides m; another m loses more time and holds no more
--   zb-h1         (pp - 1)(F + I - W)   min(pp, m); W(i) follows I(i) by r micro-batches.
--                                       With m < pp the bubble grows by (pp - m)W
--
-- A recipe may give a function(pp_rank, size, micros) that returns such a list instead of a name.

local check = require "tidelock.plan.schedule_check"

local schedules = {}

---@class tidelock.Operation
---@field phase "forward"|"backward"|"input"|"weight"
---@field micro integer
---@field chunk integer

--- All forward passes, then all backward passes.
local function gpipe(_, _, micros)
  local order = {}
  for micro = 0, micros - 1 do
    order[#order + 1] = { phase = "forward", micro = micro, chunk = 0 }
  end
  for micro = 0, micros - 1 do
    order[#order + 1] = { phase = "backward", micro = micro, chunk = 0 }
  end
  return order
end

--- 1F1B for rank `pp` of `size`: warm up, alternate, drain; at most size - pp activations live.
local function one_f_one_b(pp, size, micros)
  local order, warmup = {}, math.min(size - pp, micros)
  local function add(phase, micro)
    order[#order + 1] = { phase = phase, micro = micro, chunk = 0 }
  end
  for micro = 0, warmup - 1 do add("forward", micro) end
  for micro = 0, micros - 1 do
    add("backward", micro)
    if warmup + micro < micros then add("forward", warmup + micro) end
  end
  return order
end

--- The rows of interleaved 1F1B: groups of `size` micro-batches, chunk by chunk inside a group.
-- Returns them in the order of the forward or, chunks reversed, backward passes.
local function interleaved_rows(size, micros, chunks, phase)
  local rows = {}
  for first = 0, micros - 1, size do
    for c = 0, chunks - 1 do
      local chunk = phase == "forward" and c or chunks - 1 - c
      for micro = first, first + size - 1 do
        rows[#rows + 1] = { phase = phase, micro = micro, chunk = chunk }
      end
    end
  end
  return rows
end

--- 1F1B over `chunks` virtual stages a rank: the bubble shrinks by that factor.
-- The list is made for whole groups; micro-batches past the last one are then left out. A shorter
-- last group would deadlock with one mailbox slot (pp 4, 5 micro-batches, 3 chunks), while leaving
-- operations out of a list that ends can only make the others end sooner.
local function interleaved(pp, size, micros, chunks)
  local forward = interleaved_rows(size, micros, chunks, "forward")
  local backward = interleaved_rows(size, micros, chunks, "backward")
  local warmup = math.min(2 * (size - pp - 1) + (chunks - 1) * size, #forward)
  local order = {}
  local function add(op)
    if op and op.micro < micros then order[#order + 1] = op end
  end
  for i = 1, warmup do add(forward[i]) end
  for i = 1, #backward do
    add(forward[warmup + i])
    add(backward[i])
  end
  return order
end

--- Zero bubble H1: 1F1B whose backward pass sends the input gradient on as early as it can and
-- fills the waits with weight gradients, `pp` micro-batches later; those left over end the step.
local function zb_h1(pp, size, micros)
  local order, warmup = {}, math.min(size - pp, micros)
  local function add(phase, micro)
    order[#order + 1] = { phase = phase, micro = micro, chunk = 0 }
  end
  for micro = 0, warmup - 1 do add("forward", micro) end
  for micro = 0, micros - 1 do
    add("input", micro)
    if micro >= pp then add("weight", micro - pp) end
    if warmup + micro < micros then add("forward", warmup + micro) end
  end
  for micro = math.max(0, micros - pp), micros - 1 do add("weight", micro) end
  return order
end

local builders = {
  ["gpipe"] = gpipe,
  ["1f1b"] = one_f_one_b,
  ["interleaved"] = interleaved,
  ["zb-h1"] = zb_h1,
}

--- The names that `layout.schedule` takes, in the order in which they are documented.
schedules.names = { "gpipe", "1f1b", "interleaved", "zb-h1" }

--- The pipeline stage that chunk `chunk` of rank `pp` holds; all count from 0.
function schedules.stage(pp, chunk, size)
  return chunk * size + pp
end

--- Virtual stages of a rank in a layout: named schedules but interleaved have one.
---@param layout { schedule: string|function, virtual_stages: integer? }
function schedules.virtual_stages(layout)
  local several = layout.schedule == "interleaved" or type(layout.schedule) == "function"
  return several and layout.virtual_stages or 1
end

--- What is wrong with the request itself; nil when it can be built.
local function refuse(schedule, size, chunks)
  if type(schedule) ~= "function" and not builders[schedule] then
    return ("no schedule is called %s; there are %s, or a function(pp_rank, size, micros)")
      :format(tostring(schedule), table.concat(schedules.names, ", "))
  end
  if schedule == "interleaved" and size < 2 then
    return "schedule interleaved needs pp 2 or more, got pp " .. size .. "; try schedule = \"1f1b\""
  end
  if builders[schedule] and schedule ~= "interleaved" and chunks ~= 1 then
    return ("schedule %s has one stage a rank, got virtual_stages %d; try schedule = "
      .. "\"interleaved\" or virtual_stages = 1"):format(schedule, chunks)
  end
end

--- One rank's list from a user's function: checked for shape, copied, `chunk` filled in.
local function ask_user(fn, pp, size, micros)
  local ok, list = pcall(fn, pp, size, micros)
  if not ok then
    return nil, ("rank %d: the schedule's function failed: %s"):format(pp, tostring(list))
  elseif type(list) ~= "table" then
    return nil, ("rank %d: the schedule's function must return a list, got %s"):format(
      pp, type(list))
  end
  local order = {}
  for i, op in ipairs(list) do
    if type(op) ~= "table" then
      return nil, ("rank %d: operation %d: expected a table with phase and micro, got %s"):format(
        pp, i, type(op))
    end
    order[i] = { phase = op.phase, micro = op.micro, chunk = op.chunk or 0 }
  end
  return order
end

--- Build and check a schedule.
---@param schedule string|fun(pp_rank: integer, size: integer, micros: integer): table
---@param options { pp: integer, micros: integer, virtual_stages: integer?, costs: table? }
---@return tidelock.Operation[][]|nil lists # lists[pp_rank + 1] is that rank's list
---@return table report # what schedule_check found (peak, bubble ..), or every problem as a string
function schedules.build(schedule, options)
  local size, micros = options.pp, options.micros
  local chunks = options.virtual_stages or 1
  local refusal = refuse(schedule, size, chunks)
  if refusal then return nil, { refusal } end
  local lists, problems = {}, {}
  for pp = 0, size - 1 do
    if type(schedule) == "function" then
      local list, problem = ask_user(schedule, pp, size, micros)
      lists[pp + 1], problems[#problems + 1] = list, problem
    else
      lists[pp + 1] = builders[schedule](pp, size, micros, chunks)
    end
  end
  if #problems > 0 then return nil, problems end
  local report, found = check.run(lists, {
    pp = size, micros = micros, virtual_stages = chunks, costs = options.costs,
  })
  if not report then return nil, found end
  return lists, report
end

return schedules
