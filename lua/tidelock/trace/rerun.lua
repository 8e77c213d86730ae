--- rerun.lua - one instruction of a trace once more, on the host, from the operands that it had.
---
---     before (inputs), into (places that are also read)  ->  the operator  ->  beside what was
---     kept
---
--- Collectives are run again on a group of thread ranks, from what every member had. Operators that
--- read the data, and messages through a channel, are not run again.
local core = require "tidelock.core"

local rerun = {}

local traits = {}
for _, row in ipairs(core.ops()) do traits[row.name] = row.traits end

--- The ranks of the group that a collective of `rank` goes over, in group order.
function rerun.members(t, rank, made)
  local name = t:program(rank).groups[made.attrs.group + 1]
  return t.meta.ranks[rank + 1].groups[name] or { rank }
end

--- The inputs of an instruction; nil and a reason where one was not kept.
function rerun.inputs(t, rank, step, instruction)
  local made, list = t:program(rank).instructions[instruction], {}
  for k, index in ipairs(made.ins) do
    if index == 0 then list[k] = false
    else
      list[k] = t:operand(rank, step, instruction, "before", k)
      if not list[k] then return nil, "its inputs were not kept" end
    end
  end
  return list
end

--- Empty outputs, or what stood there where the operator reads it.
local function outputs_of(t, rank, step, instruction)
  local made, list = t:program(rank).instructions[instruction], {}
  for k, index in ipairs(made.outs) do
    if index == 0 then list[k] = false
    else
      local dtype, shape = t:tensor_facts(rank, index)
      list[k] = t:operand(rank, step, instruction, "into", k) or core.tensor(dtype, shape)
    end
  end
  return list
end

local function run_collective(t, rank, step, instruction)
  local made = t:program(rank).instructions[instruction]
  local members, xs, ys, mine = rerun.members(t, rank, made), {}, {}, nil
  for i, member in ipairs(members) do
    local ins, reason = rerun.inputs(t, member, step, instruction)
    if not ins then return nil, reason end
    local dtype, shape = t:tensor_facts(member, made.outs[1])
    xs[i], ys[i] = ins[1], core.tensor(dtype, shape)
    if member == rank then mine = i end
  end
  local group <close> = core.group(#members)
  group[made.op](group, xs, ys, { outer = made.attrs.outer or 1 })
  return { ys[mine] }
end

--- What the instruction gives on the host.
---@return table[]? outputs # tensors, false where there is none
---@return string? reason
function rerun.run(t, rank, step, instruction)
  local made = t:program(rank).instructions[instruction]
  local its = traits[made.op]
  if not its then return nil, "this program has no operator " .. made.op end
  if its.data then return nil, "it reads the data" end
  if made.op == "send" or made.op == "recv" then return nil, "it is a message" end
  if its.comm then return run_collective(t, rank, step, instruction) end
  local ins, reason = rerun.inputs(t, rank, step, instruction)
  if not ins then return nil, reason end
  local outs, record = outputs_of(t, rank, step, instruction), t.by_step[step]
  core.call(made.op, ins, outs, made.attrs, {
    step = math.max(0, step - 1), seed = t.meta.seed, scalars = record.scalars,
    sample_base = t.meta.ranks[rank + 1].sample_base,
  })
  return outs
end

---@class tidelock.Verdict # of one instruction: what it gave, beside what it gives when run again
---@field rank integer
---@field instruction integer
---@field position integer # of the output that differs
---@field element integer # from 1, in that output
---@field count integer # elements that differ
---@field recorded table # tensors
---@field again table

--- Runs an instruction again: nil when it gives what was kept, or when it cannot be told (then with
--- a reason); else what differs.
---@return tidelock.Verdict?
---@return string? reason
function rerun.check(t, rank, step, instruction)
  local outs, reason = rerun.run(t, rank, step, instruction)
  if not outs then return nil, reason end
  for k, again in ipairs(outs) do
    local recorded = again and t:operand(rank, step, instruction, "after", k)
    if recorded then
      local at, count = core.trace_compare(recorded, again)
      if at then
        return { rank = rank, instruction = instruction, position = k, element = at, count = count,
          recorded = recorded, again = again }
      end
    end
  end
end

--- Instructions that left the inputs of this one, where what they left is the rank's own.
local function makers(t, rank, instruction)
  local program = t:program(rank)
  local made_at, own, list = {}, {}, {}
  for _, o in ipairs(t.outputs[t:program_of(rank)]) do
    if o.own then own[o.instruction] = true end
  end
  for i, kept in ipairs(program.captures.of) do
    for _, offset in ipairs(kept.after) do
      if offset >= 0 then made_at[offset] = i end
    end
  end
  local kept = program.captures.of[instruction]
  for _, field in ipairs { "before", "into" } do
    for _, offset in ipairs(kept[field]) do
      local maker = offset >= 0 and made_at[offset]
      if maker and maker ~= instruction and own[maker] then list[#list + 1] = maker end
    end
  end
  return list
end

--- The instruction to blame, from an output that is wrong back through what ranks keep to
--- themselves:
--- partial sums and accumulators, of all members where a collective joins them. Nil when each gives
--- again what it gave.
---@return tidelock.Verdict?
---@return integer checked # instructions that were run again
function rerun.blame(t, rank, step, instruction)
  local seen, checked, worst = {}, 0, nil
  local queue = { { rank, instruction } }
  while #queue > 0 do
    local at, i = table.unpack(table.remove(queue))
    local name = at .. " " .. i
    if not seen[name] then
      seen[name] = true
      local verdict, reason = rerun.check(t, at, step, i)
      if not reason then checked = checked + 1 end
      local before = verdict and (not worst or i < worst.instruction
        or i == worst.instruction and at < worst.rank)
      if before then worst = verdict end
      local made = t:program(at).instructions[i]
      for _, maker in ipairs(makers(t, at, i)) do queue[#queue + 1] = { at, maker } end
      if traits[made.op].comm and made.op ~= "send" and made.op ~= "recv" then
        for _, member in ipairs(rerun.members(t, at, made)) do
          queue[#queue + 1] = { member, i }
        end
      end
    end
  end
  return worst, checked
end

return rerun
