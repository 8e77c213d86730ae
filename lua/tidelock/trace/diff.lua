--- `./tl diff A B`: where two runs part, to the bit.
---
---     recipe   same key 5e1c 09af 77d2 c340; layout differs: dp 2 | tp 2. The bits must be equal.
---     losses   steps 1 to 17 equal; step 18: 2.319 (40146a7f) | 2.319 (40146a80)
---     first    step 17, backward, instruction 214 .. (recipes/quickstart.lua:7), rank 1 of b
---              layers.2.attention.o.grad [37, 90]: .. (38000000) | .. (38000001), 1 of 16,384 ..
---     cause    inputs equal; run again on the host: 38000000. The instruction of b is wrong
---     sums     leaf 0  1.2e-05 (3749539c)
---
--- A and B are traces, or run folders: those are run again, traced, from the nearest checkpoint or
--- from the start. So is one step of traces without values. Exit status 1 when a bit differs.
local compare = require "tidelock.trace.compare"
local divergence = require "tidelock.trace.divergence"
local logical = require "tidelock.plan.logical"
local partial = require "tidelock.trace.partial"
local replays = require "tidelock.trace.replays"
local saved = require "tidelock.run.saved"
local screen = require "tidelock.text.screen"
local sides = require "tidelock.trace.sides"

local diff = {}

local sums_shown = 16

-- numbers ---------------------------------------------------------------------------------------

--- "3.0517578e-05 (38000000)".
local function shown(e)
  local digits = e.dtype == "f32" and "%08x" or e.dtype == "bf16" and "%04x" or "%x"
  local value = math.type(e.value) == "integer" and ("%d"):format(e.value)
    or ("%.8g"):format(e.value)
  return ("%s (%s)"):format(value, digits:format(e.bits))
end

--- "37, 90", or "37" where the tensor has one column.
local function place(at)
  if not at.row then return "?" end
  return at.cols == 1 and ("%d"):format(at.row) or ("%d, %d"):format(at.row, at.col)
end

local function phase_name(phase)
  for name, number in pairs(logical.phases) do -- one name a number
    if number == phase then return name end
  end
end

