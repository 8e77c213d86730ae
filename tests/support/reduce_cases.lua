--- reduce_cases.lua - sums over tokens, leaves and tensors, with f64 oracles.
local core = require "tidelock.core"
local promises = require "support.promises"
local spread = promises.spread

local reduce = { cases = {} }

local function add(case) reduce.cases[#reduce.cases + 1] = case end

--- Terms of each kind; x, mean and rstd as in reduce.h.
local terms = {
  [0] = function(dy) return dy end,
  function(dy, x) return dy * x end,
  function(dy, x, rstd) return dy * x * rstd end,
  function(dy, x, rstd, mean) return dy * (x - mean) * rstd end,
}

--- The run of row `at` of a piece: floor borders.
function reduce.run_of(at, runs, length)
  local run = 0
  while (run + 1) * length // runs <= at do run = run + 1 end
  return run
end

function reduce.sum_tokens(x, a, width, start, parts)
  local acc = start or {}
  parts = parts or 1
  for i = 1, a.runs * width do acc[i] = acc[i] or 0.0 end
  for sample = 0, a.samples - 1 do
    for at = 0, a.length - 1 do
      local row, run = a.first + sample * a.length + at, reduce.run_of(at, a.runs, a.length)
      for c = 1, width do
        local i, place = row * width + c, row * parts + (c - 1) * parts // width + 1
        acc[run * width + c] = acc[run * width + c] + terms[a.kind](x[1][i], x[2] and x[2][i],
          x[3] and x[3][place], x[4] and x[4][place])
      end
    end
  end
  return acc
end

for kind = 0, 3 do
  for _, shape in ipairs { { 1, 1 }, { 3, 7 }, { 1, 130 }, { 2, 300 } } do
    local runs, width = table.unpack(shape)
    for mode = 0, 1 do
      local function start() return spread("f32", { runs, width }, 9) end
      add {
        op = "sum_tokens", rows = 210,
        name = ("kind %d, %d runs, width %d, mode %d"):format(kind, runs, width, mode),
        attrs = { kind = kind, first = 5, samples = 2, length = 100, runs = runs, mode = mode },
        inputs = function(dtype, rows)
          return { spread(dtype, { rows, width }, 1),
            kind >= 1 and spread(dtype, { rows, width }, 2) or false,
            kind >= 2 and spread("f32", { rows }, 3, 0.3, 1) or false,
            kind >= 3 and spread("f32", { rows }, 4, 0.3) or false }
        end,
        outputs = function() return { { "f32", { runs, width }, mode == 1 and start or nil } } end,
        oracle = function(x, attrs)
          return { reduce.sum_tokens(x, attrs, width, mode == 1 and start():flat()) }
        end,
        error = 2e-5,
      }
    end
  end
end

--- Heads of a row that were normalized apart; 128 columns are what a task takes.
for kind = 2, 3 do
  for _, shape in ipairs { { 4, 3 }, { 2, 32 }, { 3, 50 }, { 2, 200 } } do
    local parts, width = table.unpack(shape)
    add {
      op = "sum_tokens", rows = 210, name = ("kind %d, %d parts of %d"):format(kind, parts, width),
      attrs = { kind = kind, first = 5, samples = 2, length = 100, runs = 1, mode = 0 },
      inputs = function(dtype, rows)
        local whole, apart = { rows, parts * width }, { rows, parts }
        return { spread(dtype, whole, 1), spread(dtype, whole, 2), spread("f32", apart, 3, 0.3, 1),
          kind == 3 and spread("f32", apart, 4, 0.3) or false }
      end,
      outputs = function() return { { "f32", { 1, parts * width } } } end,
      oracle = function(x, attrs)
        return { reduce.sum_tokens(x, attrs, parts * width, nil, parts) }
      end,
      error = 2e-5,
    }
  end
end

for _, n in ipairs { 1, 2, 8, 32 } do
  add {
    op = "fold", name = n .. " rows", rows = n,
    inputs = function(dtype, rows) return { spread(dtype, { rows, 700 }, 1) } end,
    outputs = function(dtype) return { { dtype, { 700 } } } end,
    oracle = function(x)
      local y = {}
      for c = 1, 700 do
        y[c] = 0.0
        for r = 0, n - 1 do y[c] = y[c] + x[1][r * 700 + c] end
      end
      return { y }
    end,
    error = 4e-6,
  }
end

--- Squares of g (rows, cols) whose index in `axis` is in part p.
local function squares(g, rows, cols, a, slots)
  local y = {}
  for i = 1, slots do y[i] = 0.0 end
  for r = 0, rows - 1 do
    for c = 0, cols - 1 do
      local at = (a.axis == 0 and r or c) - a.begin
      if a.parts > 0 and at >= 0 and at < a.extent then
        local slot = a.slot_first + reduce.run_of(at, a.parts, a.extent) + 1
        y[slot] = y[slot] + g[r * cols + c + 1] ^ 2
      end
    end
  end
  return y
end

for _, a in ipairs {
  { axis = 0, begin = 0, extent = 37, parts = 1, slot_first = 0 },
  { axis = 0, begin = 5, extent = 30, parts = 4, slot_first = 2 },
  { axis = 1, begin = 0, extent = 3000, parts = 4, slot_first = 0 },
  { axis = 1, begin = 100, extent = 2001, parts = 2, slot_first = 6 },
  { axis = 0, begin = 0, extent = 37, parts = 0, slot_first = 0 } } do
  add {
    op = "square_sum", rows = 37, attrs = a,
    name = ("axis %d, %d from %d, %d parts"):format(a.axis, a.extent, a.begin, a.parts),
    inputs = function(dtype, rows) return { spread(dtype, { rows, 3000 }, 1) } end,
    outputs = function() return { { "f32", { 8 } } } end,
    oracle = function(x, attrs, rows) return { squares(x[1], rows, 3000, attrs, 8) } end,
  }
end

add {
  op = "square_sum_rows", name = "three of 5 rows", rows = 5,
  attrs = { places = { 4, -1, 0, 7, -1 } },
  inputs = function(dtype, rows) return { spread(dtype, { rows, 3000 }, 1) } end,
  outputs = function()
    return { { "f32", { 8 }, function() return spread("f32", { 8 }, 2) end } }
  end,
  oracle = function(x, attrs, rows)
    local y = spread("f32", { 8 }, 2):flat()
    for r = 0, rows - 1 do
      local place = attrs.places[r + 1] + 1
      if place > 0 then
        y[place] = 0.0
        for c = 1, 3000 do y[place] = y[place] + x[1][r * 3000 + c] ^ 2 end
      end
    end
    return { y }
  end,
}

add {
  op = "grad_norm", name = "of three tensors", rows = 3, dtypes = { "f32" },
  attrs = { counts = { 1, 4, 2 }, clip = 1 },
  inputs = function()
    return { spread("f32", { 7 }, 1, 1, 2), core.tensor("i64", { 1 }, { 5 }),
      core.tensor("f32", { 1 }, { 2.5 }) }
  end,
  outputs = function() return { { "f32", { 1 } }, { "f32", { 2 } } } end,
  oracle = function(x)
    local total = 0.0
    for _, slot in ipairs(x[1]) do total = total + slot end
    local norm = math.sqrt(total)
    return { { norm }, { 1 / (norm + 1e-6), 0 } }
  end,
}

return reduce
