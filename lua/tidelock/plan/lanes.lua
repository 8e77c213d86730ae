--- lanes.lua - communication in a lane of its own, with what either lane waits for.
---
---     as planned   [dx][dw][sum of dx][norm]          the sum needs dx alone
---     lane 0       [dx][dw]     [norm]                norm reads what the sum writes
---     lane 1           [sum of dx]
---
--- Rows of experts travel in that lane, too: those of a wave beside the products of another.
---
--- First, what stands before a message and is not needed for it moves behind it, unless order.lua
--- has found an order already. Then an instruction waits for the last one of the other lane whose
--- bytes it touches: reads what that writes, or writes what that reads or writes. Places of the
--- arena are used again by other tensors, so bytes are compared and not tensors. The verifier of
--- programs checks the result.
local lanes = {}

local sizes = { f32 = 4, bf16 = 2, i32 = 4, i64 = 8, u8 = 1 }
local look_back = 48 -- instructions that a message may overtake

local talks = {}
for _, name in ipairs { "all_gather", "reduce_scatter", "all_reduce", "all_reduce_max",
  "all_reduce_count", "send", "recv", "exchange" } do talks[name] = true end

--- First byte and the byte after the last of each operand.
local function ranges(program, operands)
  local out = {}
  for _, tensor in ipairs(operands) do
    local t = program.tensors[tensor]
    if t then
      local bytes = sizes[t.dtype]
      for _, n in ipairs(t.shape) do bytes = bytes * n end
      out[#out + 1], out[#out + 2] = t.offset, t.offset + bytes
    end
  end
  return out
end

local function overlap(a, b)
  for i = 1, #a, 2 do
    for k = 1, #b, 2 do
      if a[i] < b[k + 1] and b[k] < a[i + 1] then return true end
    end
  end
  return false
end

--- Whether the order of two instructions matters.
local function meet(a, b)
  return overlap(a.writes, b.writes) or overlap(a.writes, b.reads) or overlap(a.reads, b.writes)
end

--- Where the last message stands in what may be overtaken; before it, if there is none.
local function last_message(list)
  local first = math.max(1, #list - look_back + 1)
  for i = #list, first, -1 do
    if list[i].talks then return i end
  end
  return first - 1
end

--- What stands since the last message and is not needed for this one, ascending. Where two
--- micro-batches pass together (weave.lua), what is needed may wait for that last message, and the
--- other's work before it is there to hide this: it stays.
local function part(list, message)
  local needed, later, waits, talk = { message }, {}, false, last_message(list)
  for i = #list, talk + 1, -1 do
    local one, is_needed = list[i], false
    for _, other in ipairs(needed) do is_needed = is_needed or meet(one, other) end
    if is_needed then
      waits = waits or list[talk] ~= nil and list[talk].talks and meet(one, list[talk])
    end
    -- what stays is not overtaken by what it needs either
    if is_needed or waits and one.made.micro ~= message.made.micro then
      needed[#needed + 1] = one
    else
      table.insert(later, 1, one)
    end
  end
  return later
end

--- The instructions of a section in their new order.
local function reorder(items)
  local list = {}
  for _, item in ipairs(items) do
    if item.talks then
      local later, moves = part(list, item), {}
      for _, one in ipairs(later) do moves[one] = true end
      for i = #list, 1, -1 do
        if #later == 0 or not next(moves) then break end
        if moves[list[i]] then
          moves[list[i]] = nil
          table.remove(list, i)
        end
      end
      list[#list + 1] = item
      table.move(later, 1, #later, #list + 1, list)
    else
      list[#list + 1] = item
    end
  end
  return list
end

--- The last of `others` that `item` has to wait for; those up to it need not be looked at again by
--- the same lane.
local function wait(item, others)
  for i = #others, 1, -1 do
    if meet(item, others[i]) then
      item.made.waits = { others[i].index }
      return i
    end
  end
  return 0
end

--- Lanes and waits of a section; `first` is its first instruction.
local function assign(list, first)
  local work, open = {}, {} -- of lane 0; of lane 1, that lane 0 has not waited for
  for i, item in ipairs(list) do
    item.index = first + i - 1
    if item.talks then
      item.made.lane = 1
      local seen = wait(item, work)
      table.move(work, seen + 1, #work + seen, 1) -- later messages come after this one
      open[#open + 1] = item
    else
      local seen = wait(item, open)
      table.move(open, seen + 1, #open + seen, 1)
      work[#work + 1] = item
    end
  end
end

--- Reorders a program, unless it is `ordered`, and sets lane and waits of every instruction
--- (emit.lua). Returns the new number of each old one.
function lanes.assign(program, ordered)
  local position = {}
  for _, name in ipairs { "init", "step", "eval" } do
    local range = program.sections[name]
    local items = {}
    for i = 1, range and range[2] or 0 do
      local made = program.instructions[range[1] + i - 1]
      items[i] = {
        made = made, old = range[1] + i - 1, talks = talks[made.op],
        reads = ranges(program, made.inputs), writes = ranges(program, made.outputs),
      }
    end
    local list = ordered and items or reorder(items)
    if range then assign(list, range[1]) end
    for _, item in ipairs(list) do
      program.instructions[item.index] = item.made
      position[item.old] = item.index
    end
  end
  return position
end

return lanes
