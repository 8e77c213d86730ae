--- Attention in f64, from the textbook: softmax of a whole row, gradients by the chain rule. Says
--- how far from the truth the kernels are; cases are those of attention_model.lua.
local oracle = {}

--- Calls visit(row, head, keys) for each query row; keys = list of packed rows that it sees.
local function rows(case, visit)
  for s = 1, #case.cu - 1 do
    for i = case.cu[s], case.cu[s + 1] - 1 do
      local keys = {}
      for j = case.cu[s], i do
        if case.window == 0 or i - j < case.window then keys[#keys + 1] = j end
      end
      for head = 0, case.heads - 1 do visit(i, head, keys) end
    end
  end
end

local function dot(x, at_x, y, at_y, width)
  local sum = 0.0
  for i = 1, width do sum = sum + x[at_x + i] * y[at_y + i] end
  return sum
end

--- Probabilities of one row and the logarithm of their sum, natural base.
local function softmax(case, q, k, row, head, keys)
  local kv = head // (case.heads // case.kv_heads)
  local score, largest, sum = {}, -math.huge, 0.0
  for n, j in ipairs(keys) do
    score[n] = case.scale * dot(q, (row * case.heads + head) * case.width, k,
      (j * case.kv_heads + kv) * case.width, case.width)
    largest = math.max(largest, score[n])
  end
  for n = 1, #keys do
    score[n] = math.exp(score[n] - largest)
    sum = sum + score[n]
  end
  for n = 1, #keys do score[n] = score[n] / sum end
  return score, largest + math.log(sum), kv
end

local function zeros(count)
  local t = {}
  for i = 1, count do t[i] = 0.0 end
  return t
end

--- o, and lse in base 2.
function oracle.forward(case, q, k, v)
  local width = case.value_width
  local o, lse = zeros(#q // case.width * width), {}
  rows(case, function(row, head, keys)
    local p, total, kv = softmax(case, q, k, row, head, keys)
    local at = (row * case.heads + head) * width
    for n, j in ipairs(keys) do
      for e = 1, width do
        o[at + e] = o[at + e] + p[n] * v[(j * case.kv_heads + kv) * width + e]
      end
    end
    lse[row * case.heads + head + 1] = total / math.log(2)
  end)
  return o, lse
end

--- Adds factor * y to x.
local function add(x, at_x, factor, y, at_y, width)
  for e = 1, width do x[at_x + e] = x[at_x + e] + factor * y[at_y + e] end
end

function oracle.backward(case, q, k, v, grad)
  local width, value_width = case.width, case.value_width
  local dq, dk, dv = zeros(#q), zeros(#k), zeros(#v)
  rows(case, function(row, head, keys)
    local p, _, kv = softmax(case, q, k, row, head, keys)
    local query, out = (row * case.heads + head) * width, (row * case.heads + head) * value_width
    local g, mean = {}, 0.0
    for n, j in ipairs(keys) do
      g[n] = dot(grad, out, v, (j * case.kv_heads + kv) * value_width, value_width)
      mean = mean + p[n] * g[n]
    end
    for n, j in ipairs(keys) do
      local key = j * case.kv_heads + kv
      local ds = case.scale * p[n] * (g[n] - mean)
      add(dv, key * value_width, p[n], grad, out, value_width)
      add(dk, key * width, ds, q, query, width)
      add(dq, query, ds, k, key * width, width)
    end
  end)
  return dq, dk, dv
end

--- Finite differences of sum(grad * o) along one element of `x`, which is q, k or v.
function oracle.slope(case, inputs, x, element, grad)
  local function loss()
    local o = oracle.forward(case, inputs.q, inputs.k, inputs.v)
    return dot(o, 0, grad, 0, #o)
  end
  local kept, step = x[element], 1e-5
  x[element] = kept + step
  local above = loss()
  x[element] = kept - step
  local below = loss()
  x[element] = kept
  return (above - below) / (2 * step)
end

return oracle
