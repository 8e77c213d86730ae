--- rowwise_token.lua - rope, embedding, and sums over tokens on the GPU.
local data = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/rowwise_data.lua")
local spread, poison, ids = data.spread, data.poison, data.ids

local cases = {}

local function add(op, name, make) cases[#cases + 1] = { op = op, name = name, make = make } end

--- --- rope -------------------------------------------------------------------------------------

local segments = { { 10 }, { 1, 0, 4, 5 }, { 3, 3, 3, 0, 1 } }
for _, size in ipairs { { 1, 2, 1 }, { 2, 64, 32 }, { 3, 80, 20 }, { 2, 7, 3 }, { 5, 128, 64 } } do
  for _, dtypes in ipairs(data.dtypes) do
    for inverse = 0, 1 do
      for interleaved = 0, 1 do
        local heads, channels, pairs = table.unpack(size)
        add("rope", ("%d heads of %d, %d pairs, inverse %d, interleaved %d, %s to %s"):format(heads,
          channels, pairs, inverse, interleaved, dtypes[1], dtypes[2]), function()
          local lengths = segments[1 + (heads + inverse) % #segments]
          return { spread(dtypes[1], { 10, heads, channels }), data.starts(lengths, 11),
            spread("f32", { 12, pairs, 2 }) }, { poison(dtypes[2], { 10, heads, channels }) },
            { inverse = inverse, interleaved = interleaved }
        end)
      end
    end
  end
end
add("rope", "many segments", function()
  local lengths = {}
  for i = 1, 700 do lengths[i] = i % 4 end
  local rows = 0
  for _, length in ipairs(lengths) do rows = rows + length end
  local angles = spread("f32", { 3, 8, 2 })
  return { spread("bf16", { rows, 16 }), data.starts(lengths, rows + 1), angles },
    { poison("bf16", { rows, 16 }) }, { inverse = 0, interleaved = 0 }
end)
for _, size in ipairs { { 1, 1 }, { 300, 33 }, { 513, 64 } } do
  for kind = 0, 2 do
    for _, base in ipairs { kind < 2 and 1 or 2, 10000, 500000 } do
      local name = ("%d x %d, kind %d, base %d"):format(size[1], size[2], kind, base)
      add("rope_table", name, function()
        return {}, { poison("f32", { size[1], size[2], 2 }) },
          { kind = kind, original = 128, base = base, factor = 8, low = 1, high = 4,
            magnitude = kind < 2 and 1 or 1.0625 }
      end)
    end
  end
end

--- --- embedding --------------------------------------------------------------------------------

for _, width in ipairs { 1, 12, 64, 2049 } do
  for _, dtypes in ipairs(data.dtypes) do
    add("embedding", ("width %d, %s to %s"):format(width, dtypes[1], dtypes[2]), function()
      return { ids(21, -1, 14), spread(dtypes[1], { 9, width }) },
        { poison(dtypes[2], { 21, width }) }, { first = 3 }
    end)
  end
end

--- rows: of ids and dy; vocab: of the part; high: the largest id.
local function embedding_grad(rows, vocab, high, width, dtype, mode)
  add("embedding_grad", ("%d rows, %d ids of %d, width %d, %s, mode %d"):format(rows, vocab, high,
    width, dtype, mode), function()
    local first, samples = 3, 2
    local length = (rows - first) // samples
    local start = mode == 0 and poison("f32", { vocab, width }) or spread("f32", { vocab, width })
    return { ids(rows, -1, high), spread(dtype, { rows, width }) }, { start },
      { first_id = 2, first = first, samples = samples, length = length, mode = mode }
  end)
end
for mode = 0, 2 do
  for _, dtype in ipairs { "f32", "bf16" } do
    embedding_grad(11, 5, 9, 7, dtype, mode)
    embedding_grad(300, 4, 6, 16, dtype, mode)
    embedding_grad(1000, 1, 2, 8, dtype, mode)
    embedding_grad(601, 3, 4, 9, dtype, mode)
    embedding_grad(68, 1, 2, 8, dtype, mode)
    for rows = 515, 519 do embedding_grad(rows, 1, 2, 8, dtype, mode) end
    embedding_grad(700, 300, 320, 24, dtype, mode)
    embedding_grad(140, 3, 4, 2056, dtype, mode)
    embedding_grad(3, 4, 9, 8, dtype, mode)
  end
end

for _, lengths in ipairs { { 7 }, { 0, 3, 0, 0, 300, 1 } } do
  add("position_ids", #lengths .. " segments", function()
    local rows = 0
    for _, length in ipairs(lengths) do rows = rows + length end
    return { data.starts(lengths, rows + 1) }, { poison("i32", { rows }) }, {}
  end)
end

--- --- sum_tokens, fold -------------------------------------------------------------------------

local function sum_tokens(kind, mode, dtypes, dim, samples, length, runs)
  add("sum_tokens", ("kind %d, mode %d, %s, dim %d, %d x %d, %d runs"):format(kind, mode, dtypes[1],
    dim, samples, length, runs), function()
    local rows = 5 + samples * length
    local shape = dim == 1 and { rows } or { rows, dim }
    local acc = mode == 0 and poison("f32", { runs, dim }) or spread("f32", { runs, dim })
    return { spread(dtypes[1], shape), kind >= 1 and spread(dtypes[2], shape),
      kind >= 2 and spread("f32", { rows }, 0.3, 1), kind >= 3 and spread("f32", { rows }) },
      { acc },
      { kind = kind, first = 2, samples = samples, length = length, runs = runs, mode = mode }
  end)
end
for kind = 0, 3 do
  for mode = 0, 1 do
    for _, dtypes in ipairs(data.dtypes) do
      sum_tokens(kind, mode, dtypes, 1, 2, 150, 1)
      sum_tokens(kind, mode, dtypes, 13, 3, 129, 2)
      sum_tokens(kind, mode, dtypes, 64, 2, 67, 4)
      sum_tokens(kind, mode, dtypes, 520, 1, 3, 8)
      sum_tokens(kind, mode, dtypes, 8, 0, 5, 1)
    end
  end
end

sum_tokens(0, 0, { "bf16", "bf16" }, 16, 2, 2300, 1)
sum_tokens(2, 1, { "bf16", "bf16" }, 2048, 1, 200, 1)
sum_tokens(2, 0, { "bf16", "bf16" }, 24, 3, 1500, 2)
sum_tokens(2, 1, { "bf16", "bf16" }, 40, 9, 2100, 1) -- more blocks than one meeting of a chain has
sum_tokens(0, 0, { "bf16", "bf16" }, 72, 5, 4200, 2)

--- Heads of a row that were normalized apart: narrower and wider than what a thread takes.
for kind = 2, 3 do
  for _, dtypes in ipairs(data.dtypes) do
    for _, shape in ipairs { { 5, 3 }, { 7, 8 }, { 3, 20 }, { 4, 128 } } do
      local parts, width = table.unpack(shape)
      add("sum_tokens", ("kind %d, %s, %d parts of %d"):format(kind, dtypes[1], parts, width),
        function()
          local rows = 2 + 2 * 70
          local whole, apart = { rows, parts * width }, { rows, parts }
          return { spread(dtypes[1], whole), spread(dtypes[2], whole), spread("f32", apart, 0.3, 1),
            kind == 3 and spread("f32", apart) }, { poison("f32", { 1, parts * width }) },
            { kind = kind, first = 2, samples = 2, length = 70, runs = 1, mode = 0 }
        end)
    end
  end
end

for _, rows in ipairs { 1, 2, 4, 8, 16, 128, 1024 } do
  for _, dtypes in ipairs(data.dtypes) do
    for _, width in ipairs { 1, 300 } do
      if rows * width < 100000 then
        add("fold", ("%d x %d, %s to %s"):format(rows, width, dtypes[1], dtypes[2]), function()
          return { spread(dtypes[1], { rows, width }) }, { poison(dtypes[2], { width }) }, {}
        end)
      end
    end
  end
end

return cases
