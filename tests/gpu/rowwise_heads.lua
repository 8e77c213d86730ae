--- rowwise_heads.lua - channels of heads on the GPU: pieces that start and end anywhere, sums of
--- any number of leaves.
local data = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/rowwise_data.lua")
local spread, poison = data.spread, data.poison

local cases = {}

local function add(op, name, make) cases[#cases + 1] = { op = op, name = name, make = make } end

for _, dtypes in ipairs(data.dtypes) do
  local words = dtypes[1] .. " to " .. dtypes[2]
  for _, size in ipairs { { 1, 7, 0, { 4, 3 } }, { 128, 192, 0, { 128, 64 } },
    { 3, 24, 5, { 1, 9 } }, { 16, 256, 8, { 128, 120 } }, { 1, 576, 0, { 512, 64 } } } do
    local heads, channels, first, widths = table.unpack(size)
    add("split_heads", ("%d heads of %d from %d, %s"):format(heads, channels, first, words),
      function()
        local pieces = {}
        for i, width in ipairs(widths) do pieces[i] = poison(dtypes[2], { 37, heads, width }) end
        return { spread(dtypes[1], { 37, heads, channels }) }, pieces,
          { parts = #widths, first = first }
      end)
  end
  for _, pieces in ipairs { { { 2, 4 }, { 2, 3 } }, { { 16, 128 }, { 1, 64 } },
    { { 5, 7 }, { 1, 8 }, { 5, 9 } }, { { 128, 128 }, { 128, 64 } } } do
    add("join_heads", ("%d pieces of %d heads, %s"):format(#pieces, pieces[1][1], words), function()
      local inputs, channels = {}, 0
      for i, piece in ipairs(pieces) do
        inputs[i], channels = spread(dtypes[1], { 41, piece[1], piece[2] }), channels + piece[2]
      end
      return inputs, { poison(dtypes[2], { 41, pieces[1][1], channels }) }, { parts = #pieces }
    end)
  end
  for _, size in ipairs { { 1, 8, 0, 8, 1 }, { 12, 24, 16, 8, 4 }, { 128, 192, 128, 64, 8 },
    { 64, 80, 3, 77, 64 }, { 6, 9, 8, 1, 2 } } do
    local heads, channels, first, width, leaves = table.unpack(size)
    add("sum_heads", ("%d heads, %d of %d channels, %d leaves, %s"):format(heads, width, channels,
      leaves, words), function()
      return { spread(dtypes[1], { 33, heads, channels }) }, { poison(dtypes[2], { 33, width }) },
        { first = first, leaves = leaves }
    end)
  end
end

return cases
