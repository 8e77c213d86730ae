--- Attention as kernels/attention/attention.h specifies it, one number at a time: bits for the
--- kernels to match.
---
---     case = { cu =, heads =, kv_heads =, width =, value_width =, dtype =, window =, kv_block =,
---              split =, leaves =, scale =, dk_scale = }
---     model.forward(case, q, k, v) -> o, lse        numbers in flat tables, as tensor:flat() gives
---     model.backward(case, q, k, v, o, lse, grad) -> dq, dk, dv
local core = require "tidelock.core"

local model = {}
local f32, exp2, log2 = core.f32, core.math.exp2, core.math.log2
local infinity = math.huge
local log2e = 0x1.715476p+0

local function bits_of(x) return (string.unpack("<i8", string.pack("<d", x))) end
local function from_bits(bits) return (string.unpack("<d", string.pack("<i8", bits))) end

--- a * b + c with one rounding to f32. The product is exact in f64; the sum is rounded to odd
--- there, so that the second rounding sees what the first cut off.
function model.fma(a, b, c)
  local product = a * b
  local sum = product + c
  if sum ~= sum or sum == infinity or sum == -infinity then return f32(sum) end
  local part = sum - product
  local rest = (product - (sum - part)) + (c - part)
  if rest ~= 0 and bits_of(sum) & 1 == 0 then
    sum = from_bits(bits_of(sum) + ((rest > 0) == (sum > 0) and 1 or -1))
  end
  return f32(sum)
end

local fma = model.fma

--- x = fraction * 2^exponent, with `places` bits after the point of 1.0 .. 2.0.
local function parts_of(x, places)
  local bits = bits_of(x)
  local exponent = (bits >> 52 & 0x7FF) - 1023
  if exponent < -126 then exponent = -126 end
  return math.tointeger(x * 2.0 ^ (places - exponent)), exponent
end

--- One step of a bf16 tensor core (kernels/tensorcore.h), for finite numbers.
local function step(a, b, c)
  local fraction, exponent, largest = {}, {}, -133
  for i = 1, 16 do
    local x, ex = parts_of(a[i] or 0.0, 7)
    local y, ey = parts_of(b[i] or 0.0, 7)
    fraction[i], exponent[i] = x * y * 4, ex + ey -- 16 places
    if x * y ~= 0 then largest = math.max(largest, exponent[i]) end
  end
  fraction[17], exponent[17] = parts_of(c, 23)
  if c ~= 0 then largest = math.max(largest, exponent[17]) end
  local sum = 0
  for i = 1, 17 do
    local size, places = math.abs(fraction[i]), i < 17 and 16 or 23
    local shift = 25 - places + exponent[i] - largest
    size = shift >= 0 and size << shift or size >> math.min(-shift, 63)
    sum = sum + (fraction[i] < 0 and -size or size)
  end
  local exact = sum * 2.0 ^ (largest - 25)
  local near = f32(exact)
  if math.abs(near) > math.abs(exact) then -- toward zero
    local bits = string.unpack("<i4", string.pack("<f", near))
    near = string.unpack("<f", string.pack("<i4", bits - 1))
  end
  return near
end

--- A chain in either arithmetic: add(position, a, b) with positions ascending, then value().
local function chain(dtype, start)
  local acc, a, b, group = start, {}, {}, nil
  local self = {}
  function self.finish() -- the step that is open
    if group then acc, a, b, group = step(a, b, acc), {}, {}, nil end
  end
  function self.add(position, x, y)
    if dtype == "f32" then
      acc = fma(x, y, acc)
      return
    end
    if group ~= position // 16 then self.finish() end
    group, a[position % 16 + 1], b[position % 16 + 1] = position // 16, x, y
  end
  function self.value()
    self.finish()
    return acc
  end
  return self
end

local function dot(case, x, x_first, y, y_first, width)
  local c = chain(case.dtype, 0.0)
  for i = 0, width - 1 do c.add(i, x[x_first + i], y[y_first + i]) end
  return c.value()
