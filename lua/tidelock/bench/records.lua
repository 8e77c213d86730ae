--- bench/records.lua - where the time of traced steps goes, instruction by instruction, and what
--- this machine could do at best, measured in the same run.
---
---     record   { op, shape, calls, seconds, own, wait, flop, bytes, moved, talks }
---              of rank 0, by operator and shapes; own: of seconds, what nothing else ran beside
---              (waits.lua), so that the own times of a step are no longer than the step
---     ceiling  products of large matrices (flops.lua); memory: a large tensor read and written
local core = require "tidelock.core"
local flops = require "tidelock.forecast.flops"
local rounds = require "tidelock.bench.rounds"
local waits = require "tidelock.trace.waits"
local work = require "tidelock.forecast.work"

local records = {}

local copy_bytes = 96 << 20

--- Bytes a second that an elementwise operator reads and writes, of tensors that no cache holds.
local function copy_speed(device, threads)
  local count = (device == "cuda" and 8 or 1) * copy_bytes // 4
  local x <close>, y = core.tensor("f32", { count }):fill(0.5), core.tensor("f32", { count })
  local best = math.huge
  for _ = 1, 4 do
    local seconds
    if device == "cuda" then
      seconds = core.call("scale", { x }, { y }, { factor = 2 }, { device = "cuda", repeats = 5 })
        / 1000
    else
      seconds = rounds.measure(function()
        core.call("scale", { x }, { y }, { factor = 2 }, { threads = threads })
      end).seconds
    end
    best = math.min(best, seconds)
  end
  y:close()
  return 2 * 4 * count / best
end

--- { peak FLOP/s, bandwidth bytes/s } for a run's dtype and device.
function records.ceilings(spec, threads)
  return {
    peak = flops.measure_peak(spec.dtype, 0.1, threads, spec.device),
    bandwidth = copy_speed(spec.device, threads),
  }
end

--- Least seconds that so much work takes on this machine.
function records.least(record, ceilings)
  if record.talks then return 0 end
  return math.max(record.flop / ceilings.peak, record.bytes / ceilings.bandwidth)
end

local function operands(program, list)
  local out = {}
  for i, index in ipairs(list) do
    local t = program.tensors[index]
    out[i] = t and { t.dtype, t.shape } or false
  end
  return out
end

--- "1024x128 384x128" of the first two operands that have two dims at least.
local function shape_of(ins, outs)
  local words = {}
  for _, list in ipairs { ins, outs } do
    for _, t in ipairs(list) do
      if t and #t[2] >= 2 and #words < 2 then words[#words + 1] = table.concat(t[2], "x") end
    end
  end
  return table.concat(words, " ")
end

local record_form = "<i8i8i8i8I4I4I4I4I4I4I4I4"

--- The instructions of a rank's last traced step: { made, start, stop, ns, wait, moved, talks }.
local function read_rank(run, rank)
  local program = run.plan.programs[run.table[rank + 1].program]
  local range, list, at = program.sections.step, {}, 1
  local bytes = run.ranks:record(rank, range[1], range[2])
  for i = 1, range[2] do
    local made = program.instructions[range[1] + i - 1]
    local start, stop, wait, moved = string.unpack(record_form, bytes, at)
    at = at + 64
    list[i] = { made = made, start = start, stop = stop, ns = stop - start, wait = wait,
      moved = moved, talks = made.attrs.group ~= nil }
  end
  return list, program
end

--- Waits of rank 0 where its device notes none.
local function find_waits(run, list)
  local ranks = {}
  for rank = 0, #run.table - 1 do
    local its, program = list, run.plan.programs[run.table[rank + 1].program]
    if rank > 0 then its = read_rank(run, rank) end
    ranks[rank + 1] = { list = its,
      counter = waits.counter(rank, program.groups, run.table[rank + 1].groups) }
  end
  for k, ns in ipairs(waits.of(ranks)[1]) do list[k].wait = ns end
end

--- What a message moves by plan, for devices that do not count it.
local function planned_bytes(run, made, ins, outs)
  if not made.attrs.group then return 0 end
  local program = run.plan.programs[run.table[1].program]
  local members = run.table[1].groups[program.groups[made.attrs.group + 1]]
  return work.moved(made.op, ins, outs, members and #members or 1) or 0
end

--- Adds the records of a step.
local function add_step(run, by, list)
  local all, program = read_rank(run, 0)
  local counted = run.spec.device ~= "cuda"
  if not counted and #run.table > 1 then find_waits(run, all) end
  local own = waits.share(all)
  for k, step in ipairs(all) do
    local made = step.made
    local ins, outs = operands(program, made.inputs), operands(program, made.outputs)
    local shape = shape_of(ins, outs)
    local id = made.op .. " " .. shape
    local one = by[id]
    if not one then
      one = { op = made.op, shape = shape, calls = 0, seconds = 0, own = 0, wait = 0, flop = 0,
        bytes = 0, moved = 0, talks = step.talks }
      by[id], list[#list + 1] = one, one
    end
    one.calls, one.seconds = one.calls + 1, one.seconds + step.ns / 1e9
    one.own, one.wait = one.own + own[k] / 1e9, one.wait + math.min(own[k], step.wait) / 1e9
    one.moved = one.moved + (counted and step.moved or planned_bytes(run, made, ins, outs))
    one.flop = one.flop + work.flop(made.op, ins, made.attrs, run.spec.batch.length)
    one.bytes = one.bytes + work.bytes(ins, outs)
  end
end

--- Runs traced steps. Records are per step, the longest first.
---@param run tidelock.Run # it has run a step at least
---@param steps integer
---@return table[] list, number wall, number inside, number exposed # seconds of a step; of its
---  section; of messages that nothing hides
function records.of(run, steps)
  run.ranks:trace(true)
  run:step() -- on a GPU the traced step is captured
  local by, list, inside, wall, exposed = {}, {}, 0, 0, 0
  for _ = 1, steps do
    wall = wall + rounds.measure(function() inside = inside + run:step().ms / 1000 end).seconds
    add_step(run, by, list)
  end
  run.ranks:trace(false)
  for _, one in ipairs(list) do
    for _, name in ipairs { "calls", "seconds", "own", "wait", "flop", "bytes", "moved" } do
      one[name] = one[name] / steps
    end
    exposed = exposed + (one.talks and one.own or 0)
  end
  table.sort(list, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds > b.seconds end
    return a.op .. a.shape < b.op .. b.shape
  end)
  return list, wall / steps, inside / steps, exposed
end

return records
