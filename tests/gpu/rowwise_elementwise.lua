--- rowwise_elementwise.lua - swiglu, unary, binary, scales, cast, fill and dropout on the GPU.
local core = require "tidelock.core"
local data = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/rowwise_data.lua")
local spread, poison = data.spread, data.poison

local cases = {}

local function add(op, name, make) cases[#cases + 1] = { op = op, name = name, make = make } end

local shapes = { { 1, 1 }, { 1, 7 }, { 1, 8 }, { 3, 8 }, { 3, 257 }, { 5, 1000 }, { 0, 8 } }

--- `ins` inputs of the first dtype and `outs` outputs of the second, all of one shape.
local function each_shape(op, ins, outs, attrs, label, factor)
  for _, shape in ipairs(shapes) do
    for _, dtypes in ipairs(data.dtypes) do
      local name = ("%s%d x %d, %s to %s"):format(label or "", shape[1], shape[2], dtypes[1],
        dtypes[2])
      add(op, name, function()
        local x, y = {}, {}
        for i = 1, ins do x[i] = spread(dtypes[1], shape, factor or 6) end
        for i = 1, outs do y[i] = poison(dtypes[2], shape) end
        return x, y, attrs
      end)
    end
  end
end

each_shape("swiglu", 2, 1, {})
each_shape("swiglu_grad", 3, 2, {})
each_shape("scale", 1, 1, { factor = core.f32(0.3) })
each_shape("cast", 1, 1, {}, "", 1e3)
each_shape("fill", 0, 1, { value = core.f32(-1.1) })
for kind = 0, 9 do
  each_shape("unary", 1, 1, { kind = kind }, "kind " .. kind .. ", ", 9)
  each_shape("unary_grad", 2, 1, { kind = kind }, "kind " .. kind .. ", ", 9)
  add("unary", "kind " .. kind .. ", far out", function()
    local values = { 0.0, -0.0, 1e-40, -1e-40, 1e-30, 1, 10, 87, 88.5, 90, 128, 200, 3e38 }
    for i = 1, #values do values[#values + 1] = kind == 7 and values[i] or -values[i] end
    return { core.tensor("f32", { #values }, values) }, { poison("f32", { #values }) },
      { kind = kind }
  end)
end

for _, shape in ipairs { { 1, 1 }, { 3, 1001 } } do
  for _, dtype in ipairs { "f32", "bf16" } do
    add("scale_step", ("%d x %d, %s"):format(shape[1], shape[2], dtype), function()
      return { spread(dtype, shape, 3) }, { poison(dtype, shape) }, { scalar = 3 },
        { scalars = { 9, 9, 9, core.f32(0.3), 9 } }
    end)
  end
end

-- bf16 keeps NaN and rounds to nearest even, halfway cases and overflow included.
add("cast", "every kind of bits to bf16", function()
  local bits = { 0x7f800001, 0xffc12345, 0x7fffffff, 0x7f800000, 0xff800000, 0x7f7fffff }
  for high = 0x3f80, 0x3f83 do
    for _, low in ipairs { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff } do
      bits[#bits + 1] = high << 16 | low
      bits[#bits + 1] = (high - 0x3f80) << 16 | low
    end
  end
  return { core.tensor_from_bits("f32", { #bits }, bits) }, { poison("bf16", { #bits }) }, {}
end)

for kind = 0, 3 do
  for broadcast = 0, 2 do
    for _, shape in ipairs { { 1, 1 }, { 5, 3 }, { 4, 40 }, { 3, 1001 } } do
      for _, dtypes in ipairs(data.dtypes) do
        local name = ("kind %d, broadcast %d, %d x %d, %s and %s"):format(kind, broadcast, shape[1],
          shape[2], dtypes[1], dtypes[2])
        add("binary", name, function()
          local right = broadcast == 0 and shape or { shape[broadcast == 1 and 2 or 1] }
          return { spread(dtypes[1], shape, 3), spread(dtypes[2], right, 1, 2, true) },
            { poison(dtypes[2], shape) }, { kind = kind, broadcast = broadcast }
        end)
      end
    end
  end
end

add("swiglu", "y is gate", function()
  local gate = spread("bf16", { 3, 100 }, 4)
  return { gate, spread("bf16", { 3, 100 }) }, { gate }, {}
end)

local function dropout(dtypes, rate, width, options)
  add("dropout", ("rate %g, width %d, %s to %s"):format(rate, width, dtypes[1], dtypes[2]),
    function()
      local attrs = { key = core.hash_int "mlp.dropout", first = 1, length = 9, token_first = 2,
        tokens = 5, feature_first = 16, features = width + 16, rate = core.f32(rate) }
      return { spread(dtypes[1], { 10, width }) }, { poison(dtypes[2], { 10, width }) }, attrs,
        options
    end)
end

for _, dtypes in ipairs(data.dtypes) do
  for _, rate in ipairs { 0, 0.1, 0.9 } do
    dropout(dtypes, rate, 33, { step = 3, seed = 17, sample_base = 1 << 33 })
    dropout(dtypes, rate, 48, { step = 1 << 40, seed = -1, sample_base = 4 })
  end
end

return cases
