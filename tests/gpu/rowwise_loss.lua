--- rowwise_loss.lua - the operators of softmax cross entropy on the GPU.
local core = require "tidelock.core"
local data = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/rowwise_data.lua")
local spread, poison, ids = data.spread, data.poison, data.ids

local cases = {}

local function add(op, name, make) cases[#cases + 1] = { op = op, name = name, make = make } end

--- Rows, width of z, true columns, first id, leaves.
local sizes = { { 1, 1, 1, 0, 1 }, { 40, 6, 5, 3, 2 }, { 5, 64, 60, 0, 8 }, { 3, 2048, 2048, 0, 1 },
  { 3, 2048, 2000, 100, 8 }, { 2, 4104, 4097, 0, 1 }, { 2, 8192, 5000, 0, 4 },
  { 2, 1024, 1000, 0, 1024 }, { 3, 264, 0, 0, 4 }, { 2, 3003, 3001, 7, 1 },
  { 2, 16384, 16384, 0, 8 }, { 3, 9024, 9024, 5, 4 }, { 2, 10008, 10008, 0, 1 },
  { 1, 32832, 32832, 0, 32 },
  { 2, 2104, 2000, 3, 1 } }

--- A row maximum that fits z, near enough for the exponentials.
local function column(rows, factor, offset) return spread("f32", { rows }, factor, offset, true) end

for _, size in ipairs(sizes) do
  for _, dtype in ipairs { "f32", "bf16" } do
    local rows, width, columns, first, leaves = table.unpack(size)
    local name = ("%d x %d, %d columns, %d leaves, %s"):format(rows, width, columns, leaves, dtype)
    local function z() return spread(dtype, { rows, width }, 9) end
    local function targets() return ids(rows, -2, first + columns + 2) end
    add("row_max", name, function()
      return { z() }, { poison("f32", { rows }) }, { columns = columns }
    end)
    add("row_sum_exp", name, function()
      local outputs = {}
      for i = 1, 3 do outputs[i] = poison("f32", { rows }) end
      return { z(), column(rows, 0.5, 9), targets() }, outputs,
        { columns = columns, first = first, leaves = leaves }
    end)
    for _, other in ipairs { "f32", "bf16" } do
      local to = name .. " to " .. other
      add("logsumexp_grad", to, function()
        return { z(), column(rows, 0.5, 9), column(rows, 1, 3), column(rows) },
          { poison(other, { rows, width }) }, { columns = columns }
      end)
      for _, extra in ipairs { { 0, 0 }, { 0.1, 0 }, { 0, 1e-3 }, { 0.1, 1e-3 } } do
        add("cross_entropy_grad", ("%s, smoothing %g, z %g"):format(to, extra[1], extra[2]),
          function()
            return { z(), column(rows, 0.5, 9), column(rows, 1, 3), targets(), column(rows) },
              { poison(other, { rows, width }) },
              { columns = columns, first = first, vocab = columns + 50,
                smoothing = core.f32(extra[1]), z = core.f32(extra[2]) }
          end)
      end
    end
  end
end

--- Rows of whole pieces: leaves of 1 to 20 times 2,048 columns, fewer and more than fit at once.
for _, size in ipairs { { 32000, 8 }, { 32000, 4 }, { 32000, 1 }, { 40000, 1 }, { 24640, 2 },
  { 33024, 2 }, { 20480, 2 }, { 12288, 2 }, { 3072, 2 }, { 17408, 16 } } do
  local width, leaves = size[1], size[2]
  add("row_sum_exp", ("whole, %d columns, %d leaves"):format(width, leaves), function()
    local outputs = {}
    for i = 1, 3 do outputs[i] = poison("f32", { 3 }) end
    return { spread("bf16", { 3, width }, 9), column(3, 0.5, 9), ids(3, 0, width - 1) }, outputs,
      { columns = width, first = 0, leaves = leaves }
  end)
end

--- Leaves side by side: some columns are there to fill up, pieces are not whole.
for _, size in ipairs { { 32000, 31990, 4 }, { 8192, 8192, 4 }, { 5000, 4000, 2 },
  { 4100, 1900, 2 } } do
  local width, columns, leaves = table.unpack(size)
  for _, dtype in ipairs { "f32", "bf16" } do
    local name = ("%d of %d columns, %d leaves, %s"):format(columns, width, leaves, dtype)
    add("row_sum_exp", name, function()
      local outputs = {}
      for i = 1, 3 do outputs[i] = poison("f32", { 3 }) end
      return { spread(dtype, { 3, width }, 9), column(3, 0.5, 9), ids(3, -1, columns + 1) },
        outputs, { columns = columns, first = 0, leaves = leaves }
    end)
    add("row_max", name, function()
      return { spread(dtype, { 3, width }, 9) }, { poison("f32", { 3 }) }, { columns = columns }
    end)
  end
end

add("row_max", "infinities and zeros", function()
  local low, zero = -math.huge, -0.0
  local rows = { { low, low, low, low }, { zero, low, zero, -1 }, { 0.0, zero, -1, low } }
  return { core.tensor("f32", { 3, 4 }, rows) }, { poison("f32", { 3 }) }, { columns = 4 }
end)
--- Exponentials from 1 down to +0, far outside what s expects.
for _, width in ipairs { 2104, 9000 } do
  add("cross_entropy_grad", "far logits, " .. width, function()
    return { spread("bf16", { 3, width }, 150), column(3, 0.5, 90), column(3, 1, 3),
      ids(3, 0, width - 1), column(3) }, { poison("bf16", { 3, width }) },
      { columns = width, first = 0, vocab = width, smoothing = 0, z = core.f32(1e-3) }
  end)
end
add("cross_entropy_grad", "dz is z", function()
  local z = spread("bf16", { 3, 200 }, 9)
  return { z, column(3, 0.5, 9), column(3, 1, 3), ids(3, 0, 190), column(3) }, { z },
    { columns = 190, first = 0, vocab = 190, smoothing = 0, z = 0 }
end)

for _, rows in ipairs { 1, 300, 1000 } do
  local name = rows .. " tokens"
  local function out() return { poison("f32", { rows }) } end
  for _, extra in ipairs { { 0, 0 }, { 0.1, 0 }, { 0.1, 1e-3 } } do
    add("cross_entropy", ("%s, smoothing %g, z %g"):format(name, extra[1], extra[2]), function()
      return { column(rows, 5), column(rows, 3, 4), column(rows, 5), column(rows, 900),
        ids(rows, -1, 3) }, out(),
        { vocab = 1000, smoothing = core.f32(extra[1]), z = core.f32(extra[2]) }
    end)
  end
  add("logsumexp", name, function() return { column(rows, 5), column(rows, 3, 4) }, out(), {} end)
  for _, count in ipairs { 0, 7, 123456789 } do
    add("loss_seed", name .. ", count " .. count, function()
      return { ids(rows, -1, 3), core.tensor("i64", { 1 }, { count }) }, out(), {}
    end)
  end
  add("loss_mask", name, function() return { column(rows), ids(rows, -1, 3) }, out(), {} end)
end
for _, count in ipairs { 0, 3, 16777217 } do
  add("loss_finish", "count " .. count, function()
    return { core.tensor("f32", { 1 }, { 11.7 }), core.tensor("i64", { 1 }, { count }) },
      { poison("f32", { 1 }) }, {}
  end)
end

return cases
