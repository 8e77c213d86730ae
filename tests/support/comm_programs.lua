--- comm_programs.lua - small programs that communicate: what one transport gives, all give.
---
---     local cases, filled = require "support.comm_programs" (n, most)
---                          n ranks, in one group "all"; sizes up to `most`
---     case = { name, size, dtype, make }       x, y = make(builder, size, dtype)
---
--- x is given (filled(dtype, count, rank + 1) on each rank), y is looked at. Needs no Lua packages.
local core = require "tidelock.core"

--- Values of all sizes and signs, the same for the same seed.
local function filled(dtype, count, seed)
  local bits, state = {}, seed * 7919 + 17
  for i = 1, count do
    state = state * 6364136223846793005 + 1442695040888963407
    local word = state >> 33
    if dtype == "i64" then
      bits[i] = word
    else -- exponents 2^-16 .. 2^15
      local f32 = (word & 1) << 31 | (111 + (word >> 8 & 31)) << 23 | (word >> 4 & 0x7fffff)
      bits[i] = dtype == "bf16" and f32 >> 16 or f32
    end
  end
  return core.tensor_from_bits(dtype, { count }, bits)
end

local function collective(n, op, attrs, in_place)
  return function(b, size, dtype)
    local x = b:tensor(dtype, { size }, { persistent = true })
    local out = op == "all_gather" and size * n or op == "reduce_scatter" and size // n or size
    local y = in_place and x or b:tensor(dtype, { out })
    b:add("step", op, { x }, { y }, attrs)
    return x, y
  end
end

--- Sums in a lane of their own beside other work, with everything stated.
local function in_a_lane(b, size)
  local x = b:tensor("f32", { size }, { persistent = true })
  local y, z = b:tensor("f32", { size }), b:tensor("f32", { size })
  for _ = 1, 5 do
    local made = b:add("step", "scale", { x }, { y }, { factor = 0.5 })
    local sum = b:add("step", "all_reduce", { y }, { y }, { group = 0 },
      { lane = 1, waits = { made } })
    b:add("step", "scale", { x }, { z }, { factor = 3 })
    b:add("step", "binary", { y, z }, { x }, { kind = 0, broadcast = 0 }, { waits = { sum } })
  end
  return x, x
end

return function(n, most)
  local cases = {}
  local function case(name, sizes, dtype, make)
    for _, size in ipairs(sizes) do
      if size > (most or size) then break end
      cases[#cases + 1] = { name = name .. " of " .. size, size = size, dtype = dtype, make = make }
    end
  end
  -- of two ranks on GPUs, 262,144 floats are the longest sum that everybody folds whole
  local sums, group = { 1, 3, 16, 4097, 65536, 262144, 262145, 1000003 }, { group = 0 }
  case("all_reduce", sums, "f32", collective(n, "all_reduce", group))
  case("all_reduce in place", sums, "f32", collective(n, "all_reduce", group, true))
  case("all_reduce_max", { 1, 4097, 100003 }, "f32", collective(n, "all_reduce_max", group))
  case("all_reduce_count", { 1, 4097, 100003 }, "i64",
    collective(n, "all_reduce_count", group, true))
  case("reduce_scatter", { 8, 24, 8 * 4099, 1 << 19 }, "f32",
    collective(n, "reduce_scatter", { group = 0, outer = 1 }))
  case("reduce_scatter, outer 3", { 24, 24 * 1025, 24 * 20001 }, "f32",
    collective(n, "reduce_scatter", { group = 0, outer = 3 }))
  case("all_gather", { 1, 7, 4096, 300001 }, "bf16",
    collective(n, "all_gather", { group = 0, outer = 1 }))
  case("all_gather, outer 5", { 5, 35, 40000, 500005 }, "f32",
    collective(n, "all_gather", { group = 0, outer = 5 }))
  case("all_reduce in a lane", { 4097, 300000 }, "f32", in_a_lane)
  return cases, filled
end
