--- rowwise_norm.lua - rms_norm, layer_norm and their gradients on the GPU.
local data = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/rowwise_data.lua")
local spread, poison = data.spread, data.poison

local cases = {}

local function add(op, rows, width, dtypes, inputs, outputs)
  local a, b = dtypes[1], dtypes[2]
  cases[#cases + 1] = {
    op = op, name = ("%d x %d, %s and %s"):format(rows, width, a, b),
    make = function()
      local shapes = { wide = { rows, width }, row = { width }, column = { rows } }
      local ins, outs = {}, {}
      for i, what in ipairs(inputs) do
        local dtype = what == "column" and "f32" or what == "row" and b or a
        ins[i] = spread(dtype, shapes[what], what == "column" and 0.3 or 1.5, 0.5)
      end
      for i, what in ipairs(outputs) do
        outs[i] = poison(what == "column" and "f32" or b, shapes[what])
      end
      return ins, outs, (op == "rms_norm" or op == "layer_norm") and { eps = 1e-5 } or {}
    end,
  }
end

local sizes = { { 1, 1 }, { 300, 1 }, { 33, 7 }, { 70, 8 }, { 5, 64 }, { 37, 128 }, { 9, 130 },
  { 3, 257 }, { 5, 1024 }, { 2, 2000 }, { 3, 2048 }, { 2, 2049 }, { 3, 4096 }, { 2, 5003 },
  { 0, 16 } }
for _, size in ipairs(sizes) do
  for _, dtypes in ipairs(data.dtypes) do
    local rows, width = size[1], size[2]
    add("rms_norm", rows, width, dtypes, { "wide", "row" }, { "wide", "column" })
    add("rms_norm_grad", rows, width, dtypes, { "wide", "wide", "row", "column" }, { "wide" })
    add("layer_norm", rows, width, dtypes, { "wide", "row", "row" }, { "wide", "column", "column" })
    add("layer_norm_grad", rows, width, dtypes, { "wide", "wide", "row", "column", "column" },
      { "wide" })
  end
end

-- A warp a row: bf16 with gains of either dtype, widths below, at and above those of its kernels.
for _, width in ipairs { 512, 520, 1016, 1032, 2040, 2056, 4088, 4104 } do
  for _, gain in ipairs { "f32", "bf16" } do
    local function wide() return spread("bf16", { 11, width }, 1.5, 0.5) end
    local name = ("11 x %d, bf16, gain %s"):format(width, gain)
    cases[#cases + 1] = { op = "rms_norm", name = name, make = function()
      return { wide(), spread(gain, { width }, 1.5, 0.5) },
        { poison("bf16", { 11, width }), poison("f32", { 11 }) }, { eps = 1e-5 }
    end }
    cases[#cases + 1] = { op = "rms_norm_grad", name = name, make = function()
      return { wide(), wide(), spread(gain, { width }, 1.5, 0.5), spread("f32", { 11 }, 0.3, 0.5) },
        { poison("bf16", { 11, width }) }, {}
    end }
  end
end

return cases