local function line(lines, label, text) lines[#lines + 1] = ("%-8s %s"):format(label, text) end

--- Prints the lines that are not printed yet: what is known stands there before runs are repeated.
local function print_lines(lines)
  for i = (lines.printed or 0) + 1, #lines do io.stdout:write(lines[i], "\n") end
  lines.printed = #lines
  io.stdout:flush()
end

-- parts of the report ---------------------------------------------------------------------------

--- What was wrong with the output of the instruction that is to blame, where it is not the output
--- that is named above.
local function verdict_text(t, verdict)
  local o
  for _, candidate in ipairs(t.outputs[t:program_of(verdict.rank)]) do
    if candidate.instruction == verdict.instruction and candidate.position == verdict.position then
      o = candidate
    end
  end
  local function value(tensor)
    return shown { value = tensor:flat()[verdict.element], bits = tensor:bits()[verdict.element],
      dtype = tensor:dtype() }
  end
  return value(verdict.again), value(verdict.recorded), o
end

local function device_text(t, rank)
  return t.meta.device == "cuda" and (", gpu %d"):format(rank) or ""
end

local function cause_lines(lines, a, b, found, at, cause)
  if cause.verdict then
    local t = cause.side == "a" and a or b
    local again, recorded = verdict_text(t, cause.verdict)
    local inputs = cause.inputs > 0 and "inputs equal; "
      or "what came before it is equal; "
    line(lines, "cause", ("%srun again on the host: %s, recorded: %s"):format(inputs, again,
      recorded))
    line(lines, "", ("The instruction of %s is wrong%s"):format(cause.side,
      device_text(t, cause.verdict.rank)))
  elseif cause.input then
    local x = cause.input
    line(lines, "cause", ("its input %d%s differs already, at element %d: %s | %s"):format(
      x.position, x.name and ", " .. x.name or "", x.element - 1, shown(x.a), shown(x.b)))
    line(lines, "", ("no output before it in step %d differs: it came so into the step"):format(
      found.step))
  elseif #cause.numbers > 0 then
    line(lines, "cause", ("inputs equal; each gives its bits again; its numbers differ: %s"):format(
      table.concat(cause.numbers, "; ")))
  elseif cause.checked > 0 then
    line(lines, "cause", ("run again on the host, each side gives its own bits (%s): what they "
      .. "read differs"):format(screen.plural(cause.checked, "instruction")))
  else
    line(lines, "cause", "it cannot be run again: " .. (at.reason or "its inputs are not there"))
  end
end

--- The partial sums of the element, from the side that is to blame or from both.
local function sums_lines(lines, a, b, found, at, cause)
  local side = cause.side or at.side
  local t = side == "a" and a or b
  local rank, output = at["rank_" .. side], at["output_" .. side]
  local o = t.outputs[t:program_of(rank)][output]
  local i, position, element = o.instruction, o.position, at["element_" .. side]
  if cause.verdict then
    local v = cause.verdict
    rank, i, position, element = v.rank, v.instruction, v.position, v.element
  end
  local good, list = pcall(partial.of, t, rank, found.step, i, position, element)
  for k, e in ipairs(good and list or {}) do
    if k > sums_shown then
      line(lines, "", ("and %d more"):format(#list - sums_shown))
      break
    end
    line(lines, k == 1 and "sums" or "", ("%-16s %s"):format(e.name, shown(e)))
  end
end

--- Lines "first", "cause" and "sums" of two traces that have the values of the step.
local function explained(lines, a, b, found)
  local at = divergence.locate(a, b, found)
  if not at then return false end
  local cause = divergence.explain(a, b, found, at)
  local side = cause.side or at.side
  local t = side == "a" and a or b
  local rank = cause.verdict and cause.verdict.rank or at["rank_" .. side]
  local o = t.outputs[t:program_of(rank)][at["output_" .. side]]
  local i = cause.verdict and cause.verdict.instruction or o.instruction
  local made = t:program(rank).instructions[i]
  line(lines, "first", ("step %d, %s, %s, rank %d of %s"):format(found.step, made.phase,
    t:describe(rank, i), rank, side))
  line(lines, "", ("%s [%s]: %s | %s, %s of %s elements"):format(found.key, place(at), shown(at.a),
    shown(at.b), screen.grouped(at.count), screen.grouped(at.total)))
  cause_lines(lines, a, b, found, at, cause)
  sums_lines(lines, a, b, found, at, cause)
  return true
end

--- What hashes alone can say.
local function by_hash(lines, a, found)
  local made = a:program(found.rank).instructions[found.instruction]
  line(lines, "first", ("step %d, %s, %s, rank %d"):format(found.step,
    made.phase or phase_name(found.phase), a:describe(found.rank, found.instruction), found.rank))
  local sample = a.meta.full and "" or " (of what was hashed: one run of 64 in 4,096)"
  line(lines, "", found.key .. sample)
end

--- What hashes that are all equal have shown, and what they could not.
local function equal_lines(lines, a, b, extent)
  local steps = compare.steps(a, b)
  if #steps == 0 or extent.compared == 0 then
    line(lines, "traces", #steps == 0 and "no step in both: nothing was compared"
      or "no tensor in both that was hashed alike: nothing was compared")
    return false
  end
  local alike = compare.same_layout(a, b) and a.meta.full == b.meta.full
  line(lines, "traces", ("steps %d to %d%s: all %s equal"):format(steps[1], steps[#steps],
    steps[1] == 0 and " (0: initial values)" or "",
    screen.plural(extent.compared, alike and "output" or "logical tensor")))
  if not (a.meta.full and b.meta.full) then
    line(lines, "", ("by a sample, of those above %s elements"):format(
      screen.grouped(logical.sampled_above)))
  end
  if extent.otherwise > 0 then
    line(lines, "", ("not compared: %s of another shape, or hashed whole in one trace alone")
      :format(screen.plural(extent.otherwise, "tensor")))
  end
  if extent.alone > 0 then
    line(lines, "", ("not compared: %s of one layout alone"):format(
      screen.plural(extent.alone, "output")))
  end
  return not lines.differ
end

-- reports ---------------------------------------------------------------------------------------

--- The report of two traces. `again(step, lines)` gives two traces with the values of that step, or
--- nil and a reason; it is asked where these have none.
---@return string[] lines
---@return boolean equal
function diff.traces(a, b, again)
  local lines = sides.lines(sides.of_trace(a), sides.of_trace(b))
  local found, extent = divergence.find(a, b)
  if not found then return lines, equal_lines(lines, a, b, extent) end
  if a:has_values(found.step) and b:has_values(found.step) then
    if not explained(lines, a, b, found) then by_hash(lines, a, found) end
    return lines, false
  end
  local x, y = nil, "run both again with --trace DIR --values"
  if again then x, y = again(found.step, lines) end
  local exact = x and divergence.find(x, y)
  if exact then
    explained(lines, x, y, exact)
  else
    by_hash(lines, a, found)
    line(lines, "cause", x and "run again, both give the same bits: one of them is not repeatable"
      or y)
  end
  if x then x:close() y:close() end
  return lines, false
end

--- Lines "weights" of runs of unequal length. Returns the first step whose state differs.
local function compare_saved(lines, left, right)
  if not (left.run and right.run) then
    line(lines, "weights", ("of steps %d | %d: not compared"):format(left.last, right.last))
    return nil
  end
  local result, message = saved.compare(left, right)
  if not result then error({ status = 2, message = "tidelock: diff: " .. message }, 0) end
  for i, text in ipairs(saved.texts(result)) do line(lines, i == 1 and "weights" or "", text) end
  return result.differs
end

--- The report of two run folders.
local function diff_runs(left, right, temporary)
  local lines, step = sides.lines(left, right)
  if not lines.differ and left.weights == right.weights then
    line(lines, "weights", left.weights and left.weights .. " in both" or "not kept")
    return lines, true
  end
  local last = step or math.min(left.last, right.last)
  local lengths = left.key == right.key and left.last ~= right.last
  if not lines.differ and lengths and left.records[last] and right.records[last] then
    last = compare_saved(lines, left, right)
    if not last then return lines, true end
  end
  print_lines(lines)
  io.stderr:write(("both are run again to step %d, traced\n"):format(last))
  local a, b = replays.both(left, right, last, temporary)
  local found = divergence.find(a, b)
  if not found then
    local text = replays.unlike(left, a) or replays.unlike(right, b)
    line(lines, "again", text or "both give the same bits; their logs do not say "
      .. (lengths and not lines.differ and "whether" or "why") .. " they differed")
    return lines, false
  end
  local x, y = replays.values(left, right, found.step, temporary)
  explained(lines, x, y, divergence.find(x, y) or found)
  return lines, false
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function diff.command(request)
  local left, right = sides.open(request.words[1]), sides.open(request.words[2])
  local temporary <close> = replays.folder()
  local lines, equal
  if left.trace and right.trace then
    lines, equal = diff.traces(left.trace, right.trace, function(step, known)
      if not (left.recipe and right.recipe) then return nil, "the traces name no recipe" end
      print_lines(known)
      return replays.values(left, right, step, temporary)
    end)
  else
    lines, equal = diff_runs(left, right, temporary)
  end
  print_lines(lines)
  return equal and 0 or 1
end

return diff
