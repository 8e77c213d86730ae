--- One level of the processor (TL_SIMD): hashes of all that the bit models give, a line each.
--
--   exp2 5b1f..      all 2^32 inputs, or the blocks that the argument names: "4096" are all
--   linear 90aa..    bf16 products through the tensor-core model, on the self-test's operands
--
-- Run by selftest.lua in a process of its own, since the level is chosen once a process.

local core = require "tidelock.core"

local blocks = math.tointeger(tonumber((...))) or 4096
local sums = core.doctor.exp2("host", 0, blocks)
local text = {}
for i, sum in ipairs(sums) do text[i] = ("%016x"):format(sum) end
print("exp2 " .. core.hash(table.concat(text, " ")))

--- Random bits as bf16, infinities and NaN among them, and numbers near each other.
local function operand(rows, cols, stream, mask, set)
  local bits = {}
  for i = 0, rows * cols // 2 - 1 do
    local word = core.random_words(0, stream, i, 0)
    bits[2 * i + 1], bits[2 * i + 2] = word & mask | set, word >> 16 & mask | set
  end
  return core.tensor_from_bits("bf16", { rows, cols }, bits)
end

local hashes = {}
for i, kind in ipairs { { 0xffff, 0 }, { 0x83ff, 0x3c00 }, { 0x9fff, 0x2000 } } do
  local x <close> = operand(37, 208, 2 * i, table.unpack(kind))
  local weight <close> = operand(70, 208, 2 * i + 1, table.unpack(kind))
  local y <close> = core.tensor("bf16", { 37, 70 })
  core.call("linear", { x, weight }, { y }, { parts = 1, biases = 0, leaves = 1 })
  hashes[i] = y:hash()
end
print("linear " .. core.hash(table.concat(hashes, " ")))
