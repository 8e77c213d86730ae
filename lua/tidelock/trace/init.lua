--- `./tl trace DIR`: where the time of a traced run went.
---
---     quickstart   key 5e1c ..   2 ranks on host, steps 1 to 6, a sample hashed
---       calls, times and bytes are those of a step, the mean
---       rank      work ms   waiting ms   between ms   moved MiB    planned
---       operator, rank 0       calls        ms  waiting  share     GB/s   GFLOP/s
---       rows of experts    layer ms   rows ms  alone ms   share  forward  backward  rank
---
--- Times are means of the traced steps; waiting for other ranks stands apart. Lanes of a GPU work
--- beside each other: `between` is the time in which none does. GB/s count every
--- operand once and GFLOP/s are as planned (work.lua). An instruction that moved more between ranks
--- than was planned is named. Rows of experts: what of their travel nothing hides (experts.lua).
local chrome = require "tidelock.trace.chrome"
local memory_file = require "tidelock.forecast.memory_file"
local screen = require "tidelock.text.screen"
local trace_experts = require "tidelock.trace.experts"
local traces = require "tidelock.trace.traces"
local work = require "tidelock.plan.work"

local trace = {}

local flags_shown = 10

--- Planned bytes, operations and messages of each instruction of a rank's step, by instruction.
local function planned(t, rank)
  local program, list = t:program(rank), {}
  local first, last = t:section(rank, 1)
  for i = first, last do
    local made, ins, outs = program.instructions[i], {}, {}
    for k, index in ipairs(made.ins) do ins[k] = index > 0 and program.tensors[index] or false end
    for k, index in ipairs(made.outs) do
      outs[k] = index > 0 and program.tensors[index] or false
    end
    local group = made.attrs.group and program.groups[made.attrs.group + 1]
    local members = group and t.meta.ranks[rank + 1].groups[group]
    local size = members and #members or 1
    list[i] = {
      bytes = work.bytes(ins, outs), flop = work.flop(made.op, ins, made.attrs, t.meta.length),
      moved = work.most_moved(made.op, ins, outs, size, made.attrs),
      slack = work.slack(made.op, size),
    }
  end
  return list
end

--- Instructions that moved more than planned: { step, rank, instruction, moved, planned }.
---@return table[]
function trace.flags(t)
  local list = {}
  for rank = 0, t:ranks() - 1 do
    local plan = planned(t, rank)
    for _, record in ipairs(t.steps) do
      local first, last = t:section(rank, record.step)
      for i = first, record.step > 0 and last or 0 do
        local moved, want = t:times(rank, record.step, i).moved, plan[i].moved or 0
        if moved > want + plan[i].slack then
          list[#list + 1] = { step = record.step, rank = rank, instruction = i, moved = moved,
            planned = want }
        end
      end
    end
  end
  return list
end

--- Time in which something of a section ran: lanes run beside each other.
---@param times table[] # of its instructions
---@return integer ns
local function covered(times)
  table.sort(times, function(a, b) return a.start_ns < b.start_ns end)
  local sum, reached = 0, times[1].start_ns
  for _, one in ipairs(times) do
    if one.end_ns > reached then
      sum = sum + one.end_ns - math.max(one.start_ns, reached)
      reached = one.end_ns
    end
  end
  return sum, reached - times[1].start_ns
end

