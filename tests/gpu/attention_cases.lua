--- Attention on a GPU: head widths, segments around tile, chunk and block borders, windows, parts,
--- leaves. Each case stands for f32 and bf16, forward and backward; the backward pass reads what
--- the host's forward pass wrote. Cases with q = 128 are for Hopper's kernels and fail where those
--- do not take them; each has a twin with q = 64, for the plain ones, and one that lets the
--- launcher choose.
local core = require "tidelock.core"

local state = 1

local function random()
  state = state * 6364136223846793005 + 1442695040888963407
  return state >> 33 & 0x7FFFFFFF
end

--- Random numbers with exponents near that of `factor` (a power of two); rows from `used` on are
--- not numbers.
local function tensor(dtype, shape, exponent, used)
  local row, bits = 1, {}
  for i = 2, #shape do row = row * shape[i] end
  local shift = dtype == "bf16" and 16 or 0
  for i = 1, shape[1] * row do
    local r = random()
    local value = r << 31 & 0x80000000 | (125 + exponent + (r >> 1) % 3) << 23 | random() & 0x7FFFFF
    if i > used * row then value = 0x7FC00000 end
    bits[i] = value >> shift
  end
  return core.tensor_from_bits(dtype, shape, bits)
end

local function poison(dtype, shape) return core.tensor(dtype, shape):fill(0 / 0) end

local defaults = {
  heads = 4, kv_heads = 2, width = 32, value_width = false, window = 0, kv_block = 64,
  split = 8192, leaves = 1, unused = 0, exponent = 0, out = false, stored = false,
  rows_of_tile = false,
}

