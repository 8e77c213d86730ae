-- sum.lua - one sum at tp 1, 2 and 4, the usual way and in a tree of four leaves. The README prints
-- what it says: ./tl lua docs/sum.lua
local f32 = require("tidelock.core").f32

local numbers = { 5.6, 4.8, 4.0, 3.2, 2.4, 1.6, 0.8, 0.0 }

local function chain(first, count)
  local sum = 0.0
  for i = first, first + count - 1 do sum = f32(sum + f32(numbers[i])) end
  return sum
end

--- The sum of `n` equal runs of numbers first .. first + count - 1, each a chain, added in pairs.
local function tree(first, count, n)
  if n == 1 then return chain(first, count) end
  return f32(tree(first, count // 2, n // 2) + tree(first + count // 2, count // 2, n // 2))
end

local function show(x)
  return ("%.6f %08x"):format(x, string.unpack("<I4", string.pack("<f", x)))
end

for _, tp in ipairs { 1, 2, 4 } do
  local parts = {}
  for rank = 0, tp - 1 do parts[rank + 1] = tree(1 + rank * 8 // tp, 8 // tp, 4 // tp) end
  while #parts > 1 do
    for i = 1, #parts // 2 do parts[i] = f32(parts[2 * i - 1] + parts[2 * i]) end
    for _ = 1, #parts // 2 do table.remove(parts) end
  end
  print(("tp %d    %s    %s"):format(tp, show(tree(1, 8, tp)), show(parts[1])))
end
