--- rowwise_data.lua - operands of the cases of tests/gpu: numbers, ids, poison.
---
---     data.spread(dtype, shape [, factor [, offset]])   numbers in offset +- factor, some special
---     data.ids(count, low, high)                        i32 in low .. high
---     data.poison(dtype, shape)                         bytes 0xFF: NaN in f32 and bf16
---     data.starts(lengths [, entries])                  cu: starts of segments, the end repeated
local core = require "tidelock.core"

local data = {}
local state = 1

--- A number in [0, 1); the sequence is the same in every run.
local function draw()
  state = (state * 6364136223846793005 + 1442695040888963407) & 0xffffffffffffffff
  return (state >> 11) * 0x1p-53
end

function data.count(shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return count
end

--- Every 97th number is a zero of either sign, every 89th is subnormal, unless `plain`.
function data.spread(dtype, shape, factor, offset, plain)
  local values = {}
  for i = 1, data.count(shape) do
    local x = (2 * draw() - 1) * (factor or 1) + (offset or 0)
    if not plain and i % 97 == 0 then x = x < 0 and -0.0 or 0.0 end
    if not plain and i % 89 == 0 then x = x * 0x1p-130 end
    values[i] = x
  end
  return core.tensor(dtype, shape, values)
end

function data.ids(count, low, high)
  local values = {}
  for i = 1, count do values[i] = low + math.floor(draw() * (high - low + 1)) end
  return core.tensor("i32", { count }, values)
end

local ones = { f32 = 0xffffffff, bf16 = 0xffff, i32 = 0xffffffff, i64 = -1 }

function data.poison(dtype, shape)
  local bits = {}
  for i = 1, data.count(shape) do bits[i] = ones[dtype] end
  return core.tensor_from_bits(dtype, shape, bits)
end

function data.starts(lengths, entries)
  local values = { 0 }
  for i, length in ipairs(lengths) do values[i + 1] = values[i] + length end
  while #values < (entries or 0) do values[#values + 1] = values[#values] end
  return core.tensor("i32", { #values }, values)
end

--- The dtypes that operands are tried in: all f32, all bf16, and the two mixtures that plans have.
data.dtypes = { { "f32", "f32" }, { "bf16", "bf16" }, { "bf16", "f32" }, { "f32", "bf16" } }

return data
