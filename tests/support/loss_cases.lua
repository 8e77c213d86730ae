--- loss_cases.lua - the pieces of softmax cross entropy, with f64 oracles.
local core = require "tidelock.core"
local promises = require "support.promises"
local support = require "support"
local spread = promises.spread

local loss = { cases = {} }

local function add(case) loss.cases[#loss.cases + 1] = case end

--- Targets below `vocab`; one in five is ignored.
function loss.targets(rows, vocab)
  local list = {}
  for i = 1, rows do
    list[i] = i % 5 == 4 and -100 or math.floor((support.fill_value(6, i) + 1) / 2 * vocab)
  end
  return core.tensor("i32", { rows }, list)
end

local function per_row(z, rows, f)
  local lists, width = {}, #z // rows
  for r = 1, rows do
    local values = { f(function(j) return z[(r - 1) * width + j + 1] end, r) }
    for i, value in ipairs(values) do
      lists[i] = lists[i] or {}
      lists[i][r] = value
    end
  end
  return lists
end

--- m, s, zt and zsum of rows of z, of which `columns` are true.
function loss.sums(z, targets, rows, columns, first)
  return per_row(z, rows, function(at, r)
    local m, s, zsum = -math.huge, 0.0, 0.0
    for j = 0, columns - 1 do m = math.max(m, at(j)) end
    for j = 0, columns - 1 do s, zsum = s + math.exp(at(j) - m), zsum + at(j) - m end
    local target = targets[r] - first
    return m, s, (targets[r] >= 0 and target >= 0 and target < columns) and at(target) or 0.0, zsum
  end)
end

--- The loss of each row, straight from its definition: probabilities, then a sum over all ids.
function loss.direct(z, targets, rows, columns, smoothing, weight)
  return per_row(z, rows, function(at, r)
    if targets[r] < 0 then return 0.0 end
    local m, s = -math.huge, 0.0
    for j = 0, columns - 1 do m = math.max(m, at(j)) end
    for j = 0, columns - 1 do s = s + math.exp(at(j) - m) end
    local lse, sum = m + math.log(s), 0.0
    for j = 0, columns - 1 do
      local share = smoothing / columns + (j == targets[r] and 1 - smoothing or 0)
      sum = sum + share * (lse - at(j))
    end
    return sum + weight * lse ^ 2
  end)[1]
end

function loss.direct_grad(z, targets, dloss, rows, columns, smoothing, weight)
  local dz, width = {}, #z // rows
  for r = 0, rows - 1 do
    local m, s = -math.huge, 0.0
    for j = 1, columns do m = math.max(m, z[r * width + j]) end
    for j = 1, columns do s = s + math.exp(z[r * width + j] - m) end
    local lse = m + math.log(s)
    for j = 1, width do
      local p = math.exp(z[r * width + j] - lse)
      local q = p - (1 - smoothing) * (j - 1 == targets[r + 1] and 1 or 0) - smoothing / columns
      q = q + 2 * weight * lse * p
      dz[r * width + j] = (targets[r + 1] < 0 or j > columns) and 0.0 or q * dloss[r + 1]
    end
  end
  return dz
end

local shapes = { -- width, true columns, leaves, first
  { 16, 16, 1, 0 }, { 64, 50, 4, 0 }, { 64, 20, 4, 7 }, { 8192, 8000, 2, 0 }, { 256, 0, 4, 16 } }

local function logits(dtype, rows, width) return spread(dtype, { rows, width }, 1, 6) end

for _, shape in ipairs(shapes) do
  local width, columns, leaves, first = table.unpack(shape)
  local name = ("%d of %d columns from %d, %d leaves"):format(columns, width, first, leaves)
  add {
    op = "row_max", name = name, rows = 6, attrs = { columns = columns }, by_row = { true },
    inputs = function(dtype, rows) return { logits(dtype, rows, width) } end,
    outputs = function(_, rows) return { { "f32", { rows } } } end,
    oracle = function(x, _, rows)
      local nobody = {}
      for r = 1, rows do nobody[r] = -1 end
      return { loss.sums(x[1], nobody, rows, columns, first)[1] }
    end,
    error = 0,
  }
  add {
    op = "row_sum_exp", name = name, rows = 6, by_row = { true, true, true },
    attrs = { columns = columns, first = first, leaves = leaves },
    inputs = function(dtype, rows)
      local z, m = logits(dtype, rows, width), core.tensor("f32", { rows })
      core.call("row_max", { z }, { m }, { columns = columns })
      return { z, m, loss.targets(rows, 60) }
    end,
    outputs = function(_, rows)
      return { { "f32", { rows } }, { "f32", { rows } }, { "f32", { rows } } }
    end,
    oracle = function(x, _, rows)
      local sums = loss.sums(x[1], x[3], rows, columns, first)
      return { sums[2], sums[3], sums[4] }
    end,
    error = 4e-6,
  }
end

for _, terms in ipairs { { 0, 0 }, { 0.1, 0 }, { 0, 1e-2 }, { 0.2, 1e-3 } } do
  local smoothing, weight = core.f32(terms[1]), core.f32(terms[2])
  local width, columns = 64, 50
  local function sums(dtype, rows)
    local z, targets = logits(dtype, rows, width), loss.targets(rows, columns)
    local m, s = core.tensor("f32", { rows }), core.tensor("f32", { rows })
    local zt, zsum = core.tensor("f32", { rows }), core.tensor("f32", { rows })
    core.call("row_max", { z }, { m }, { columns = columns })
    core.call("row_sum_exp", { z, m, targets }, { s, zt, zsum },
      { columns = columns, first = 0, leaves = 4 })
    return z, m, s, zt, zsum, targets
  end
  add {
    op = "cross_entropy", name = ("smoothing %g, z %g"):format(terms[1], terms[2]), rows = 11,
    attrs = { vocab = columns, smoothing = smoothing, z = weight },
    by_row = { true, true, true, true, true }, dtypes = { "f32" },
    inputs = function(dtype, rows)
      local _, m, s, zt, zsum, targets = sums(dtype, rows)
      return { m, s, zt, zsum, targets }
    end,
    outputs = function(_, rows) return { { "f32", { rows } } } end,
    oracle = function(x, _, rows)
      local z = logits("f32", rows, width):flat()
      return { loss.direct(z, x[5], rows, columns, smoothing, weight) }
    end,
  }
  add {
    op = "cross_entropy_grad", name = ("smoothing %g, z %g"):format(terms[1], terms[2]), rows = 11,
    attrs = { columns = columns, first = 0, vocab = columns, smoothing = smoothing, z = weight },
    by_row = { true, true, true, true, true },
    inputs = function(dtype, rows)
      local z, m, s, _, _, targets = sums(dtype, rows)
      return { z, m, s, targets, spread("f32", { rows }, 8) }
    end,
    outputs = function(dtype, rows) return { { dtype, { rows, width } } } end,
    oracle = function(x, _, rows)
      return { loss.direct_grad(x[1], x[4], x[5], rows, columns, smoothing, weight) }
    end,
  }
end

add {
  op = "logsumexp", name = "7 rows", rows = 7, by_row = { true, true }, dtypes = { "f32" },
  inputs = function(_, rows)
    return { spread("f32", { rows }, 1, 9), spread("f32", { rows }, 2, 3, 4) }
  end,
  outputs = function(_, rows) return { { "f32", { rows } } } end,
  oracle = function(x)
    local y = {}
    for i, m in ipairs(x[1]) do y[i] = m + math.log(x[2][i]) end
    return { y }
  end,
}
add {
  op = "logsumexp_grad", name = "50 of 64 columns", rows = 7, attrs = { columns = 50 },
  by_row = { true, true, true, true },
  inputs = function(dtype, rows)
    return { logits(dtype, rows, 64), spread("f32", { rows }, 2, 1, 5),
      spread("f32", { rows }, 3, 3, 9), spread("f32", { rows }, 4) }
  end,
  outputs = function(dtype, rows) return { { dtype, { rows, 64 } } } end,
  oracle = function(x)
    local dz = {}
    for i, z in ipairs(x[1]) do
      local r = (i - 1) // 64 + 1
      dz[i] = (i - 1) % 64 < 50 and math.exp(z - x[2][r]) / x[3][r] * x[4][r] or 0.0
    end
    return { dz }
  end,
}

add {
  op = "loss_seed", name = "9 targets of the batch", rows = 7, by_row = { true, false },
  dtypes = { "f32" },
  inputs = function(_, rows)
    return { loss.targets(rows, 40), core.tensor("i64", { 1 }, { 9 }) }
  end,
  outputs = function(_, rows) return { { "f32", { rows } } } end,
  oracle = function(x)
    local y = {}
    for i, target in ipairs(x[1]) do y[i] = target >= 0 and 1 / x[2][1] or 0.0 end
    return { y }
  end,
}
add {
  op = "loss_mask", name = "7 rows", rows = 7, by_row = { true, true }, dtypes = { "f32" },
  inputs = function(_, rows) return { spread("f32", { rows }, 1, 9), loss.targets(rows, 40) } end,
  outputs = function(_, rows) return { { "f32", { rows } } } end,
  oracle = function(x)
    local y = {}
    for i, target in ipairs(x[2]) do y[i] = target >= 0 and x[1][i] or 0.0 end
    return { y }
  end,
  error = 0,
}
add {
  op = "loss_finish", name = "of 3 targets", rows = 1, dtypes = { "f32" },
  inputs = function()
    return { core.tensor("f32", { 1 }, { 7.5 }), core.tensor("i64", { 1 }, { 3 }) }
  end,
  outputs = function() return { { "f32", { 1 } } } end,
  oracle = function(x) return { { x[1][1] / x[2][1] } } end,
}

return loss
