--- Proves a pipeline schedule before anything runs: built-in and user-written ones alike.
--
--   complete       each (micro-batch, chunk) once forward, and once backward or input + weight
--   in order       input after forward, weight after input, on the same rank
--   exact          forward passes and weight gradients of a chunk ascend in micro-batches, as the
--                  sums over tokens that they add to do: no schedule changes a bit
--   first in,      a channel (source, target, activation or gradient) delivers in the order in
--   first out      which it was filled: there are no tags on the wire
--   no deadlock    with a single mailbox slot a channel
--
-- The proof is a run on paper. Rank r, chunk c is pipeline stage c * pp + r. An operation starts
-- when its rank is free and its message is there, frees the slot of that message when it has
-- computed, and ends when its own message has found a slot:
--
--   F(stage) --activation--> F(stage + 1) ..  F(last) .. I(stage + 1) --gradient--> I(stage)
--
-- The same run with two slots (the default of the executor) gives time, bubble and peaks.

local check = {}

check.slots = 2 -- mailbox slots a channel; with two every built-in schedule runs at full speed

local phases = { forward = true, backward = true, input = true, weight = true }

local function describe(rank, index, op)
  return ("rank %d, operation %d: %s of micro-batch %s%s"):format(rank, index, tostring(op.phase),
    tostring(op.micro), op.chunk ~= 0 and ", chunk " .. tostring(op.chunk) or "")
end

--- Key of a (micro, chunk) pair.
local function key_of(op, micros) return op.chunk * micros + op.micro end

--- Is the operation one that this schedule could hold at all?
local function shape_problem(op, micros, chunks)
  if not phases[op.phase] then
    return "no such phase; there are forward, backward, input, weight"
  elseif math.type(op.micro) ~= "integer" or op.micro < 0 or op.micro >= micros then
    return ("micro-batches are the integers 0 to %d"):format(micros - 1)
  elseif math.type(op.chunk) ~= "integer" or op.chunk < 0 or op.chunk >= chunks then
    return ("chunks are the integers 0 to %d"):format(chunks - 1)
  end
end

--- What stands before `op` that forbids it, given the places of the phases seen so far.
local function order_problem(op, place)
  if place[op.phase] then
    return "it stands twice, first as operation " .. place[op.phase]
  elseif op.phase == "forward" then
    return nil
  elseif not place.forward then
    return "it needs the forward pass, which this rank has not done yet"
  elseif op.phase == "weight" then
    if place.backward then return "operation " .. place.backward .. " has already done it" end
    return not place.input and "it needs the input gradient, which this rank has not made yet"
  elseif place.input or place.backward then
    return ("operation %d has already made the input gradient"):format(
      place.input or place.backward)
  end
end

--- What is added up over micro-batches in a phase; "input" adds nothing.
local summed = { forward = "sum over tokens", backward = "weight gradient",
  weight = "weight gradient" }