local function complete(fields, dtype, seed)
  local c = { dtype = dtype, seed = seed }
  for name, value in pairs(defaults) do
    c[name] = value
    if fields[name] ~= nil then c[name] = fields[name] end
  end
  c.cu = { 0 }
  for _, length in ipairs(fields.lengths) do c.cu[#c.cu + 1] = c.cu[#c.cu] + length end
  for _ = 1, fields.repeats or 0 do c.cu[#c.cu + 1] = c.cu[#c.cu] end
  c.used = c.cu[#c.cu]
  c.rows = c.used + c.unused
  c.value_width = c.value_width or c.width
  c.scale = core.f32((fields.scale or 1.0) * c.width ^ -0.5)
  c.dk_scale = fields.dk_scale or c.scale
  c.out = (c.out or fields.grads) and "f32" or dtype
  c.stored = c.stored or dtype -- what o is stored as
  if dtype == "bf16" and c.kv_block % 16 ~= 0 then return nil end
  return c
end

--- The inputs of the latest seed: cases that only differ in what runs them follow each other.
local kept = {}

local function inputs_of(c)
  if kept.seed == c.seed then return kept.q, kept.k, kept.v, kept.grad end
  state = c.seed
  kept = { seed = c.seed,
    q = tensor(c.dtype, { c.rows, c.heads, c.width }, c.exponent, c.used),
    k = tensor(c.dtype, { c.rows, c.kv_heads, c.width }, 0, c.used),
    v = tensor(c.dtype, { c.rows, c.kv_heads, c.value_width }, 0, c.used),
    grad = tensor(c.dtype, { c.rows, c.heads, c.value_width }, 0, c.used) }
  return kept.q, kept.k, kept.v, kept.grad
end

local function make_forward(c)
  local q, k, v = inputs_of(c)
  local cu = core.tensor("i32", { #c.cu }, c.cu)
  local outputs = {
    poison(c.stored, { c.rows, c.heads, c.value_width }), poison("f32", { c.rows, c.heads }),
  }
  return { q, k, v, cu }, outputs,
    { window = c.window, kv_block = c.kv_block, split = c.split, scale = c.scale },
    { attention_rows = c.rows_of_tile or 0 }
end

local function make_backward(c)
  local inputs, outputs, attrs, options = make_forward(c)
  core.call("attention", inputs, outputs, attrs)
  local q, k, v, cu = table.unpack(inputs)
  local _, _, _, grad = inputs_of(c)
  local gradients = {
    poison(c.out, { c.rows, c.heads, c.width }), poison(c.out, { c.rows, c.kv_heads, c.width }),
    poison(c.out, { c.rows, c.kv_heads, c.value_width }),
  }
  attrs.head_leaves, attrs.dk_scale = c.leaves, c.dk_scale
  return { q, k, v, outputs[1], outputs[2], grad, cu }, gradients, attrs, options
end

local ragged = { 1, 0, 2, 17, 63, 64, 65, 0, 0, 127, 128, 129, 130, 300 }
local short = { 5, 33, 90 }

local cases = {
  { "quickstart", lengths = { 256, 256, 256, 256 }, heads = 8, width = 16, kv_heads = 4,
    kv_block = 128 },
  { "no segments", lengths = {}, unused = 70 },
  { "empty segments only", lengths = { 0, 0, 0 }, unused = 3 },
  { "one row", lengths = { 1 } },
  { "ragged", lengths = ragged, width = 16 },
  { "ragged, blocks of 128", lengths = ragged, width = 64, kv_heads = 4, kv_block = 128,
    heads = 4 },
  { "ragged, window 37, rows of no segment", lengths = ragged, width = 16, window = 37,
    unused = 77 },
  { "many short segments", lengths = { 3, 1, 1, 2, 7, 1, 9, 4, 4, 16, 1, 15, 31, 2, 5, 40 } },
  { "unused entries of cu", lengths = { 40, 50 }, repeats = 60, unused = 11 },
  { "8 heads on 2", lengths = { 100, 33 }, heads = 8, kv_heads = 2 },
  { "8 heads on 1", lengths = { 70, 80 }, heads = 8, kv_heads = 1, width = 64 },
  { "two leaves", lengths = { 70, 20 }, heads = 8, kv_heads = 2, leaves = 2, dk_scale = 1.0,
    out = true },
  { "four leaves", lengths = { 70, 20 }, heads = 8, kv_heads = 1, leaves = 4 },
  { "eight leaves of three heads", lengths = { 50, 1, 20 }, heads = 24, kv_heads = 1, leaves = 8,
    width = 16 },
  { "two leaves, width 128", lengths = { 130 }, heads = 2, kv_heads = 1, leaves = 2, width = 128 },
  { "two leaves, width 192", lengths = { 80 }, heads = 2, kv_heads = 1, leaves = 2, width = 192,
    out = true },
  { "gradients in f32, dk_scale 1", lengths = { 65, 64 }, dk_scale = 1.0, out = true },
  { "o stored as f32", lengths = { 65, 10 }, stored = "f32" },
  { "blocks of 16, parts of 16", lengths = { 100, 15, 16, 17 }, kv_block = 16, split = 16 },
  { "blocks of 16, parts of 48", lengths = { 140, 50 }, kv_block = 16, split = 48 },
  { "blocks and parts of 48", lengths = { 200, 49 }, kv_block = 48, split = 48 },
  { "parts and a window", lengths = { 300, 20 }, kv_block = 32, split = 64, window = 50 },
  { "parts and a window of one", lengths = { 130, 20 }, kv_block = 32, split = 32, window = 1 },
  { "parts of 64, width 128", lengths = { 150 }, heads = 1, kv_heads = 1, width = 128,
    split = 64 },
  { "parts of 128, width 256", lengths = { 260 }, heads = 1, kv_heads = 1, width = 256,
    kv_block = 128, split = 128 },
  { "parts of 256, two passes", lengths = { 600 }, heads = 1, kv_heads = 1, kv_block = 256,
    split = 256, window = 300 },
  { "blocks of 80", lengths = { 170, 30 }, kv_block = 80, split = 800 },
  { "blocks of 208", lengths = { 500, 3 }, heads = 1, kv_heads = 1, kv_block = 208, split = 2080,
    window = 333 },
  { "blocks of 1,024", lengths = { 400, 30 }, heads = 2, kv_heads = 1, kv_block = 1024 },
  { "blocks of 8", lengths = { 90, 7, 9 }, kv_block = 8, split = 24 },
  { "blocks of 72", lengths = { 190 }, kv_block = 72, split = 144 },
  { "window 1", lengths = { 70 }, window = 1 },
  { "window 16", lengths = { 150, 40 }, window = 16, kv_block = 16 },
  { "window 64", lengths = { 200 }, window = 64 },
  { "window 129, blocks of 128", lengths = { 300 }, window = 129, kv_block = 128 },
  { "window as long as the segment", lengths = { 120 }, window = 120 },
  { "large scores", lengths = { 130 }, exponent = 5 },
  { "small scores", lengths = { 130 }, exponent = -20 },
  { "width 1", lengths = short, width = 1 },
  { "widths 3 and 5", lengths = short, width = 3, value_width = 5 },
  { "widths 8 and 16", lengths = short, width = 8, value_width = 16 },
  { "widths 40 and 4", lengths = short, width = 40, value_width = 4 },
  { "width 24", lengths = short, width = 24 },
  { "widths 33 and 34", lengths = short, width = 33, value_width = 34 },
  { "width 64", lengths = short, width = 64 },
  { "widths 80 and 48", lengths = short, width = 80, value_width = 48 },
  { "width 96, blocks of 128", lengths = { 140 }, width = 96, kv_block = 128, kv_heads = 1 },
  { "width 112", lengths = short, width = 112, kv_heads = 4, kv_block = 128 },
  { "width 128", lengths = { 5, 140 }, width = 128, kv_block = 128 },
  { "widths 192 and 128", lengths = short, width = 192, value_width = 128, kv_block = 128 },
  { "widths 256 and 200", lengths = short, width = 256, value_width = 200, kv_heads = 1 },
  { "width 256", lengths = { 140 }, width = 256, heads = 2, kv_heads = 1, leaves = 2 },
}

--- What Hopper's kernels take, around their borders: tiles of 128 rows, steps of 64 and blocks of
--- 64 or 128 keys, ends of segments inside each, NaN behind them, parts, windows, groups, leaves.
local tiles = { 1, 0, 2, 63, 64, 65, 0, 127, 128, 129, 191, 192, 193, 257, 300 }
local few = { 1, 63, 0, 129, 200 }
local hopper = {
  { "tiles, width 128", lengths = tiles, width = 128, kv_block = 128, unused = 70 },
  { "tiles, width 128, blocks of 64", lengths = tiles, width = 128, heads = 2 },
  { "tiles, width 64", lengths = tiles, width = 64, kv_block = 128, unused = 1 },
  { "tiles, width 64, blocks of 64", lengths = tiles, width = 64, heads = 2 },
  { "tiles and a window of 70", lengths = tiles, width = 64, window = 70, kv_block = 128 },
  { "tiles and a window of one", lengths = tiles, width = 128, heads = 2, window = 1 },
  { "tiles and a window of 128", lengths = tiles, width = 128, heads = 2, window = 128,
    kv_block = 128 },
  { "tiles and a window of 129", lengths = { 400 }, width = 128, heads = 2, window = 129,
    kv_block = 128 },
  { "parts of 128", lengths = { 500, 129 }, width = 128, heads = 2, kv_block = 128, split = 128 },
  { "parts of 128, a window of 150", lengths = { 500, 129 }, width = 64, kv_block = 64,
    split = 128, window = 150 },
  { "parts of 64, a window of 20", lengths = { 300 }, width = 128, heads = 2, split = 64,
    window = 20 },
  { "no segments, Hopper", lengths = {}, unused = 130, width = 64 },
  { "8 heads on 1, Hopper", lengths = { 200, 30 }, heads = 8, kv_heads = 1, width = 128,
    kv_block = 128 },
  { "24 heads on 8", lengths = { 130 }, heads = 24, kv_heads = 8, width = 64, kv_block = 128 },
  { "two leaves, Hopper", lengths = { 150, 20 }, heads = 8, kv_heads = 2, leaves = 2,
    width = 128, dk_scale = 1.0, grads = true },
  { "eight leaves, Hopper", lengths = { 140 }, heads = 8, kv_heads = 1, leaves = 8, width = 64 },
  { "widths 8 and 16, Hopper", lengths = tiles, width = 8, value_width = 16 },
  { "widths 64 and 128", lengths = { 5, 140 }, width = 64, value_width = 128, kv_block = 128 },
  { "widths 96 and 40", lengths = { 5, 140 }, width = 96, value_width = 40, kv_block = 128 },
  { "width 80", lengths = { 130, 77 }, width = 80, kv_block = 128 },
  { "large scores, Hopper", lengths = { 200 }, width = 64, exponent = 5 },
  { "small scores, Hopper", lengths = { 200 }, width = 128, exponent = -20, heads = 2 },
  { "widths 192 and 128, Hopper", lengths = few, width = 192, value_width = 128, heads = 2,
    unused = 70 },
  { "widths 136 and 8, a window of 70", lengths = few, width = 136, value_width = 8, heads = 2,
    window = 70 },
  { "width 192, Hopper", lengths = few, width = 192, heads = 2, kv_heads = 1 },
  { "widths 64 and 192, parts of 128", lengths = { 300, 129 }, width = 64, value_width = 192,
    heads = 2, split = 128, window = 150 },
  { "width 192, parts of 64", lengths = { 300 }, width = 192, heads = 1, kv_heads = 1,
    split = 64 },
  { "width 192, four leaves", lengths = { 150, 20 }, heads = 8, kv_heads = 2, leaves = 4,
    width = 192, dk_scale = 1.0, grads = true },
  { "tiles, width 256", lengths = tiles, width = 256, heads = 2, kv_heads = 1, unused = 70 },
  { "width 256, a window of 70", lengths = few, width = 256, heads = 2, window = 70 },
  { "widths 200 and 256, parts of 128", lengths = { 300, 129 }, width = 200, value_width = 256,
    heads = 2, split = 128 },
  { "width 256, parts of 64", lengths = { 300 }, width = 256, heads = 1, kv_heads = 1,
    split = 64, window = 100 },
  { "width 256, two leaves", lengths = { 140, 30 }, heads = 4, kv_heads = 1, leaves = 2,
    width = 256 },
  { "large scores, width 256", lengths = { 200 }, width = 256, exponent = 5, heads = 2 },
  { "small scores, width 256", lengths = { 200 }, width = 256, exponent = -20, heads = 2 },
  { "tiles with half their rows", lengths = { 10, 60, 138, 5, 190, 64, 320, 300 }, width = 128,
    kv_block = 128, heads = 2, kv_heads = 1 },
  { "a tile with half its rows", lengths = { 10 }, width = 64, heads = 1, kv_heads = 1 },
  { "many segments", lengths = {}, width = 64, heads = 2, kv_heads = 1 },
}
for i = 1, 150 do hopper[#hopper].lengths[i] = i % 7 end
local bf16_only = {}
for _, fields in ipairs(hopper) do
  local seed = #cases + 1
  for _, q in ipairs { 128, 64, 0 } do
    local one = { seed = seed }
    for name, value in pairs(fields) do one[name] = value end
    one[1], one.rows_of_tile = ("%s, q %d"):format(fields[1], q), q
    bf16_only[one] = true
    cases[#cases + 1] = one
  end
end

local list = {}
for _, fields in ipairs(cases) do
  for _, dtype in ipairs(bf16_only[fields] and { "bf16" } or { "f32", "bf16" }) do
    local c = complete(fields, dtype, fields.seed or #list + 1)
    if c then
      local name = ("%s, %s"):format(fields[1], dtype)
      list[#list + 1] = { op = "attention", name = name,
        make = function() return make_forward(c) end }
      list[#list + 1] = { op = "attention_grad", name = name,
        make = function() return make_backward(c) end }
    end
  end
end
return list
