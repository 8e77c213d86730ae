--- rowwise_tensor.lua - square_sum, grad_norm, adamw, set_state and init on the GPU.
local core = require "tidelock.core"
local data = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/rowwise_data.lua")
local spread, poison = data.spread, data.poison

local cases = {}

local function add(op, name, make) cases[#cases + 1] = { op = op, name = name, make = make } end

--- --- square_sum, grad_norm --------------------------------------------------------------------

local function square_sum(dtype, shape, attrs, slots)
  local name = ("%s, %s, axis %d, %d from %d, %d parts"):format(table.concat(shape, " x "), dtype,
    attrs.axis, attrs.extent, attrs.begin, attrs.parts)
  add("square_sum", name, function()
    return { spread(dtype, shape) }, { poison("f32", { slots }) }, attrs
  end)
end
for _, dtype in ipairs { "f32", "bf16" } do
  local function with(axis, begin, extent, parts, slot_first)
    return { axis = axis, begin = begin, extent = extent, parts = parts, slot_first = slot_first }
  end
  square_sum(dtype, { 1 }, with(0, 0, 1, 1, 0), 1)
  square_sum(dtype, { 1 }, with(0, 0, 1, 4, 2), 9)
  square_sum(dtype, { 7, 9 }, with(0, 1, 5, 2, 1), 4)
  square_sum(dtype, { 7, 9 }, with(1, 1, 7, 4, 0), 4)
  square_sum(dtype, { 5, 64 }, with(1, 16, 48, 2, 0), 2)
  square_sum(dtype, { 3, 10, 24 }, with(1, 2, 8, 4, 0), 4)
  square_sum(dtype, { 300, 500 }, with(0, 0, 300, 1, 0), 1)
  square_sum(dtype, { 300, 500 }, with(1, 0, 500, 2, 0), 40)
  square_sum(dtype, { 299, 501 }, with(1, 3, 498, 1, 0), 1)
  square_sum(dtype, { 40, 8 }, with(0, 0, 40, 0, 0), 35)
end
for _, dtype in ipairs { "f32", "bf16" } do
  for _, size in ipairs { { 1, 1 }, { 5, 64 }, { 3, 65600 }, { 7, 131077 }, { 600, 33 } } do
    local n, width = table.unpack(size)
    add("square_sum_rows", ("%d rows of %d, %s"):format(n, width, dtype), function()
      local places = {}
      for i = 1, n do places[i] = i % 4 == 3 and -1 or 2 * (n - i) + 1 end
      return { spread(dtype, { n, width }) }, { spread("f32", { 2 * n + 3 }) },
        { places = places }
    end)
  end
end
add("square_sum", "40 chunks", function()
  return { core.tensor("bf16", { 1310, 2001 }):fill(1.1) }, { poison("f32", { 1 }) },
    { axis = 0, begin = 0, extent = 1310, parts = 1, slot_first = 0 }
end)

local function grad_norm(name, counts, clip, count, loss, factor)
  add("grad_norm", name, function()
    local sum = 0
    for _, n in ipairs(counts) do sum = sum + n end
    return { spread("f32", { sum }, factor or 1, factor or 1), core.tensor("i64", { 1 }, { count }),
      core.tensor("f32", { 1 }, { loss }) }, { poison("f32", { 1 }), poison("f32", { 2 }) },
      { counts = counts, clip = clip }
  end)
end
grad_norm("one slot", { 1 }, 1, 5, 2)
grad_norm("all sizes", { 1, 2, 4, 8, 16, 32, 64, 128, 1024, 2048, 4096, 1 }, 1, 5, 2)
grad_norm("no clip", { 4, 4, 8 }, 0, 5, 2)
grad_norm("large clip", { 4, 4, 8 }, 1e6, 5, 2)
grad_norm("no targets", { 4 }, 1, 0, 0)
grad_norm("loss infinite", { 4 }, 1, 5, math.huge)
grad_norm("norm infinite", { 4, 4 }, 1, 5, 2, 3e38)
local many = {}
for i = 1, 7000 do many[i] = i % 3 == 0 and 4 or 1 end
grad_norm("7,000 tensors", many, 1, 5, 2)

--- --- adamw, set_state, init --------------------------------------------------------------------

local function adamw(weight, master, count, skip)
  local name = ("%s weight, %s, %d elements, skip %g"):format(weight,
    master and "master" or "no master", count, skip)
  add("adamw", name, function()
    local outputs = { spread(weight, { count }), spread("f32", { count }, 0.1),
      spread("f32", { count }, 0.05, 0.05), master and spread("f32", { count }) }
    return { spread("f32", { count }), core.tensor("f32", { 2 }, { 0.7, skip }) }, outputs,
      { scalar_first = 2, beta1 = core.f32(0.9), beta2 = core.f32(0.95), eps = core.f32(1e-8),
        decay = core.f32(0.1), lr_scale = core.f32(0.5) },
      { scalars = { 9, 9, core.f32(3e-4), core.f32(1.7), core.f32(2.3), 9 } }
  end)
end
for _, weight in ipairs { "f32", "bf16" } do
  for _, count in ipairs { 1, 9, 2048, 3001 } do
    for skip = 0, 1 do
      adamw(weight, true, count, skip)
      adamw(weight, false, count, skip)
    end
  end
end

for _, count in ipairs { 1, 9, 2048, 3001 } do
  for skip = 0, 1 do
    add("set_state", ("%d elements, skip %g"):format(count, skip), function()
      return { spread("f32", { count }), core.tensor("f32", { 2 }, { 0.7, skip }) },
        { spread("f32", { count }, 0.1) }, {}
    end)
  end
end

for kind = 0, 2 do
  for _, dtype in ipairs { "f32", "bf16" } do
    for _, shape in ipairs { { 1 }, { 3, 5 }, { 9, 300 }, { 3, 4, 8 } } do
      add("init", ("kind %d, %s, %s"):format(kind, table.concat(shape, " x "), dtype), function()
        local columns = (shape[2] or 1) * (shape[3] or 1)
        return {}, { poison(dtype, shape) },
          { kind = kind, name_hash = core.hash_int "blocks.3.mlp.up", row_first = 1 << 30,
            col_first = 5, cols_full = columns + 9, first = core.f32(-0.1),
            second = core.f32(0.02) },
          { seed = 1234567 }
      end)
    end
  end
end

return cases
