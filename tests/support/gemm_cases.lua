--- gemm_cases.lua - small products for the tests that every row of ops.def has, with f64 oracles.
--- The order of every sum, and large shapes: tests/spec/gemm_spec.lua.
local promises = require "support.promises"
local spread = promises.spread

local gemm = { cases = {} }

local function add(case) gemm.cases[#gemm.cases + 1] = case end

--- y (rows, n) = x (rows, k) weight (n, k)^T + bias, of flat lists.
local function product(x, weight, bias, rows, n, k)
  local y = {}
  for t = 0, rows - 1 do
    for i = 0, n - 1 do
      local sum = bias and bias[i + 1] or 0.0
      for j = 1, k do sum = sum + x[t * k + j] * weight[i * k + j] end
      y[t * n + i + 1] = sum
    end
  end
  return y
end

for _, shape in ipairs { { 6, 5, 1 }, { 17, 33, 4 } } do
  local n, k, leaves = table.unpack(shape)
  local name = ("%d features from %d, %d leaves"):format(n, k, leaves)
  add {
    op = "linear", name = name, rows = 5, by_row = { true, false, false }, error = 1e-5,
    attrs = { parts = 1, biases = 1, leaves = leaves },
    inputs = function(dtype, rows)
      return { spread(dtype, { rows, k }, 1), spread(dtype, { n, k }, 2), spread(dtype, { n }, 3) }
    end,
    outputs = function(dtype, rows) return { { dtype, { rows, n } } } end,
    oracle = function(x, _, rows) return { product(x[1], x[2], x[3], rows, n, k) } end,
  }
  add {
    op = "linear_grad_input", name = name, rows = 5, by_row = { true, false }, error = 1e-5,
    attrs = { parts = 1, leaves = leaves, ranges = { 0, n } },
    inputs = function(dtype, rows)
      return { spread(dtype, { rows, n }, 4), spread(dtype, { n, k }, 2) }
    end,
    outputs = function(dtype, rows) return { { dtype, { rows, k } } } end,
    oracle = function(x, _, rows)
      local dx = {}
      for t = 0, rows - 1 do
        for j = 1, k do
          local sum = 0.0
          for i = 0, n - 1 do sum = sum + x[1][t * n + i + 1] * x[2][i * k + j] end
          dx[t * k + j] = sum
        end
      end
      return { dx }
    end,
  }
  for mode = 0, 2 do
    local function start() return spread("f32", { n, k }, 9) end
    add {
      op = "linear_grad_weight", name = ("%s, mode %d"):format(name, mode), rows = 12, error = 1e-5,
      attrs = { first = 1, samples = 2, length = 4, stride = 5, mode = mode,
        leaves = mode == 2 and 2 or 1 },
      inputs = function(dtype, rows)
        return { spread(dtype, { rows, n }, 4), spread(dtype, { rows, k }, 1) }
      end,
      outputs = function() return { { "f32", { n, k }, mode > 0 and start or nil } } end,
      oracle = function(x, a)
        local sums = mode > 0 and start():flat() or {}
        for i = 0, n - 1 do
          for j = 1, k do
            local sum = sums[i * k + j] or 0.0
            for sample = 0, a.samples - 1 do
              for t = 0, a.length - 1 do
                local row = a.first + sample * a.stride + t
                sum = sum + x[1][row * n + i + 1] * x[2][row * k + j]
              end
            end
            sums[i * k + j] = sum
          end
        end
        return { sums }
      end,
    }
  end
end

return gemm
