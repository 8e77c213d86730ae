--- A decoder in f64, loops only: what the loss of every token should be, up to rounding.
---
---     local losses = reference.losses(options, weight)     -- losses[sample][token]; 0: no target
---
--- `options` as in models.recipe; weight(name) gives nested tables, or a list for vectors.
local models = require "support.models"

local reference = {}

local function sum_of(list, term)
  local sum = 0
  for i, x in ipairs(list) do sum = sum + term(x, i) end
  return sum
end

--- w x (+ bias) for one row x.
local function linear(x, w, bias)
  local y = {}
  for n, row in ipairs(w) do
    y[n] = sum_of(row, function(a, k) return a * x[k] end) + (bias and bias[n] or 0)
  end
  return y
end

local function map(x, fn)
  local y = {}
  for i, value in ipairs(x) do y[i] = fn(value, i) end
  return y
end

local function add(a, b) return map(a, function(x, i) return x + b[i] end) end

local function tanh(x) return 1 - 2 / (math.exp(2 * x) + 1) end
local function silu(x) return x / (1 + math.exp(-x)) end

local function gelu(x)
  return 0.5 * x * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ^ 3)))
end

local function norm(o, weight, name, x)
  local gain, d = weight(name .. ".gain"), #x
  if not o.layer_norm then
    local scale = 1 / math.sqrt(sum_of(x, function(a) return a * a end) / d + 1e-6)
    return map(x, function(a, i) return a * scale * gain[i] end)
  end
  local bias, mean = weight(name .. ".bias"), sum_of(x, function(a) return a end) / d
  local scale = 1 / math.sqrt(sum_of(x, function(a) return (a - mean) ^ 2 end) / d + 1e-5)
  return map(x, function(a, i) return (a - mean) * scale * gain[i] + bias[i] end)
end

--- Turns the pairs (i, i + half) of every head of width c.
local function rotate(x, c, position)
  local y, half = {}, c // 2
  for first = 0, #x - 1, c do
    for i = 1, half do
      local angle = position * 10000 ^ (-2 * (i - 1) / c)
      local a, b = x[first + i], x[first + i + half]
      y[first + i] = a * math.cos(angle) - b * math.sin(angle)
      y[first + i + half] = b * math.cos(angle) + a * math.sin(angle)
    end
  end
  return y
end

--- Softmax over the keys first .. token of one head; q, k, v: rows of tokens.
local function attend(q, k, v, token, first, c, head, kv_head)
  local scores, total, out = {}, 0, {}
  for key = first, token do
    local dot = 0
    for i = 1, c do dot = dot + q[token][head * c + i] * k[key][kv_head * c + i] end
    scores[key] = math.exp(dot / math.sqrt(c))
    total = total + scores[key]
  end
  for i = 1, c do
    out[i] = 0
    for key = first, token do out[i] = out[i] + scores[key] / total * v[key][kv_head * c + i] end
  end
  return out
end

local function attention(o, weight, name, rows, start)
  local c = o.dim // o.heads
  local function project(part, x)
    return linear(x, weight(name .. "." .. part), o.bias and weight(name .. "." .. part .. "_bias"))
  end
  local q, k, v, out = {}, {}, {}, {}
  for t, x in ipairs(rows) do
    q[t], k[t], v[t] = project("q", x), project("k", x), project("v", x)
    if o.rope ~= false then
      q[t], k[t] = rotate(q[t], c, t - start[t]), rotate(k[t], c, t - start[t])
    end
  end
  for t in ipairs(rows) do
    local first, mixed = math.max(start[t], o.window and t - o.window + 1 or 1), {}
    for head = 0, o.heads - 1 do
      local kv_head = head * o.kv_heads // o.heads
      for _, x in ipairs(attend(q, k, v, t, first, c, head, kv_head)) do mixed[#mixed + 1] = x end
    end
    out[t] = project("o", mixed)
  end
  return out
end

local function feed_forward(o, weight, name, x)
  local function project(part, input)
    local full = name .. "." .. part
    return linear(input, weight(full), o.bias and weight(full .. "_bias"))
  end
  local up = project("up", x)
  if o.gelu then return project("down", map(up, gelu)) end
  local gate = project("gate", x)
  return project("down", map(up, function(u, i) return silu(gate[i]) * u end))
end

local function token_loss(o, logits, target)
  local z = 0
  for _, x in ipairs(logits) do z = z + math.exp(x) end
  local lse, smoothing = math.log(z), o.loss and o.loss.smoothing or 0
  local mean = sum_of(logits, function(x) return x end) / #logits
  local hit = lse - logits[target + 1]
  return (1 - smoothing) * hit + smoothing * (lse - mean) + (o.loss and o.loss.z or 0) * lse ^ 2
end

--- The first token (from 1) of each token's document, and of the next document.
local function borders_of(sample, length)
  local start, stop, borders = {}, {}, sample.cu_seqlens or { 0, length }
  for i = 2, #borders do
    for t = borders[i - 1] + 1, borders[i] do start[t], stop[t] = borders[i - 1] + 1, borders[i] end
  end
  return start, stop
end

local function sample_losses(o, weight, sample)
  local start, stop = borders_of(sample, o.length)
  local x, table_rows = {}, weight "embed"
  for t, id in ipairs(sample.tokens) do
    x[t] = table_rows[id + 1]
    if o.positions then x[t] = add(x[t], weight "positions"[t - start[t] + 1]) end
  end
  local kind = o.gelu and "gelu" or "swiglu"
  local norm_name = o.layer_norm and "layer_norm" or "rms_norm"
  for layer = 0, o.layers - 1 do
    local name = ("layers.%d.attention"):format(layer)
    local normed = map(x, function(row) return norm(o, weight, name .. "." .. norm_name, row) end)
    local mixed = attention(o, weight, name, normed, start)
    x = map(x, function(row, t) return add(row, mixed[t]) end)
    name = ("layers.%d.%s"):format(layer, kind)
    x = map(x, function(row)
      return add(row, feed_forward(o, weight, name, norm(o, weight, name .. "." .. norm_name, row)))
    end)
  end
  local losses, head = {}, weight(o.tied and "embed" or "head")
  for t, row in ipairs(x) do
    losses[t] = 0
    if t < stop[t] then
      local logits = linear(norm(o, weight, "norm", row), head)
      losses[t] = token_loss(o, logits, sample.tokens[t + 1])
    end
  end
  return losses
end

--- Losses of the given samples; `weight` as above.
function reference.losses(options, weight, samples)
  local o = setmetatable(models.with(options), { __index = models.defaults })
  return map(samples, function(sample) return sample_losses(o, weight, sample) end)
end

return reference
