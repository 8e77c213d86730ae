--- optimizer_cases.lua - adamw, states and initial values, with f64 oracles.
local core = require "tidelock.core"
local promises = require "support.promises"
local spread = promises.spread

local optimizer = { cases = {} }

local function add(case) optimizer.cases[#optimizer.cases + 1] = case end

local hyper = { scalar_first = 1, beta1 = core.f32(0.9), beta2 = core.f32(0.95),
  eps = core.f32(1e-8), decay = core.f32(0.1), lr_scale = 0.5 }
local scalars = { 99, core.f32(1e-2), core.f32(1 / (1 - 0.9 ^ 3)), core.f32(1 / (1 - 0.95 ^ 3)) }

local function state(dtype, count)
  return function() return spread(dtype, { count }, 21) end,
    function() return spread("f32", { count }, 22, 0.1) end,
    function() return spread("f32", { count }, 23, 0.01, 0.011) end
end

--- One step on flat tables: returns weights, m and v.
function optimizer.step(grad, clip, w, m, v, a, numbers)
  local rate = numbers[a.scalar_first + 1] * a.lr_scale
  local out = { {}, {}, {} }
  for i = 1, #grad do
    local g = grad[i] * clip
    out[2][i] = a.beta1 * m[i] + (1 - a.beta1) * g
    out[3][i] = a.beta2 * v[i] + (1 - a.beta2) * g * g
    local update = out[2][i] * numbers[a.scalar_first + 2]
      / (math.sqrt(out[3][i] * numbers[a.scalar_first + 3]) + a.eps)
    out[1][i] = w[i] - rate * (update + a.decay * w[i])
  end
  return out[1], out[2], out[3]
end

for _, count in ipairs { 1, 100, 5000 } do
  for _, clip in ipairs { 1, 0.25 } do
    add {
      op = "adamw", name = ("%d weights, clip %g"):format(count, clip), rows = count, attrs = hyper,
      options = { scalars = scalars }, dtypes = { "f32", "bf16" },
      inputs = function()
        return { spread("f32", { count }, 1), core.tensor("f32", { 2 }, { clip, 0 }) }
      end,
      outputs = function(dtype)
        local weight, m, v = state(dtype, count)
        local list = {
          { dtype, { count }, weight }, { "f32", { count }, m }, { "f32", { count }, v } }
        local function master() return spread("f32", { count }, 21) end
        if dtype == "bf16" then list[4] = { "f32", { count }, master } end
        return list
      end,
      oracle = function(x, attrs)
        local _, m, v = state("f32", count)
        local weight = spread("f32", { count }, 21):flat()
        local w, m1, v1 = optimizer.step(x[1], clip, weight, m():flat(), v():flat(), attrs, scalars)
        return { w, m1, v1, w }
      end,
    }
  end
end

for _, count in ipairs { 1, 100, 5000 } do
  add {
    op = "set_state", name = count .. " elements", rows = count, attrs = {}, dtypes = { "f32" },
    inputs = function()
      return { spread("f32", { count }, 1), core.tensor("f32", { 2 }, { 0.5, 0 }) }
    end,
    outputs = function()
      return { { "f32", { count }, function() return spread("f32", { count }, 21) end } }
    end,
    oracle = function(x) return { x[1] } end,
    error = 0,
  }
end

--- Values of init in f64 from the words of random.h; `a` are the attributes.
function optimizer.initial(rows, cols, a, seed)
  local y = {}
  for r = 0, rows - 1 do
    for c = 0, cols - 1 do
      local index = (a.row_first + r) * a.cols_full + a.col_first + c
      local first, second = core.random_words(seed, a.name_hash, index, 0)
      local u, w = (first >> 8) * 2.0 ^ -24, (second >> 8) * 2.0 ^ -24
      if a.kind == 0 then
        y[#y + 1] = a.first
      elseif a.kind == 1 then
        local radius = math.sqrt(-2 * math.log(u + 2.0 ^ -24))
        y[#y + 1] = a.first + a.second * radius * math.cos(2 * math.pi * w)
      else
        y[#y + 1] = a.first + (a.second - a.first) * u
      end
    end
  end
  return y
end

for kind, name in pairs { [0] = "constant", "normal", "uniform" } do
  add {
    op = "init", name = name, rows = 9, options = { seed = 77 },
    attrs = { kind = kind, name_hash = core.hash_int "h.0.wq", row_first = 3, col_first = 10,
      cols_full = 3000, first = core.f32(-0.1), second = 0.5 },
    inputs = function() return {} end,
    outputs = function(dtype, rows) return { { dtype, { rows, 2100 } } } end,
    oracle = function(_, attrs, rows) return { optimizer.initial(rows, 2100, attrs, 77) } end,
  }
end
table.sort(optimizer.cases, function(a, b) return a.op .. a.name < b.op .. b.name end)

return optimizer
