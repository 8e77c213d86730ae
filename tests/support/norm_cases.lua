--- norm_cases.lua - rms_norm, layer_norm and their gradients, with f64 oracles.
local promises = require "support.promises"
local spread = promises.spread

local norm = {}

local function each_row(x, width, row)
  local rows = #x // width
  for r = 0, rows - 1 do row(r * width, r + 1) end
end

function norm.rms(x, gain, eps)
  local y, rstd, width = {}, {}, #gain
  each_row(x, width, function(base, r)
    local sum = 0.0
    for i = 1, width do sum = sum + x[base + i] ^ 2 end
    rstd[r] = 1 / math.sqrt(sum / width + eps)
    for i = 1, width do y[base + i] = x[base + i] * rstd[r] * gain[i] end
  end)
  return y, rstd
end

function norm.rms_grad(dy, x, gain, rstd)
  local dx, width = {}, #gain
  each_row(x, width, function(base, r)
    local dot = 0.0
    for i = 1, width do dot = dot + dy[base + i] * gain[i] * x[base + i] end
    for i = 1, width do
      dx[base + i] = rstd[r] * (dy[base + i] * gain[i] - x[base + i] * rstd[r] ^ 2 * dot / width)
    end
  end)
  return dx
end

function norm.layer(x, gain, bias, eps)
  local y, mean, rstd, width = {}, {}, {}, #gain
  each_row(x, width, function(base, r)
    local sum, square = 0.0, 0.0
    for i = 1, width do sum = sum + x[base + i] end
    mean[r] = sum / width
    for i = 1, width do square = square + (x[base + i] - mean[r]) ^ 2 end
    rstd[r] = 1 / math.sqrt(square / width + eps)
    for i = 1, width do y[base + i] = (x[base + i] - mean[r]) * rstd[r] * gain[i] + bias[i] end
  end)
  return y, mean, rstd
end

function norm.layer_grad(dy, x, gain, mean, rstd)
  local dx, width = {}, #gain
  each_row(x, width, function(base, r)
    local a, b = 0.0, 0.0
    local function g(i) return dy[base + i] * gain[i] end
    local function h(i) return (x[base + i] - mean[r]) * rstd[r] end
    for i = 1, width do a, b = a + g(i), b + g(i) * h(i) end
    for i = 1, width do dx[base + i] = rstd[r] * (g(i) - a / width - h(i) * b / width) end
  end)
  return dx
end

local function rms_case(width)
  return {
    op = "rms_norm", name = "width " .. width, rows = 5, attrs = { eps = 1e-5 },
    by_row = { true, false },
    inputs = function(dtype, rows)
      return { spread(dtype, { rows, width }, 1, 3), spread(dtype, { width }, 2, 0.5, 1) }
    end,
    outputs = function(dtype, rows) return { { dtype, { rows, width } }, { "f32", { rows } } } end,
    oracle = function(x, attrs) return { norm.rms(x[1], x[2], attrs.eps) } end,
  }
end

local function rms_grad_case(width)
  return {
    op = "rms_norm_grad", name = "width " .. width, rows = 5, by_row = { true, true, false, true },
    inputs = function(dtype, rows)
      return { spread(dtype, { rows, width }, 3), spread(dtype, { rows, width }, 1),
        spread(dtype, { width }, 2, 0.5, 1), spread("f32", { rows }, 4, 0.3, 1.5) }
    end,
    outputs = function(dtype, rows) return { { dtype, { rows, width } } } end,
    oracle = function(x) return { norm.rms_grad(x[1], x[2], x[3], x[4]) } end,
    error = 4e-6,
  }
end

local function layer_case(width)
  return {
    op = "layer_norm", name = "width " .. width, rows = 5, attrs = { eps = 1e-5 },
    by_row = { true, false, false },
    inputs = function(dtype, rows)
      return { spread(dtype, { rows, width }, 1, 3, 0.5), spread(dtype, { width }, 2, 0.5, 1),
        spread(dtype, { width }, 3) }
    end,
    outputs = function(dtype, rows)
      return { { dtype, { rows, width } }, { "f32", { rows } }, { "f32", { rows } } }
    end,
    oracle = function(x, attrs) return { norm.layer(x[1], x[2], x[3], attrs.eps) } end,
    error = 4e-6,
  }
end

local function layer_grad_case(width)
  return {
    op = "layer_norm_grad", name = "width " .. width, rows = 5,
    by_row = { true, true, false, true, true },
    inputs = function(dtype, rows)
      return { spread(dtype, { rows, width }, 3), spread(dtype, { rows, width }, 1),
        spread(dtype, { width }, 2, 0.5, 1), spread("f32", { rows }, 5, 0.1),
        spread("f32", { rows }, 4, 0.3, 1.5) }
    end,
    outputs = function(dtype, rows) return { { dtype, { rows, width } } } end,
    oracle = function(x) return { norm.layer_grad(x[1], x[2], x[3], x[4], x[5]) } end,
    error = 4e-6,
  }
end

norm.cases = {}
for _, width in ipairs { 1, 7, 128, 257, 2048, 2049, 5000 } do
  norm.cases[#norm.cases + 1] = rms_case(width)
  norm.cases[#norm.cases + 1] = rms_grad_case(width)
end
for _, width in ipairs { 2, 64, 130, 4100 } do
  norm.cases[#norm.cases + 1] = layer_case(width)
  norm.cases[#norm.cases + 1] = layer_grad_case(width)
end

return norm