end

--- First elements of rows in flat tables.
local function query_at(case, row, head, width) return (row * case.heads + head) * width + 1 end
local function key_at(case, row, head, width)
  return (row * case.kv_heads + head // (case.heads // case.kv_heads)) * width + 1
end

local function sees(case, i, j) return j <= i and (case.window == 0 or i - j < case.window) end

local function round(case, x) return case.dtype == "bf16" and core.bf16(x) or x end

local function zeros(count, value)
  local t = {}
  for i = 1, count do t[i] = value or 0.0 end
  return t
end

--- Calls visit(start, length) for each segment.
local function segments(case, visit)
  for s = 1, #case.cu - 1 do visit(case.cu[s], case.cu[s + 1] - case.cu[s]) end
end

--- One block of a part: `score` maps keys j to scores.
local function update(case, part, first, last, start, score, v, head)
  local m, c = part.m, f32(case.scale * log2e)
  for j = first, last do if score[j] and score[j] > m then m = score[j] end end
  local u = f32(m * c)
  local a = u == part.t and 1.0 or exp2(f32(part.t - u))
  part.m, part.t = m, u
  for r = 1, 4 do part.l[r] = f32(part.l[r] * a) end
  local sums = {}
  for e = 1, case.value_width do sums[e] = chain(case.dtype, f32(part.o[e] * a)) end
  for j = first, last do
    if score[j] then
      local p, r = exp2(fma(score[j], c, -u)), (j - first) % 8 // 2 + 1
      part.l[r] = f32(part.l[r] + p)
      local value = key_at(case, start + j, head, case.value_width) - 1
      for e = 1, case.value_width do sums[e].add(j, round(case, p), v[value + e]) end
    end
  end
  for e = 1, case.value_width do part.o[e] = sums[e].value() end
end

local function merge(total, part)
  local t = math.max(total.t, part.t)
  local f = total.t == t and 1.0 or exp2(f32(total.t - t))
  local g = part.t == t and 1.0 or exp2(f32(part.t - t))
  total.t, total.sum = t, f32(f32(total.sum * f) + f32(part.sum * g))
  for e = 1, #part.o do total.o[e] = f32(f32(total.o[e] * f) + f32(part.o[e] * g)) end
end

local function row_state(case, q, k, v, start, i, head)
  local score, total = {}, nil
  for j = 0, i do
    if sees(case, i, j) then
      score[j] = dot(case, q, query_at(case, start + i, head, case.width), k,
        key_at(case, start + j, head, case.width), case.width)
    end
  end
  for first = 0, i, case.split do
    local part = { m = -infinity, t = -infinity, l = zeros(4), o = zeros(case.value_width) }
    for block = first, math.min(first + case.split - 1, i), case.kv_block do
      local last, any = math.min(block + case.kv_block - 1, i), false
      for j = block, last do any = any or score[j] ~= nil end
      if any then update(case, part, block, last, start, score, v, head) end
      part.begun = part.begun or any
    end
    part.sum = f32(f32(part.l[1] + part.l[2]) + f32(part.l[3] + part.l[4]))
    if part.begun and total then merge(total, part) end
    if part.begun and not total then total = part end
  end
  return total
end

function model.forward(case, q, k, v)
  local rows = #q // (case.heads * case.width)
  local o, lse = zeros(rows * case.heads * case.value_width), zeros(rows * case.heads, -infinity)
  segments(case, function(start, length)
    for i = 0, length - 1 do
      for head = 0, case.heads - 1 do
        local state = row_state(case, q, k, v, start, i, head)
        local first = query_at(case, start + i, head, case.value_width) - 1
        for e = 1, case.value_width do o[first + e] = round(case, f32(state.o[e] / state.sum)) end
        lse[(start + i) * case.heads + head + 1] = f32(state.t + log2(state.sum))
      end
    end
  end)
  return o, lse
end

--- Pairwise over 2,048 partials, the missing ones +0.
local function row_rule(x, x_first, y, y_first, width)
  local partial = {}
  for i = 0, 2047 do
    partial[i] = i < width and fma(x[x_first + i], y[y_first + i], 0.0) or 0.0
  end
  local count = 2048
  while count > 1 do
    count = count // 2
    for i = 0, count - 1 do partial[i] = f32(partial[2 * i] + partial[2 * i + 1]) end
  end
  return partial[0]
end

--- p and ds of one segment, by head, query and key.
local function weights(case, data, start, length)
  local p, ds, c = {}, {}, f32(case.scale * log2e)
  for head = 0, case.heads - 1 do
    p[head], ds[head] = {}, {}
    for i = 0, length - 1 do
      p[head][i], ds[head][i] = {}, {}
      local query = query_at(case, start + i, head, case.width)
      local out = query_at(case, start + i, head, case.value_width)
      local delta = row_rule(data.grad, out, data.o, out, case.value_width)
      for j = 0, i do
        if sees(case, i, j) then
          local s = dot(case, data.q, query, data.k,
            key_at(case, start + j, head, case.width), case.width)
          local g = dot(case, data.grad, out, data.v,
            key_at(case, start + j, head, case.value_width), case.value_width)
          local weight = exp2(fma(s, c, -data.lse[(start + i) * case.heads + head + 1]))
          p[head][i][j] = round(case, weight)
          ds[head][i][j] = round(case, f32(weight * f32(g - delta)))
        end
      end
    end
  end
  return p, ds
end

local function tree(leaves)
  while #leaves > 1 do
    local next = {}
    for i = 1, #leaves, 2 do next[#next + 1] = f32(leaves[i] + leaves[i + 1]) end
    leaves = next
  end
  return leaves[1]
end

--- Channel e (from 0) of the sum over leaves of weight * x for key j.
local function key_sum(case, weight, x, width, start, length, group, j, e)
  local heads, leaves = case.heads // case.kv_heads, {}
  for leaf = 0, case.leaves - 1 do
    local sum = chain(case.dtype, 0.0)
    for offset = 0, heads // case.leaves - 1 do
      local head = group * heads + leaf * (heads // case.leaves) + offset
      for i = j, length - 1 do
        local w = weight[head][i][j]
        if w then sum.add(i, w, x[query_at(case, start + i, head, width) + e]) end
      end
      sum.finish() -- each head begins a new step
    end
    leaves[leaf + 1] = sum.value()
  end
  return tree(leaves)
end

function model.backward(case, q, k, v, o, lse, grad)
  local data = { q = q, k = k, v = v, o = o, lse = lse, grad = grad }
  local dq, dk, dv = zeros(#q), zeros(#k), zeros(#v)
  segments(case, function(start, length)
    local p, ds = weights(case, data, start, length)
    for head = 0, case.heads - 1 do
      for i = 0, length - 1 do
        for e = 0, case.width - 1 do
          local sum = chain(case.dtype, 0.0)
          for j = 0, i do
            if ds[head][i][j] then
              sum.add(j, ds[head][i][j], k[key_at(case, start + j, head, case.width) + e])
            end
          end
          local at = query_at(case, start + i, head, case.width) + e
          dq[at] = round(case, f32(case.scale * sum.value()))
        end
      end
    end
    for group = 0, case.kv_heads - 1 do
      for j = 0, length - 1 do
        local row = (start + j) * case.kv_heads + group
        for e = 0, case.width - 1 do
          local sum = key_sum(case, ds, q, case.width, start, length, group, j, e)
          dk[row * case.width + e + 1] = round(case, f32(case.dk_scale * sum))
        end
        for e = 0, case.value_width - 1 do
          local sum = key_sum(case, p, grad, case.value_width, start, length, group, j, e)
          dv[row * case.value_width + e + 1] = round(case, sum)
        end
      end
    end
  end)
  return dq, dk, dv
end

return model
