--- cache_cases.lua - keys and values in pages, and attention over them, in f64 by
--- attention_oracle.lua. Bits against whole prompts: tests/spec/cache_spec.lua.
local core = require "tidelock.core"
local oracle = require "support.attention_oracle"
local promises = require "support.promises"
local spread = promises.spread

local cache = { cases = {} }

local heads, kv_heads, width, value_width = 4, 2, 6, 5
local page = 4

--- Three requests of 9, 4 and 1 positions in pages of 4, out of order; one row is none.
local tables = { 5, 0, 3, 1, -1, -1, 4, -1, -1 }
local lengths = { 9, 4, 1 }
local requests, positions = { 1, 0, -1, 2, 0, 0, 1 }, { 3, 8, 0, 0, 2, 4, 0 }
local rows_all = #requests

--- Packed keys (or values) of the requests: one row after the other, 14 in all.
function cache.packed(dtype, channels, stream)
  return spread(dtype, { 14, kv_heads, channels }, stream)
end

--- Pools with those keys and values at their places; what no request has is 0.5.
local function pools(dtype)
  local k, v = cache.packed(dtype, width, 2):flat(), cache.packed(dtype, value_width, 3):flat()
  local keys, values, row = {}, {}, 0
  for i = 1, 6 * kv_heads * width * page do keys[i] = 0.5 end
  for i = 1, 6 * kv_heads * value_width * page do values[i] = 0.5 end
  for n, length in ipairs(lengths) do
    for p = 0, length - 1 do
      local at = tables[(n - 1) * 3 + p // page + 1]
      for g = 0, kv_heads - 1 do
        for c = 0, width - 1 do
          keys[((at * kv_heads + g) * width + c) * page + p % page + 1] =
            k[(row * kv_heads + g) * width + c + 1]
        end
        for c = 0, value_width - 1 do
          values[((at * page + p % page) * kv_heads + g) * value_width + c + 1] =
            v[(row * kv_heads + g) * value_width + c + 1]
        end
      end
      row = row + 1
    end
  end
  return core.tensor(dtype, { 6, kv_heads, width, page }, keys),
    core.tensor(dtype, { 6, page, kv_heads, value_width }, values)
end

local function lists()
  return core.tensor("i32", { rows_all }, requests), core.tensor("i32", { rows_all }, positions),
    core.tensor("i32", { 3, 3 }, tables)
end

--- A row's queries stand at its position of its request; all other queries are 0.
local function attend(q, o)
  local starts, packed = { 0, 9, 13 }, {}
  for i = 1, 14 * heads * width do packed[i] = 0.0 end
  local at = {}
  for t = 1, #q // (heads * width) do
    if o.requests[t] >= 0 then
      at[t] = starts[o.requests[t] + 1] + o.positions[t]
      table.move(q, (t - 1) * heads * width + 1, t * heads * width, at[t] * heads * width + 1,
        packed)
    end
  end
  local whole = oracle.forward({ heads = heads, kv_heads = kv_heads, width = width,
    value_width = value_width, window = o.window, scale = o.scale, cu = { 0, 9, 13, 14 } }, packed,
    cache.packed(o.dtype, width, 2):flat(), cache.packed(o.dtype, value_width, 3):flat())
  local size, result = heads * value_width, {}
  for t = 1, #q // (heads * width) do
    for i = 1, size do result[(t - 1) * size + i] = at[t] and whole[at[t] * size + i] or 0.0 end
  end
  return { result }
end

for dtype, allow in pairs { f32 = 4e-6, bf16 = 2e-2 } do
  for _, window in ipairs { 0, 3 } do
    local attrs = { window = window, kv_block = 16, split = 16, scale = core.f32(0.4) }
    cache.cases[#cache.cases + 1] = {
      op = "attention_cached", name = window == 0 and "all before" or "a window of 3",
      rows = rows_all, attrs = attrs, dtypes = { dtype }, error = allow,
      by_row = { true, false, false, true, true, false },
      inputs = function(kind, rows)
        local keys, values = pools(kind)
        return { spread(kind, { rows, heads, width }, 1), keys, values, lists() }
      end,
      outputs = function(kind, rows) return { { kind, { rows, heads, value_width } } } end,
      oracle = function(x)
        return attend(x[1], { requests = x[4], positions = x[5], window = window,
          scale = attrs.scale, dtype = dtype })
      end,
    }
  end
end

--- Element (row, head, channel) of the rows, at its place in a pool; others keep their 1.
local function written(from, channels, place)
  local pool = {}
  for i = 1, 6 * kv_heads * channels * page do pool[i] = 1.0 end
  for t = 1, rows_all do
    for g = 0, kv_heads - 1 do
      for c = 0, channels - 1 do
        local at = requests[t] >= 0 and tables[requests[t] * 3 + positions[t] // page + 1]
        if at then
          pool[place(at, positions[t] % page, g, c) + 1] =
            from[((t - 1) * kv_heads + g) * channels + c + 1]
        end
      end
    end
  end
  return pool
end

local function ones(kind, shape) return function() return core.tensor(kind, shape):fill(1) end end

cache.cases[#cache.cases + 1] = {
  op = "cache_write", name = "three requests", rows = rows_all,
  inputs = function(kind, rows)
    return { spread(kind, { rows, kv_heads, width }, 1),
      spread(kind, { rows, kv_heads, value_width }, 2), lists() }
  end,
  outputs = function(kind)
    local k, v = { 6, kv_heads, width, page }, { 6, page, kv_heads, value_width }
    return { { kind, k, ones(kind, k) }, { kind, v, ones(kind, v) } }
  end,
  oracle = function(x)
    return {
      written(x[1], width, function(at, entry, g, c)
        return ((at * kv_heads + g) * width + c) * page + entry
      end),
      written(x[2], value_width, function(at, entry, g, c)
        return ((at * page + entry) * kv_heads + g) * value_width + c
      end),
    }
  end,
}
table.sort(cache.cases, function(a, b)
  return a.op .. a.name .. (a.dtypes or { "" })[1] < b.op .. b.name .. (b.dtypes or { "" })[1]
end)

return cache
