--- bench_records.lua - where the time of traced steps goes, instruction by instruction, and what
--- this machine could do at best, measured in the same run.
---
---     record   { op, shape, calls, seconds, wait, flop, bytes, moved, talks }
---              of rank 0, by operator and shapes
---     ceiling  products of large matrices (flops.lua); memory: a large tensor read and written
local core = require "tidelock.core"
local flops = require "tidelock.flops"
local rounds = require "tidelock.bench_rounds"
local work = require "tidelock.work"

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

--- Seconds that intervals cover, { from, to } in ns, where they overlap once.
local function covered(list)
  local sorted, sum, reached = table.move(list, 1, #list, 1, {}), 0, math.mininteger
  table.sort(sorted, function(a, b) return a[1] < b[1] end)
  for _, one in ipairs(sorted) do
    sum = sum + math.max(0, one[2] - math.max(one[1], reached))
    reached = math.max(reached, one[2])
  end
  return sum / 1e9
end
records.covered = covered

--- Seconds of messages beside which this rank does nothing else.
local function exposed_of(spans)
  local busy = {}
  for _, one in ipairs(spans) do if not one.talks then busy[#busy + 1] = one end end
  return covered(spans) - covered(busy)
end

local record_form = "<i8i8i8i8I4I4I4I4I4I4I4I4"

--- Adds the records of a step; returns its exposed seconds.
local function add_step(run, program, by, list)
  local spans = {}
  local range = program.sections.step
  local bytes, at = run.ranks:record(0, range[1], range[2]), 1
  for i = range[1], range[1] + range[2] - 1 do
    local start, stop, wait, moved = string.unpack(record_form, bytes, at)
    at = at + 64
    local made = program.instructions[i]
    local ins, outs = operands(program, made.inputs), operands(program, made.outputs)
    local shape = shape_of(ins, outs)
    local id = made.op .. " " .. shape
    local one = by[id]
    if not one then
      one = { op = made.op, shape = shape, calls = 0, seconds = 0, wait = 0, flop = 0, bytes = 0,
        moved = 0, talks = made.attrs.group ~= nil }
      by[id], list[#list + 1] = one, one
    end
    spans[#spans + 1] = { start, stop, talks = one.talks }
    one.calls, one.seconds = one.calls + 1, one.seconds + (stop - start) / 1e9
    one.wait, one.moved = one.wait + wait / 1e9, one.moved + moved
    one.flop = one.flop + work.flop(made.op, ins, made.attrs, run.spec.batch.length)
    one.bytes = one.bytes + work.bytes(ins, outs)
  end
  return exposed_of(spans)
end

--- Runs traced steps. Records are per step, the longest first.
---@param run tidelock.Run # it has run a step at least
---@param steps integer
---@return table[] list, number wall, number inside, number exposed # seconds of a step; of its
---  section; of messages that nothing hides
function records.of(run, steps)
  local program = run.plan.programs[run.table[1].program]
  run.ranks:trace(true)
  run:step() -- on a GPU the traced step is captured
  local by, list, inside, wall, exposed = {}, {}, 0, 0, 0
  for _ = 1, steps do
    wall = wall + rounds.measure(function() inside = inside + run:step().ms / 1000 end).seconds
    exposed = exposed + add_step(run, program, by, list)
  end
  run.ranks:trace(false)
  for _, one in ipairs(list) do
    for _, name in ipairs { "calls", "seconds", "wait", "flop", "bytes", "moved" } do
      one[name] = one[name] / steps
    end
  end
  table.sort(list, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds > b.seconds end
    return a.op .. a.shape < b.op .. b.shape
  end)
  return list, wall / steps, inside / steps, exposed / steps
end

return records