--- Completeness, order inside the rank, and the order of what is summed over micro-batches.
local function check_rank(rank, list, micros, chunks, problems)
  local seen, last = {}, { ["sum over tokens"] = {}, ["weight gradient"] = {} }
  local function add(text) problems[#problems + 1] = text end
  for i, op in ipairs(list) do
    local wrong = shape_problem(op, micros, chunks)
    if wrong then
      add(describe(rank, i, op) .. ": " .. wrong)
    else
      local key = key_of(op, micros)
      local place = seen[key] or {}
      seen[key] = place
      wrong = order_problem(op, place)
      if wrong then add(describe(rank, i, op) .. ": " .. wrong) end
      place[op.phase] = place[op.phase] or i
      local sum = summed[op.phase]
      local before = sum and last[sum][op.chunk]
      if before and before > op.micro then
        add(("%s: its %s follows that of micro-batch %d; they must ascend, or the bits would "
          .. "depend on the schedule"):format(describe(rank, i, op), sum, before))
      end
      if sum then last[sum][op.chunk] = op.micro end
    end
  end
  for chunk = 0, chunks - 1 do
    for micro = 0, micros - 1 do
      local place = seen[key_of({ micro = micro, chunk = chunk }, micros)] or {}
      local missing = not place.forward and "forward"
        or not (place.backward or place.input) and "backward (or input and weight)"
        or place.input and not place.weight and "weight"
      if missing then
        add(("rank %d: %s of micro-batch %d%s is missing"):format(rank, missing, micro,
          chunks > 1 and ", chunk " .. chunk or ""))
      end
    end
  end
end

--- The message that an operation reads or writes: channel name and stage; nil when there is none.
-- A message between two chunks of one rank (pp = 1) needs no channel.
local function message(op, rank, size, chunks, side)
  if op.phase == "weight" or size == 1 then return nil end
  local stage, last = op.chunk * size + rank, chunks * size - 1
  local forward = op.phase == "forward"
  local step = (forward == (side == "write")) and 1 or -1
  local other = stage + step
  if other < 0 or other > last then return nil end
  local source, target = rank, other % size
  if side == "read" then source, target = target, source end
  return (forward and "activation " or "gradient ") .. source .. ">" .. target
end

--- Both ends of every channel must name the same messages in the same order.
-- Returns the operations with their places in the channels, and the problems.
local function check_channels(lists, size, chunks, problems)
  local channels, names = {}, {}
  for rank = 0, size - 1 do
    for i, op in ipairs(lists[rank + 1]) do
      for _, side in ipairs { "write", "read" } do
        local name = message(op, rank, size, chunks, side)
        if name then
          if not channels[name] then
            channels[name] = { write = {}, read = {} }
            names[#names + 1] = name
          end
          local ends = channels[name][side]
          ends[#ends + 1] = { rank = rank, index = i, op = op }
        end
      end
    end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local channel = channels[name]
    for n, read in ipairs(channel.read) do
      local write = channel.write[n]
      local step = read.op.phase == "forward" and -1 or 1
      local wanted = read.op.chunk * size + read.rank + step
      local got = write and write.op.chunk * size + write.rank
      if not write or write.op.micro ~= read.op.micro or got ~= wanted then
        problems[#problems + 1] = ("%s: message %d of the channel %s is %s; both ranks must use "
          .. "one order"):format(describe(read.rank, read.index, read.op), n, name,
          write and "that of " .. describe(write.rank, write.index, write.op) or "never sent")
        break
      end
    end
  end
end

--- Cost of one operation: a number a rank and micro-batch, shared evenly by its chunks, or a list
-- with one number a pipeline stage.
local function cost_of(costs, phase, stage, chunks)
  if phase == "backward" then
    return cost_of(costs, "input", stage, chunks) + cost_of(costs, "weight", stage, chunks)
  end
  local cost = costs[phase]
  return type(cost) == "table" and cost[stage + 1] or cost / chunks
end

--- State of a run on paper.
local function new_run(lists, options, slots)
  local run = {
    lists = lists, size = options.pp, micros = options.micros, slots = slots,
    chunks = options.virtual_stages or 1,
    costs = options.costs or { forward = 1, input = 1, weight = 1 },
    next = {}, time = {}, sending = {}, ended = {}, sent = {}, read = {}, spans = {},
  }
  for rank = 1, run.size do run.next[rank], run.time[rank] = 1, 0 end
  return run
end

--- When the message for `op` arrives; nil when it has not been sent yet. 0 when it needs none.
local function arrival(run, op, rank)
  if op.phase == "weight" then return 0 end
  local stage = op.chunk * run.size + rank
  local from = op.phase == "forward" and stage - 1 or stage + 1
  if from < 0 or from >= run.chunks * run.size then return 0 end
  return run.ended[(op.phase == "forward" and "F" or "I") .. from .. "," .. op.micro]
end

--- Start the next operation of `rank` (from 0) when its message is there: compute, free the slot.
-- Returns whether it did.
local function compute(run, rank)
  local op = run.lists[rank + 1][run.next[rank + 1]]
  local there = op and arrival(run, op, rank)
  if not there then return false end
  local stop = math.max(run.time[rank + 1], there)
    + cost_of(run.costs, op.phase, op.chunk * run.size + rank, run.chunks)
  local source = message(op, rank, run.size, run.chunks, "read")
  if source then
    run.read[source] = run.read[source] or {}
    table.insert(run.read[source], stop)
  end
  run.spans[#run.spans + 1] = { rank = rank, op = op, start = math.max(run.time[rank + 1], there),
    stop = stop }
  run.time[rank + 1], run.sending[rank + 1] = stop, true
  return true
end

--- End the operation that `rank` has computed: its message goes into a free slot, or it waits.
-- Returns whether it ended.
local function send(run, rank)
  local op, stop = run.lists[rank + 1][run.next[rank + 1]], run.time[rank + 1]
  local target = message(op, rank, run.size, run.chunks, "write")
  if target then
    local n = (run.sent[target] or 0) + 1
    if n > run.slots then
      local freed = run.read[target] and run.read[target][n - run.slots]
      if not freed then return false end
      stop = math.max(stop, freed)
    end
    run.sent[target] = n
  end
  if op.phase ~= "weight" then
    local stage = op.chunk * run.size + rank
    run.ended[(op.phase == "forward" and "F" or "I") .. stage .. "," .. op.micro] = stop
  end
  run.time[rank + 1], run.sending[rank + 1] = stop, false
  run.next[rank + 1] = run.next[rank + 1] + 1
  return true
end

--- One move of a rank: the half of an operation that comes next.
local function advance(run, rank)
  if run.sending[rank + 1] then return send(run, rank) end
  return compute(run, rank)
end

--- Run until all lists are done or nobody can move. Returns the ranks that are stuck.
local function finish(run)
  local moved = true
  while moved do
    moved = false
    for rank = 0, run.size - 1 do
      while advance(run, rank) do moved = true end
    end
  end
  local stuck = {}
  for rank = 0, run.size - 1 do
    if run.next[rank + 1] <= #run.lists[rank + 1] then stuck[#stuck + 1] = rank end
  end
  return stuck
end

--- Activations of chunks alive at once on a rank: forward makes one, backward or weight ends it.
local function peak_of(list)
  local live, peak = 0, 0
  for _, op in ipairs(list) do
    if op.phase == "forward" then
      live = live + 1
      peak = math.max(peak, live)
    elseif op.phase ~= "input" then
      live = live - 1
    end
  end
  return peak
end

--- Busiest rank's work without any waiting.
local function ideal_time(run)
  local ideal = 0
  for rank = 0, run.size - 1 do
    local work = 0
    for _, op in ipairs(run.lists[rank + 1]) do
      work = work + cost_of(run.costs, op.phase, op.chunk * run.size + rank, run.chunks)
    end
    ideal = math.max(ideal, work)
  end
  return ideal
end

--- Check the lists of all ranks.
---@param lists table # lists[pp_rank + 1]: operations in order
---@param options { pp: integer, micros: integer, virtual_stages: integer?, costs: table? }
--   costs = { forward, input, weight }: of a rank's whole share of a micro-batch (numbers), or one
--   number a pipeline stage (lists); 1, 1, 1 unless given
---@return table|nil report # { peak = {chunks alive on rank 0, ..}, time, ideal, bubble,
--   bubble_fraction (of time), spans = { { rank, op, start, stop }, .. } }; nil when there are
--   problems
---@return string[]|nil problems # every one names rank, operation and micro-batch
function check.run(lists, options)
  local problems = {}
  local micros, chunks = options.micros, options.virtual_stages or 1
  for rank = 0, options.pp - 1 do
    check_rank(rank, lists[rank + 1], micros, chunks, problems)
  end
  if #problems == 0 then check_channels(lists, options.pp, chunks, problems) end
  if #problems > 0 then return nil, problems end
  local tight = new_run(lists, options, 1)
  for _, rank in ipairs(finish(tight)) do
    local index = tight.next[rank + 1]
    problems[#problems + 1] = describe(rank, index, lists[rank + 1][index])
      .. ": deadlock; with one mailbox slot a channel it waits for ever"
  end
  if #problems > 0 then return nil, problems end
  local run = new_run(lists, options, check.slots)
  finish(run)
  local report = { peak = {}, time = math.max(table.unpack(run.time)), ideal = ideal_time(run),
    spans = run.spans }
  for rank, list in ipairs(lists) do report.peak[rank] = peak_of(list) end
  report.bubble = report.time - report.ideal
  report.bubble_fraction = report.bubble / report.time
  return report
end

return check
