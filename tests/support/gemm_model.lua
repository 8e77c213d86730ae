--- The products of kernels/gemm/gemm.h, one number at a time: bits for the kernels to match.
---
---     local m = model.matrix(tensor)                    rows of f32 numbers, or of bf16 bits
---     model.linear(x, weight, t, n, leaves)             element (t, n) before bias and rounding
---     model.grad_input(grads, weights, ranges, t, k, leaves)
---     model.grad_weight(grad, x, n, k, pieces, start)   pieces: lists of rows; start: a number
local core = require "tidelock.core"
local fma = require "support.attention_model".fma
local tensorcore = require "support.tensorcore_model"

local model = {}

local function from_bits(bits) return (string.unpack("<f", string.pack("<I4", bits))) end
local function to_bits(x) return (string.unpack("<I4", string.pack("<f", x))) end

--- rows[t][k], and the dtype.
function model.matrix(tensor)
  local rows, columns = table.unpack(tensor:shape())
  local flat = tensor:dtype() == "bf16" and tensor:bits() or tensor:flat()
  local matrix = { dtype = tensor:dtype(), rows = rows, columns = columns or 1 }
  for t = 1, rows do
    matrix[t] = table.move(flat, (t - 1) * matrix.columns + 1, t * matrix.columns, 1, {})
  end
  return matrix
end

--- Resumes from the number c over the lists a and b.
local function chain(dtype, a, b, c)
  if dtype == "bf16" then return from_bits(tensorcore.chain(a, b, to_bits(c))) end
  for k = 1, #a do c = fma(a[k], b[k], c) end
  return c
end

local function tree(leaves)
  while #leaves > 1 do
    local sums = {}
    for i = 1, #leaves, 2 do sums[#sums + 1] = core.f32(leaves[i] + leaves[i + 1]) end
    leaves = sums
  end
  return leaves[1]
end

local function run(count, leaves, j) return count * j // leaves, count * (j + 1) // leaves end

function model.linear(x, weight, t, n, leaves)
  local sums = {}
  for j = 0, leaves - 1 do
    local first, stop = run(x.columns, leaves, j)
    sums[j + 1] = chain(x.dtype, { table.unpack(x[t], first + 1, stop) },
      { table.unpack(weight[n], first + 1, stop) }, 0.0)
  end
  return tree(sums)
end

--- ranges: first and count of part 1, first and count of part 2, ...; first counts from 0.
function model.grad_input(grads, weights, ranges, t, k, leaves)
  local sums = {}
  for j = 0, leaves - 1 do
    local a, b = {}, {}
    for part, grad in ipairs(grads) do
      local first, stop = run(ranges[2 * part], leaves, j)
      for n = ranges[2 * part - 1] + first + 1, ranges[2 * part - 1] + stop do
        a[#a + 1], b[#b + 1] = grad[t][n], weights[part][n][k]
      end
    end
    sums[j + 1] = chain(grads[1].dtype, a, b, 0.0)
  end
  return tree(sums)
end

function model.grad_weight(grad, x, n, k, pieces, start)
  local sum = start
  for _, piece in ipairs(pieces) do
    local a, b = {}, {}
    for i, row in ipairs(piece) do a[i], b[i] = grad[row][n], x[row][k] end
    sum = chain(grad.dtype, a, b, sum)
  end
  return sum
end

return model
