--- elementwise_cases.lua - swiglu, unary, binary, scale, cast, fill and dropout, with f64 oracles.
local core = require "tidelock.core"
local promises = require "support.promises"
local spread = promises.spread

local elementwise = { cases = {} }

local function add(case) elementwise.cases[#elementwise.cases + 1] = case end

local function map(x, f)
  local y = {}
  for i = 1, #x do y[i] = f(i) end
  return y
end

local function sigmoid(x) return 1 / (1 + math.exp(-x)) end
local function tanh(x)
  local e = math.exp(2 * x)
  return x > 300 and 1 or (e - 1) / (e + 1)
end
local function gelu(x)
  return 0.5 * x * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ^ 3)))
end

--- value and derivative of each kind, in f64.
elementwise.kinds = {
  [0] = { "sigmoid", sigmoid, function(x) return sigmoid(x) * (1 - sigmoid(x)) end },
  { "silu", function(x) return x * sigmoid(x) end,
    function(x) return sigmoid(x) * (1 + x * (1 - sigmoid(x))) end },
  { "gelu", gelu, function(x)
    local root = math.sqrt(2 / math.pi)
    local t = tanh(root * (x + 0.044715 * x ^ 3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x)
  end },
  { "relu", function(x) return x > 0 and x or 0 end, function(x) return x > 0 and 1 or 0 end },
  { "tanh", tanh, function(x) return 1 - tanh(x) ^ 2 end },
  { "square", function(x) return x * x end, function(x) return 2 * x end },
  { "exp", math.exp, math.exp },
  { "log", math.log, function(x) return 1 / x end },
  { "neg", function(x) return -x end, function() return -1 end },
  { "sign", function(x) return x > 0 and 1 or x < 0 and -1 or 0 end, function() return 0 end },
}

function elementwise.swiglu(gate, up)
  return map(gate, function(i) return gate[i] * sigmoid(gate[i]) * up[i] end)
end

function elementwise.swiglu_grad(dy, gate, up)
  local function slope(x) return sigmoid(x) * (1 + x * (1 - sigmoid(x))) end
  return map(dy, function(i) return dy[i] * up[i] * slope(gate[i]) end),
    map(dy, function(i) return dy[i] * gate[i] * sigmoid(gate[i]) end)
end

for _, width in ipairs { 1, 7, 384, 3000 } do
  local function shape(rows) return { rows, width } end
  add {
    op = "swiglu", name = "width " .. width, rows = 6, by_row = { true, true },
    inputs = function(dtype, rows)
      return { spread(dtype, shape(rows), 1, 6), spread(dtype, shape(rows), 2, 2) }
    end,
    outputs = function(dtype, rows) return { { dtype, shape(rows) } } end,
    oracle = function(x) return { elementwise.swiglu(x[1], x[2]) } end,
  }
  add {
    op = "swiglu_grad", name = "width " .. width, rows = 6, by_row = { true, true, true },
    inputs = function(dtype, rows)
      return { spread(dtype, shape(rows), 3), spread(dtype, shape(rows), 1, 6),
        spread(dtype, shape(rows), 2, 2) }
    end,
    outputs = function(dtype, rows) return { { dtype, shape(rows) }, { dtype, shape(rows) } } end,
    oracle = function(x) return { elementwise.swiglu_grad(x[1], x[2], x[3]) } end,
  }
end

for kind = 0, #elementwise.kinds do
  local name, value, slope = table.unpack(elementwise.kinds[kind])
  local factor, offset = name == "log" and 2 or 4, name == "log" and 2.5 or 0
  local function x(dtype, rows) return spread(dtype, { rows, 300 }, 7 + kind, factor, offset) end
  add {
    op = "unary", name = name, rows = 8, attrs = { kind = kind }, by_row = { true },
    inputs = function(dtype, rows) return { x(dtype, rows) } end,
    outputs = function(dtype, rows) return { { dtype, { rows, 300 } } } end,
    oracle = function(ins) return { map(ins[1], function(i) return value(ins[1][i]) end) } end,
  }
  add {
    op = "unary_grad", name = name, rows = 8, attrs = { kind = kind }, by_row = { true, true },
    inputs = function(dtype, rows) return { spread(dtype, { rows, 300 }, 5), x(dtype, rows) } end,
    outputs = function(dtype, rows) return { { dtype, { rows, 300 } } } end,
    oracle = function(ins)
      return { map(ins[1], function(i) return ins[1][i] * slope(ins[2][i]) end) }
    end,
  }
end

local signs = { [0] = function(a, b) return a + b end, function(a, b) return a - b end,
  function(a, b) return a * b end, function(a, b) return a / b end }

for kind = 0, 3 do
  for broadcast = 0, 2 do
    local width = 1100
    local function second(rows)
      return broadcast == 0 and { rows, width } or broadcast == 1 and { width } or { rows }
    end
    add {
      op = "binary", name = ("kind %d, broadcast %d"):format(kind, broadcast), rows = 5,
      attrs = { kind = kind, broadcast = broadcast }, by_row = { true, broadcast ~= 1 },
      inputs = function(dtype, rows)
        return { spread(dtype, { rows, width }, 1), spread(dtype, second(rows), 2, 1, 2) }
      end,
      outputs = function(dtype, rows) return { { dtype, { rows, width } } } end,
      oracle = function(x)
        local a, b = x[1], x[2]
        return { map(a, function(i)
          local at = broadcast == 0 and i or broadcast == 1 and (i - 1) % width + 1
            or (i - 1) // width + 1
          return signs[kind](a[i], b[at])
        end) }
      end,
    }
  end
end

add {
  op = "scale", name = "by 0.3", rows = 5, attrs = { factor = core.f32(0.3) }, by_row = { true },
  inputs = function(dtype, rows) return { spread(dtype, { rows, 700 }, 1) } end,
  outputs = function(dtype, rows) return { { dtype, { rows, 700 } } } end,
  oracle = function(x, attrs)
    return { map(x[1], function(i) return x[1][i] * attrs.factor end) }
  end,
}

add {
  op = "scale_step", name = "by scalar 2", rows = 5, attrs = { scalar = 2 }, by_row = { true },
  options = { scalars = { 7, 8, core.f32(0.3) } },
  inputs = function(dtype, rows) return { spread(dtype, { rows, 700 }, 1) } end,
  outputs = function(dtype, rows) return { { dtype, { rows, 700 } } } end,
  oracle = function(x) return { map(x[1], function(i) return x[1][i] * core.f32(0.3) end) } end,
}

for _, to in ipairs { "f32", "bf16" } do
  add {
    op = "cast", name = "to " .. to, rows = 5, by_row = { true }, smooth = to == "f32",
    inputs = function(dtype, rows) return { spread(dtype, { rows, 700 }, 1) } end,
    outputs = function(_, rows) return { { to, { rows, 700 } } } end,
    oracle = function(x)
      return { map(x[1], function(i) return to == "bf16" and core.bf16(x[1][i]) or x[1][i] end) }
    end,
    error = 0,
  }
end

add {
  op = "fill", name = "with 0.1", rows = 5, attrs = { value = core.f32(0.1) }, by_row = {},
  inputs = function() return {} end,
  outputs = function(dtype, rows) return { { dtype, { rows, 9000 } } } end,
  oracle = function(_, attrs, rows)
    local y = {}
    for i = 1, rows * 9000 do y[i] = attrs.value end
    return { y }
  end,
}

--- The words of random.h decide what is kept; `a` are the attributes of the operator.
function elementwise.dropout(x, a, width, options)
  local factor = core.f32(1 / core.f32(1 - a.rate))
  return map(x, function(i)
    local row, feature = (i - 1) // width, (i - 1) % width
    local sample = (options.sample_base or 0) + a.first + row // a.tokens
    local token = a.token_first + row % a.tokens
    local index = (sample * a.length + token) * a.features + a.feature_first + feature
    local word = core.random_words(options.seed or 0, a.key, index, options.step or 0)
    return (word >> 8) * 2.0 ^ -24 >= a.rate and x[i] * factor or 0.0
  end)
end

for _, rate in ipairs { 0, core.f32(0.1), core.f32(0.75) } do
  local options = { seed = 12, step = 5, sample_base = 3 }
  add {
    op = "dropout", name = "rate " .. rate, rows = 12, options = options,
    part = { first = 4, count = 6, attrs = { first = 2 } }, -- two samples of three tokens
    attrs = { key = core.hash_int "layer 1", first = 1, length = 10, token_first = 4, tokens = 3,
      feature_first = 16, features = 64, rate = rate },
    inputs = function(dtype, rows) return { spread(dtype, { rows, 32 }, 1) } end,
    outputs = function(dtype, rows) return { { dtype, { rows, 32 } } } end,
    oracle = function(x, attrs) return { elementwise.dropout(x[1], attrs, 32, options) } end,
  }
end

return elementwise
