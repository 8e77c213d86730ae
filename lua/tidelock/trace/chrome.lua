--- chrome.lua - a trace as Chrome trace events, which Perfetto (ui.perfetto.dev) opens.
---
---     process rank 0   lane 0   [forward: linear][all_reduce (waiting)]---.
---     process rank 1   lane 0   [forward: linear   ][all_reduce]<---------'   flow
---
--- X: an instruction, with what it moved and launched; a wait is a slice inside. Flows lead from a
--- send to its receive, and through the members of a collective. Times are microseconds from the
--- first instruction; one object a line, so that a file cut short can still be read.
local core = require "tidelock.core"
local sorted_keys = require "tidelock.text.sorted_keys"

local chrome = {}

local function writer(path)
  local file, message = io.open(path, "wb")
  if not file then error({ status = 2, message = "tidelock: --chrome: " .. message }, 0) end
  local self, first = { file = file }, true
  file:write '{"displayTimeUnit":"ms","traceEvents":[\n'
  function self.put(event)
    if not first then file:write ",\n" end
    first = false
    if not file:write(core.json.encode(event)) then error("tidelock: cannot write " .. path, 0) end
  end
  function self.close()
    file:write "\n]}\n"
    file:close()
  end
  return self
end

--- Names of processes and lanes.
local function name_all(t, put)
  for rank = 0, t:ranks() - 1 do
    local at = t.meta.ranks[rank + 1].coordinates
    put { ph = "M", pid = rank, tid = 0, name = "process_name", args = {
      name = ("rank %d: tp %d, pp %d, dp %d"):format(rank, at.tp, at.pp, at.dp) } }
    put { ph = "M", pid = rank, tid = 0, name = "process_sort_index", args = { sort_index = rank } }
    local lanes = {}
    for _, made in ipairs(t:program(rank).instructions) do lanes[made.lane] = true end
    for _, lane in ipairs(sorted_keys(lanes)) do
      put { ph = "M", pid = rank, tid = lane, name = "thread_name", args = {
        name = "lane " .. lane } }
    end
  end
end

--- Where a slice has its end of a flow, in ns. A flow that ends before it begins is not drawn, and
--- a receive has often waited longer than half its time when its message is sent: so it leads from
--- the begin of a send's own work to the last moment of its receive. Of a collective: the middle.
local function moment(op, times)
  if op == "send" then return math.min(times.start_ns + times.wait_ns, times.end_ns) end
  if op == "recv" then return math.max(times.start_ns, times.end_ns - 1) end
  return (times.start_ns + times.end_ns) // 2
end

--- Collects what belongs together: id of a message -> its slices.
local function note_flow(flows, id, rank, made, times, base)
  if not id then return end
  if not flows[id] then
    flows[id] = {}
    flows[#flows + 1] = id
  end
  table.insert(flows[id], { rank = rank, lane = made.lane,
    ts = (moment(made.op, times) - base) / 1000, source = made.op == "send", op = made.op })
end

local function put_flows(flows, put, number)
  for _, id in ipairs(flows) do
    local list = flows[id]
    table.sort(list, function(x, y)
      if x.source ~= y.source then return x.source end
      if x.ts ~= y.ts then return x.ts < y.ts end
      return x.rank < y.rank
    end)
    if #list > 1 then
      number = number + 1
      for k, slice in ipairs(list) do
        local ph = k == 1 and "s" or k == #list and "f" or "t"
        put { ph = ph, bp = ph == "f" and "e" or nil, id = number, cat = "message",
          name = slice.op == "recv" and "send" or slice.op, pid = slice.rank, tid = slice.lane,
          ts = slice.ts }
      end
    end
  end
  return number
end

local function put_slice(t, put, rank, step, i, times, base)
  local made = t:program(rank).instructions[i]
  local args = { instruction = i - 1, recipe = made.site, path = made.path, micro = made.micro,
    step = step }
  if times.moved > 0 then args.moved_bytes = times.moved end
  if times.launches > 0 then
    args.kernels = times.launches
    args.grid = table.concat(times.blocks, " ") .. " x " .. table.concat(times.threads, " ")
    args.shared_bytes = times.shared
  end
  local ts, duration = (times.start_ns - base) / 1000, (times.end_ns - times.start_ns) / 1000
  put { ph = "X", pid = rank, tid = made.lane, name = made.op, cat = made.phase, ts = ts,
    dur = duration, args = args }
  if times.wait_ns > 0 then
    put { ph = "X", pid = rank, tid = made.lane, name = "waiting", cat = "wait", ts = ts,
      dur = math.min(times.wait_ns / 1000, duration), args = { instruction = i - 1 } }
  end
end

--- The earliest start of all ranks and steps.
local function origin(t)
  local base
  for _, step in ipairs(t.steps) do
    for rank = 0, t:ranks() - 1 do
      local first, last = t:section(rank, step.step)
      if last >= first then
        local start = t:times(rank, step.step, first).start_ns
        base = base and math.min(base, start) or start
      end
    end
  end
  return base or 0
end

--- Writes all steps of a trace.
function chrome.write(t, path)
  local out, base, number = writer(path), origin(t), 0
  name_all(t, out.put)
  for _, record in ipairs(t.steps) do
    local step, flows = record.step, {}
    for rank = 0, t:ranks() - 1 do
      local first, last = t:section(rank, step)
      local id_of = t:messages(rank)
      for i = first, last do
        local times = t:times(rank, step, i)
        if i == first then
          out.put { ph = "i", s = "p", pid = rank, tid = 0, name = "step " .. step,
            ts = (times.start_ns - base) / 1000 }
        end
        put_slice(t, out.put, rank, step, i, times, base)
        local made = t:program(rank).instructions[i]
        note_flow(flows, id_of(made), rank, made, times, base)
      end
    end
    number = put_flows(flows, out.put, number)
  end
  out.close()
end

return chrome
