--- Products on a GPU: sizes around every tile border, all positions of runs, leaves and pieces.
---
--- Small outputs go through small tiles. The cases called "large tile" have enough tiles of
--- 128 x 128 for every multiprocessor, which is when launchers choose that size.
---
--- An f32 sum that is not a number has bits of the processor's own choice, so f32 cases have none.
local blocks = require "tidelock.language.blocks"
local core = require "tidelock.core"

local cases = {}
local state = 1

local function random()
  state = state * 6364136223846793005 + 1442695040888963407
  return state >> 33 & 0x7FFFFFFF
end

--- Bits of random numbers. kind: none exponents near 0, "wide" over 40 powers of two, "zeros" half
--- of them zeros of both signs, "tiny" products that underflow, "special" some infinities and NaN,
--- "infinite" the first of each row is an infinity.
local function tensor(dtype, shape, kind)
  local count, bits, columns = 1, {}, shape[#shape]
  for _, size in ipairs(shape) do count = count * size end
  local spread, lowest = 6, 122
  if kind == "wide" then spread, lowest = 40, 107 end
  if kind == "tiny" then spread, lowest = 30, 40 end
  local shift = dtype == "bf16" and 16 or 0
  for i = 1, count do
    local r = random()
    local value = r << 31 & 0x80000000 | (lowest + (r >> 1) % spread) << 23 | random() & 0x7FFFFF
    if kind == "zeros" and r >> 20 & 1 == 0 then value = value & 0x80000000 end
    if kind == "special" and r >> 20 & 1023 == 0 then
      value = ({ 0x7F800000, 0xFF800000, 0x7FC00000 })[1 + r % 3]
    end
    if kind == "infinite" and i % columns == 1 % columns then value = 0x7F800000 end
    bits[i] = value >> shift
  end
  return core.tensor_from_bits(dtype, shape, bits)
end

local function poison(dtype, shape)
  local bits, count = {}, 1
  for _, size in ipairs(shape) do count = count * size end
  for i = 1, count do bits[i] = dtype == "bf16" and 0xFFFF or 0xFFFFFFFF end
  return core.tensor_from_bits(dtype, shape, bits)
end

local function add(op, name, c, make)
  local seed, options = #cases + 1, c.options
  if options then
    name = ("%s, tile %d x %d"):format(name, options.gemm_rows, options.gemm_columns)
  end
  cases[seed] = {
    op = op,
    name = name,
    make = function()
      state = seed * 7919
      local inputs, outputs, attrs = make()
      return inputs, outputs, attrs, options
    end,
  }
end

--- c: dtype, out, rows, depth, widths, leaves, bias (dtype), kind, label
local function linear(c)
  local widths, leaves = c.widths, c.leaves or 1
  local name = ("%s to %s, %d x {%s}, K %d, leaves %d%s %s"):format(c.dtype, c.out, c.rows,
    table.concat(widths, " "), c.depth, leaves, c.bias and ", bias " .. c.bias or "",
    c.label or c.kind or "")
  add("linear", name, c, function()
    local inputs, outputs = { tensor(c.dtype, { c.rows, c.depth }, c.kind) }, {}
    for i, width in ipairs(widths) do
      inputs[1 + i] = tensor(c.dtype, { width, c.depth }, c.kind ~= "infinite" and c.kind)
      outputs[i] = poison(c.out, { c.rows, width })
      if c.bias then inputs[1 + #widths + i] = tensor(c.bias, { width }) end
    end
    return inputs, outputs, { parts = #widths, biases = c.bias and 1 or 0, leaves = leaves }
  end)
end

--- c: dtype, out, rows, depth (of dx), widths (features of the parts), ranges, leaves, kind, label
local function grad_input(c)
  local widths, leaves = c.widths, c.leaves or 1
  local ranges = c.ranges
  if not ranges then
    ranges = {}
    for i, width in ipairs(widths) do ranges[2 * i - 1], ranges[2 * i] = 0, width end
  end
  local name = ("%s to %s, %d x %d, features {%s}, ranges {%s}, leaves %d %s"):format(c.dtype,
    c.out, c.rows, c.depth, table.concat(widths, " "), table.concat(ranges, " "), leaves,
    c.label or c.kind or "")
  add("linear_grad_input", name, c, function()
    local inputs = {}
    for i, width in ipairs(widths) do
      inputs[i] = tensor(c.dtype, { c.rows, width }, (i == 1 or c.kind ~= "infinite") and c.kind)
      inputs[#widths + i] = tensor(c.dtype, { width, c.depth }, c.kind ~= "infinite" and c.kind)
    end
    return inputs, { poison(c.out, { c.rows, c.depth }) },
      { parts = #widths, leaves = leaves, ranges = ranges }
  end)
end

--- c: dtype, features, width, first, samples, length, stride, mode, leaves, kind, label
local function grad_weight(c)
  local first, stride = c.first or 0, c.stride or c.length
  local rows = first + (c.samples > 0 and (c.samples - 1) * stride + c.length or 0) + 1
  local name = ("%s, %d x %d, from row %d: %d pieces of %d every %d, mode %d, leaves %d %s"):format(
    c.dtype, c.features, c.width, first, c.samples, c.length, stride, c.mode, c.leaves or 1,
    c.label or c.kind or "")
  add("linear_grad_weight", name, c, function()
    local inputs = { tensor(c.dtype, { rows, c.features }, c.kind),
      tensor(c.dtype, { rows, c.width }, c.kind) }
    local shape = { c.features, c.width }
    local out = c.mode == 0 and poison("f32", shape) or tensor("f32", shape,
      c.kind == "zeros" and "zeros")
    return inputs, { out },
      { first = first, samples = c.samples, length = c.length, stride = stride, mode = c.mode,
        leaves = c.leaves or 1 }
  end)
end

for _, dtype in ipairs { "f32", "bf16" } do
  -- sizes
  for i, s in ipairs { { 1, 1, 1 }, { 3, 17, 33 }, { 17, 3, 16 }, { 33, 65, 15 }, { 65, 33, 64 },
    { 130, 130, 130 }, { 64, 64, 63 }, { 16, 64, 65 }, { 17, 8, 8 }, { 1, 130, 200 }, { 2, 65, 17 },
    { 9, 33, 129 }, { 128, 72, 48 }, { 5, 16, 0 }, { 40, 9, 0 } } do
    local rows, width, depth = table.unpack(s)
    linear { dtype = dtype, out = i % 2 == 0 and "f32" or "bf16", rows = rows, widths = { width },
      depth = depth }
    linear { dtype = dtype, out = i % 2 == 0 and "bf16" or "f32", rows = rows, widths = { width },
      depth = depth, bias = i % 3 == 0 and "bf16" or "f32" }
    if depth > 0 then
      grad_input { dtype = dtype, out = i % 2 == 0 and "bf16" or "f32", rows = rows, depth = width,
        widths = { depth } }
      grad_weight { dtype = dtype, features = rows, width = width, samples = 1, length = depth,
        mode = i % 3 }
    end
  end
  for rows = 1, 9 do
    linear { dtype = dtype, out = dtype, rows = rows, widths = { 136, 40 }, depth = 24 * rows,
      leaves = rows % 2 == 0 and 4 or 1, bias = dtype }
    grad_input { dtype = dtype, out = dtype, rows = rows, depth = 136, widths = { 20 * rows, 40 },
      leaves = rows % 2 == 0 and 2 or 1 }
  end

  -- parts and leaves
  for _, leaves in ipairs { 1, 2, 4, 8, 32 } do
    for _, depth in ipairs { 10, 64, 200, 512 } do
      linear { dtype = dtype, out = "bf16", rows = 33, widths = { 70, 8, 24 }, depth = depth,
        leaves = leaves, bias = "f32" }
      linear { dtype = dtype, out = "f32", rows = 13, widths = { 64 }, depth = depth,
        leaves = leaves }
    end
    grad_input { dtype = dtype, out = "bf16", rows = 33, depth = 72, widths = { 64, 16, 16 },
      leaves = leaves, label = "even parts" }
    grad_input { dtype = dtype, out = "f32", rows = 65, depth = 65, widths = { 40, 7, 129 },
      leaves = leaves, label = "odd parts" }
    grad_input { dtype = dtype, out = "bf16", rows = 12, depth = 40, widths = { 100, 32, 64 },
      ranges = { 8, 80, 0, 0, 3, 59 }, leaves = leaves, label = "ranges" }
    grad_input { dtype = dtype, out = "f32", rows = 70, depth = 128, widths = { 256, 128 },
      ranges = { 128, 128, 64, 64 }, leaves = leaves, label = "halves" }
  end
  grad_input { dtype = dtype, out = "f32", rows = 7, depth = 9, widths = { 5, 6 },
    ranges = { 2, 0, 0, 0 }, leaves = 2, label = "nothing to sum" }

  -- pieces
  for mode = 0, 2 do
    grad_weight { dtype = dtype, features = 72, width = 40, samples = 3, length = 20, mode = mode }
    grad_weight { dtype = dtype, features = 33, width = 65, first = 5, samples = 7, length = 5,
      stride = 9, mode = mode }
    grad_weight { dtype = dtype, features = 136, width = 72, first = 3, samples = 2, length = 128,
      stride = 160, mode = mode }
    grad_weight { dtype = dtype, features = 17, width = 130, samples = 9, length = 1, mode = mode }
    grad_weight { dtype = dtype, features = 8, width = 16, samples = 4, length = 16, mode = mode,
      kind = "zeros" }
    grad_weight { dtype = dtype, features = 9, width = 5, samples = 0, length = 4, mode = mode,
      kind = "zeros", label = "no piece" }
    grad_weight { dtype = dtype, features = 9, width = 5, samples = 3, length = 0, mode = mode,
      kind = "zeros", label = "empty pieces" }
  end

  -- kinds of numbers
  for _, kind in ipairs { "wide", "zeros", "tiny", "infinite" } do
    for _, out in ipairs { "f32", "bf16" } do
      linear { dtype = dtype, out = out, rows = 40, widths = { 48 }, depth = 160, kind = kind }
      grad_input { dtype = dtype, out = out, rows = 40, depth = 48, widths = { 90, 70 },
        kind = kind }
    end
    if kind ~= "infinite" then
      for mode = 0, 2 do
        grad_weight { dtype = dtype, features = 40, width = 48, samples = 3, length = 50,
          mode = mode, kind = kind }
      end
      linear { dtype = dtype, out = "bf16", rows = 20, widths = { 48 }, depth = 160, leaves = 4,
        kind = kind }
    end
  end

  -- large tiles
  linear { dtype = dtype, out = "bf16", rows = 17, widths = { 16900 }, depth = 40, bias = "bf16",
    label = "large tile" }
  linear { dtype = dtype, out = "f32", rows = 150, widths = { 8457 }, depth = 72, leaves = 4,
    label = "large tile" }
  grad_input { dtype = dtype, out = "bf16", rows = 150, depth = 8456, widths = { 40, 70 },
    leaves = 2, label = "large tile" }
  grad_weight { dtype = dtype, features = 8456, width = 136, samples = 3, length = 40, mode = 1,
    label = "large tile" }
  linear { dtype = dtype, out = dtype, rows = 512, widths = { 512 }, depth = 512, leaves = 2 }
end

-- what the copy engine can move (kernels/gemm/gemm_hopper.h): pitches of 16 bytes, whole steps
-- where parts of k meet. Rows and columns around the tiles of 128 and 256, k around slots of 64.
for _, leaves in ipairs { 1, 2, 4, 8 } do
  for i, s in ipairs { { 1, 8, 8 }, { 65, 72, 64 }, { 128, 264, 72 }, { 257, 136, 200 },
    { 300, 520, 24 }, { 520, 256, 136 } } do
    local rows, width, depth = s[1], s[2], s[3] * leaves
    for _, out in ipairs { "f32", "bf16" } do
      linear { dtype = "bf16", out = out, rows = rows, widths = { width, 40, 264 }, depth = depth,
        leaves = leaves, bias = i % 3 == 1 and "bf16" or i % 3 == 2 and "f32" or nil }
      linear { dtype = "bf16", out = out, rows = rows, widths = { width }, depth = depth,
        leaves = leaves, kind = i % 2 == 0 and "wide" or "zeros" }
      grad_input { dtype = "bf16", out = out, rows = rows, depth = width, widths = { depth },
        leaves = leaves, kind = i % 2 == 0 and "wide" or "tiny" }
      grad_input { dtype = "bf16", out = out, rows = rows, depth = width, leaves = leaves,
        widths = { 80 * leaves, 16 * leaves, depth }, label = "parts" }
      grad_input { dtype = "bf16", out = out, rows = rows, depth = width, leaves = leaves,
        widths = { 256, 64 + 48 * leaves }, ranges = { 128, 16 * leaves, 64, 48 * leaves },
        label = "ranges" }
    end
  end
end
for mode = 0, 2 do
  for i, s in ipairs { { 8, 8, 1 }, { 72, 264, 64 }, { 136, 72, 63 }, { 264, 520, 65 },
    { 520, 136, 130 }, { 256, 256, 16 } } do
    local features, width, length = s[1], s[2], s[3]
    for samples = 1, 3 do
      grad_weight { dtype = "bf16", features = features, width = width, first = 3 * (i % 2),
        samples = samples, length = length, stride = length + i % 3, mode = mode,
        kind = i % 2 == 0 and "wide" or "zeros", label = "boxes" }
    end
  end
end
for _, dtype in ipairs { "f32", "bf16" } do
  for _, mode in ipairs { 0, 2 } do
    for _, leaves in ipairs { 2, 4, 8, 16 } do
      for i, s in ipairs { { 72, 264, 20 }, { 33, 65, 16 }, { 264, 136, 70 }, { 128, 128, 64 } } do
        grad_weight { dtype = dtype, features = s[1], width = s[2], first = i, samples = leaves *
          (1 + i % 2), length = s[3], stride = s[3] + i % 3, mode = mode, leaves = leaves,
          kind = i % 2 == 0 and "wide" or nil, label = "leaves of pieces" }
      end
    end
  end
end
linear { dtype = "bf16", out = "bf16", rows = 700, widths = { 2304, 512 }, depth = 256, leaves = 1,
  label = "several tiles a block" }
linear { dtype = "bf16", out = "bf16", rows = 700, widths = { 2304, 512 }, depth = 256, leaves = 2,
  label = "several tiles a block" }
linear { dtype = "bf16", out = "f32", rows = 700, widths = { 2304, 512 }, depth = 256, leaves = 4,
  label = "several tiles a block" }
linear { dtype = "bf16", out = "bf16", rows = 700, widths = { 2304, 512 }, depth = 256, leaves = 8,
  label = "several tiles a block" }
grad_input { dtype = "bf16", out = "bf16", rows = 1030, depth = 2304, widths = { 128, 64 },
  leaves = 4, label = "several tiles a block" }
grad_weight { dtype = "bf16", features = 2304, width = 1288, samples = 3, length = 40, mode = 1,
  label = "several tiles a block" }
grad_weight { dtype = "bf16", features = 2304, width = 1288, samples = 3, length = 40, mode = 2,
  label = "several tiles a block" }

-- every compiled tile on shapes that the launcher would give to another one
for _, tile in ipairs(blocks.gemm_tiles) do
  local options = { gemm_rows = tile[1], gemm_columns = tile[2] }
  for _, leaves in ipairs { 1, 2, 4, 8 } do
    linear { dtype = "bf16", out = "bf16", rows = 150, widths = { 72, 264 }, depth = 200 * leaves,
      leaves = leaves, bias = "f32", options = options }
    linear { dtype = "bf16", out = "f32", rows = 5, widths = { 328 }, depth = 64 * leaves,
      leaves = leaves, kind = "wide", options = options }
    linear { dtype = "bf16", out = "bf16", rows = 600, widths = { 1032 }, depth = 24 * leaves,
      leaves = leaves, options = options }
    grad_input { dtype = "bf16", out = "bf16", rows = 300, depth = 136, leaves = leaves,
      widths = { 80 * leaves, 136 * leaves }, options = options }
    for mode = 0, 2 do
      if mode ~= 1 or leaves == 1 then
        grad_weight { dtype = "bf16", features = 264, width = 136, samples = 2 * leaves,
          length = 70, mode = mode, leaves = leaves, options = options }
      end
    end
  end
end

-- few rows whose outputs the copy engine cannot move: kernels/gemm/gemm_few.cu
for i, rows in ipairs { 1, 5, 8, 9, 16 } do
  for _, leaves in ipairs { 1, 2, 4, 8 } do
    linear { dtype = "bf16", out = i % 2 == 0 and "f32" or "bf16", rows = rows,
      widths = { 33, 70, 8 }, depth = leaves == 1 and 1040 or 48 * leaves, leaves = leaves,
      bias = i % 3 == 0 and "bf16" or nil, kind = i % 2 == 0 and "wide" or nil, label = "few" }
  end
end

linear { dtype = "bf16", out = "f32", rows = 40, widths = { 48 }, depth = 160, kind = "special" }
linear { dtype = "bf16", out = "bf16", rows = 160, widths = { 48 }, depth = 160, kind = "special",
  bias = "f32" }
linear { dtype = "bf16", out = "bf16", rows = 9, widths = { 48 }, depth = 160, kind = "special" }
grad_input { dtype = "bf16", out = "bf16", rows = 40, depth = 48, widths = { 90, 70 },
  kind = "special" }
for mode = 0, 2 do
  grad_weight { dtype = "bf16", features = 40, width = 48, samples = 3, length = 50, mode = mode,
    kind = "special" }
end

return cases
