--- lanes.lua - communication in a lane of its own, with what either lane waits for.
---
---     lane 0   [a][b]      [c][d]      [e]        e reads what the sum writes
---     lane 1         [sum of b's result]
---
--- Instructions of a lane run in order. One of lane 1 waits for the last of lane 0 before it; one
--- of lane 0 waits for the last of lane 1 whose bytes it touches: reads what that writes, or writes
--- what that reads or writes. Places of the arena are used again by other tensors, so bytes are
--- compared and not tensors. The verifier of programs checks the result.
local lanes = {}

local sizes = { f32 = 4, bf16 = 2, i32 = 4, i64 = 8, u8 = 1 }

local talks = {}
for _, name in ipairs { "all_gather", "reduce_scatter", "all_reduce", "all_reduce_max",
  "all_reduce_count", "send", "recv" } do talks[name] = true end

--- First byte and the byte after the last of each operand.
local function ranges(program, operands, out)
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

local function meets(a, b)
  for i = 1, #a, 2 do
    for k = 1, #b, 2 do
      if a[i] < b[k + 1] and b[k] < a[i + 1] then return true end
    end
  end
  return false
end

--- Messages of lane 1 that nothing of lane 0 has waited for yet, oldest first.
local function wait_for_messages(program, made, open)
  local reads = ranges(program, made.inputs, {})
  local writes = ranges(program, made.outputs, {})
  for i = #open, 1, -1 do
    local m = open[i]
    if meets(reads, m.writes) or meets(writes, m.writes) or meets(writes, m.reads) then
      made.waits = { m.index }
      table.move(open, i + 1, #open + i, 1)
      return
    end
  end
end

local function assign(program, first, count)
  local open, last = {}, nil
  for index = first, first + count - 1 do
    local made = program.instructions[index]
    if talks[made.op] then
      made.lane, made.waits = 1, last and { last } or {}
      open[#open + 1] = {
        index = index, reads = ranges(program, made.inputs, {}),
        writes = ranges(program, made.outputs, {}),
      }
    else
      wait_for_messages(program, made, open)
      last = index
    end
  end
end

--- Sets lane and waits of every instruction of a program (emit.lua).
function lanes.assign(program)
  for _, name in ipairs { "init", "step", "eval" } do
    local range = program.sections[name]
    if range then assign(program, range[1], range[2]) end
  end
end

return lanes