--- Sums over traced steps of one rank: by operator, and in all.
local function sums_of(t, rank, count)
  local plan, by, order = planned(t, rank), {}, {}
  local all = { work = 0, wait = 0, span = 0, between = 0, moved = 0, planned = 0 }
  for _, record in ipairs(t.steps) do
    if record.step > 0 then
      local first, last = t:section(rank, record.step)
      local list = {}
      for i = first, last do
        local times, made = t:times(rank, record.step, i), t:program(rank).instructions[i]
        list[#list + 1] = times
        local op = by[made.op]
        if not op then
          op = { op = made.op, calls = 0, ns = 0, wait = 0, bytes = 0, flop = 0 }
          by[made.op], order[#order + 1] = op, op
        end
        local ns = times.end_ns - times.start_ns
        op.calls, op.ns, op.wait = op.calls + 1, op.ns + ns, op.wait + times.wait_ns
        op.bytes, op.flop = op.bytes + plan[i].bytes, op.flop + plan[i].flop
        all.work, all.wait = all.work + ns - times.wait_ns, all.wait + times.wait_ns
        all.moved, all.planned = all.moved + times.moved, all.planned + (plan[i].moved or 0)
      end
      local ran, span = covered(list)
      all.span, all.between = all.span + span, all.between + span - ran
    end
  end
  for _, field in ipairs { "work", "wait", "span", "between", "moved", "planned" } do
    all[field] = all[field] / count
  end
  table.sort(order, function(x, y)
    if x.ns ~= y.ns then return x.ns > y.ns end
    return x.op < y.op
  end)
  return order, all
end

--- `counted`: the device counts what moves between ranks.
local function rank_lines(lines, sums, counted)
  lines[#lines + 1] = ("  %-6s %10s %12s %12s %11s %10s"):format("rank", "work ms", "waiting ms",
    "between ms", "moved MiB", "planned")
  for rank, all in ipairs(sums) do
    lines[#lines + 1] = ("  %-6d %10.2f %12.2f %12.2f %11s %10.2f"):format(rank - 1,
      all.work / 1e6, all.wait / 1e6, all.between / 1e6,
      counted and ("%.2f"):format(all.moved / 2 ^ 20) or "-", all.planned / 2 ^ 20)
  end
end

local function operator_lines(lines, order, all, count)
  local width = 20
  for _, op in ipairs(order) do width = math.max(width, #op.op) end
  local name = "  %-" .. width .. "s"
  lines[#lines + 1] = (name .. " %7s %9s %8s %6s %8s %9s"):format("operator, rank 0", "calls", "ms",
    "waiting", "share", "GB/s", "GFLOP/s")
  for _, op in ipairs(order) do
    local seconds = math.max(1e-9, (op.ns - op.wait) / 1e9)
    lines[#lines + 1] = (name .. " %7d %9.3f %8.3f %5.1f%% %8.1f %9s"):format(op.op,
      op.calls // count, op.ns / 1e6 / count, op.wait / 1e6 / count,
      100 * op.ns / count / math.max(1, all.span), op.bytes / 1e9 / seconds,
      op.flop > 0 and ("%.1f"):format(op.flop / 1e9 / seconds) or "-")
  end
end

--- Per layer with experts on several ranks, how long rows travel with nothing beside them.
local function experts_lines(lines, t, count)
  local ranks = {}
  for rank = 0, t:ranks() - 1 do
    local steps = {}
    for _, record in ipairs(t.steps) do
      local first, last = t:section(rank, record.step)
      local list = {}
      for i = first, record.step > 0 and last or 0 do
        local times, made = t:times(rank, record.step, i), t:program(rank).instructions[i]
        list[#list + 1] = { made = made, start = times.start_ns, stop = times.end_ns,
          talks = made.attrs.group ~= nil }
      end
      steps[#steps + 1] = trace_experts.of(list)
    end
    ranks[rank + 1] = trace_experts.sum(steps)
  end
  for _, line in ipairs(trace_experts.lines(ranks, count)) do lines[#lines + 1] = line end
end

local function flag_lines(lines, t)
  local flags = trace.flags(t)
  for k, flag in ipairs(flags) do
    if k > flags_shown then
      lines[#lines + 1] = ("  and %d more"):format(#flags - flags_shown)
      break
    end
    lines[#lines + 1] = ("  more than planned: step %d, rank %d, %s: %s bytes, planned %s"):format(
      flag.step, flag.rank, t:describe(flag.rank, flag.instruction), screen.grouped(flag.moved),
      screen.grouped(flag.planned))
  end
end

--- The text of a trace.
function trace.text(t)
  local count, first, last = 0, nil, nil
  for _, record in ipairs(t.steps) do
    if record.step > 0 then
      count, first, last = count + 1, first or record.step, record.step
    end
  end
  local lines = { ("%s   key %s   %s on %s"):format(t.meta.name, screen.spaced(t.meta.key),
    screen.plural(t:ranks(), "rank"), t.meta.device) }
  if count == 0 then
    lines[2] = "  no step was traced"
    return table.concat(lines, "\n")
  end
  local sums, order = {}, nil
  for rank = 0, t:ranks() - 1 do
    local by, all = sums_of(t, rank, count)
    order, sums[rank + 1] = order or by, all
  end
  lines[1] = ("%s, %s, %s hashed"):format(lines[1], first == last and "step " .. first
    or ("steps %d to %d"):format(first, last), t.meta.full and "all" or "a sample")
  lines[2] = "  calls, times and bytes are those of a step" .. (count > 1 and ", the mean" or "")
  rank_lines(lines, sums, t.meta.device ~= "cuda")
  operator_lines(lines, order, sums[1], count)
  experts_lines(lines, t, count)
  flag_lines(lines, t)
  return table.concat(lines, "\n")
end

-- memory ----------------------------------------------------------------------------------------

--- The arena of a rank, with the last traced step's times.
local function memory_view(t, rank)
  local memory = t:program(rank).memory
  local view = { title = ("%s, rank %d"):format(t.meta.name, rank), bytes = memory.bytes,
    begin = memory.begin, finish = memory.finish, buffers = {} }
  for i, row in ipairs(memory.buffers) do
    view.buffers[i] = { name = row[1], bytes = row[2], offset = row[3], first = row[4],
      last = row[5], kind = row[6], site = row[7] }
  end
  local record = t.steps[#t.steps]
  if not record or record.step == 0 then return view end
  local times, edges = {}, {}
  local base = t:times(rank, record.step, view.begin).start_ns
  local stop = t:times(rank, record.step, view.finish).end_ns
  for i = view.begin, view.finish do
    local start = t:times(rank, record.step, i).start_ns - base
    times[#times + 1], edges[#edges + 1] = start // 1000, start / math.max(1, stop - base)
  end
  times[#times + 1], edges[#edges + 1] = (stop - base) // 1000, 1
  view.real = { edges = edges, title = ("step %d, real: %s MiB in all arenas counted by the "
    .. "allocator, %s planned; across: %.1f ms"):format(record.step,
    screen.mib(record.arena_peak), screen.mib(t.meta.planned_bytes), (stop - base) / 1e6) }
  return view, times
end

trace.memory_view = memory_view

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function trace.command(request)
  local options = request.options
  local t <close> = traces.open(request.words[1])
  local rank = options.rank or 0
  if rank >= t:ranks() then
    local text = "tidelock: trace: --rank %d: the trace has ranks 0 to %d"
    error({ status = 2, message = text:format(rank, t:ranks() - 1) }, 0)
  end
  if options.memory then memory_file.kind(options.memory) end
  io.stdout:write(trace.text(t), "\n")
  if options.chrome then chrome.write(t, options.chrome) end
  if options.memory then memory_file.write(options.memory, memory_view(t, rank)) end
  return 0
end

return trace
