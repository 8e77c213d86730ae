--- serving_cases.lua - the operators of generation on the GPU: pages, attention over them, rope at
--- given positions, the choice of a token.
---
--- The edges of attention_cached: rows alone and rows of one request side by side (a group of
--- 64 / heads of a KV head), more query heads than a tile has, pages that are no power of two or
--- smaller than what is copied at once, blocks longer than a chunk, several parts, windows that
--- begin inside a step, a row that is none, pools that hold NaN where no row looks.
local core = require "tidelock.core"
local data = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/rowwise_data.lua")
local spread, poison = data.spread, data.poison

local cases = {}
local function add(op, name, make) cases[#cases + 1] = { op = op, name = name, make = make } end

--- As a step of few rows and as one of many is computed.
local function add_both(op, name, make)
  add(op, name, make)
  add(op, name .. ", many rows", function()
    local inputs, outputs, attrs = make()
    return inputs, outputs, attrs, { attention_rows = 64 }
  end)
end

local function list(values) return core.tensor("i32", { #values }, values) end

--- A table that scatters the pages of requests of these lengths over a pool; and its size.
local function table_of(lengths, page)
  local most, pages, entries = 0, 0, {}
  for _, length in ipairs(lengths) do
    most = math.max(most, (length + page - 1) // page)
    pages = pages + (length + page - 1) // page
  end
  local count = pages + 3
  local at, step = 0, count % 7 == 0 and 5 or 7
  if count % 35 == 0 then step = 11 end
  for n, length in ipairs(lengths) do
    for entry = 1, most do
      local used = entry <= (length + page - 1) // page
      entries[(n - 1) * most + entry] = used and at or -1
      if used then at = (at + step) % count end
    end
  end
  return core.tensor("i32", { #lengths, most }, entries), count
end

--- Rows: the last position of every request, then `runs` of { request, first, count }.
local function rows_of(o)
  local requests, positions = {}, {}
  local function row(request, position)
    requests[#requests + 1], positions[#positions + 1] = request, position
  end
  for _, run in ipairs(o.runs or {}) do
    for i = 0, run[3] - 1 do row(run[1], run[1] < 0 and 0 or run[2] + i) end
  end
  if not o.alone then
    for n, length in ipairs(o.lengths) do row(n - 1, length - 1) end
    row(-1, 0)
  end
  return list(requests), list(positions), #requests
end

--- NaN in a pool at places that no request has: whole pages, and what is behind a request's end,
--- where `stride` elements lie between positions of the same channel.
local function spoil(pool, pages, used, width, page_positions, stride)
  local bits, nan = pool:bits(), pool:dtype() == "f32" and 0xffffffff or 0xffff
  for page = 0, pages - 1 do
    local first = used[page] or 0 -- positions that some request has
    for i = page * width, first < page_positions and (page + 1) * width - 1 or -1 do
      if i // stride % page_positions >= first then bits[i + 1] = nan end
    end
  end
  return core.tensor_from_bits(pool:dtype(), pool:shape(), bits)
end

--- Of each page that is used, how many of its positions are.
local function used_pages(pages, lengths, page_positions)
  local used, most = {}, pages:shape()[2]
  for i, page in ipairs(pages:flat()) do
    local left = lengths[(i - 1) // most + 1] - (i - 1) % most * page_positions
    if page >= 0 then used[page] = math.min(left, page_positions) end
  end
  return used
end

local function attention(name, o)
  for _, dtypes in ipairs { { "f32", "f32" }, { "bf16", "f32" }, { "bf16", "bf16" } } do
    add_both("attention_cached", ("%s, %s to %s"):format(name, dtypes[1], dtypes[2]), function()
      local pages, count = table_of(o.lengths, o.page)
      local requests, positions, rows = rows_of(o)
      local used, v_width = used_pages(pages, o.lengths, o.page), o.value_width or o.width
      local function pool(shape, width, stride)
        return spoil(spread(dtypes[1], shape, 1, 0, true), count, used, width * o.page, o.page,
          stride)
      end
      local keys = pool({ count, o.kv_heads, o.width, o.page }, o.kv_heads * o.width, 1)
      local values = pool({ count, o.page, o.kv_heads, v_width }, o.kv_heads * v_width,
        o.kv_heads * v_width)
      return { spread(dtypes[1], { rows, o.heads, o.width }, 3), keys, values, requests, positions,
        pages }, { poison(dtypes[2], { rows, o.heads, v_width }) },
        { window = o.window or 0, kv_block = o.kv_block, split = o.split or 8192,
          scale = core.f32(o.scale or 0.3) }
    end)
  end
end

attention("rows alone, pages of 16", { lengths = { 1, 17, 130, 300 }, heads = 8, kv_heads = 2,
  width = 64, page = 16, kv_block = 128 })
attention("eight heads of one key", { lengths = { 290, 128, 129 }, heads = 32, kv_heads = 4,
  width = 64, page = 16, kv_block = 128, runs = { { 0, 100, 19 }, { 1, 0, 30 } } })
attention("a head for each key", { lengths = { 70, 200 }, heads = 4, kv_heads = 4, width = 64,
  page = 32, kv_block = 128, runs = { { 1, 0, 150 } } })
attention("three heads of a key, widths of no vector", { lengths = { 70, 33 }, heads = 6,
  kv_heads = 2, width = 20, value_width = 13, page = 16, kv_block = 32, split = 64,
  runs = { { 0, 10, 45 }, { -1, 0, 2 }, { 1, 0, 25 } } })
attention("twenty heads of a key", { lengths = { 150, 40 }, heads = 20, kv_heads = 1, width = 64,
  page = 16, kv_block = 64, runs = { { 0, 60, 7 } } })
attention("forty heads of a key", { lengths = { 90 }, heads = 40, kv_heads = 1, width = 32,
  page = 16, kv_block = 64, runs = { { 0, 60, 7 } } })
attention("a page of 5", { lengths = { 31, 12, 50 }, heads = 3, kv_heads = 3, width = 8, page = 5,
  kv_block = 16, split = 16, window = 21, runs = { { 2, 3, 40 } } })
attention("pages of 4 and of 8", { lengths = { 37, 1, 20 }, heads = 4, kv_heads = 2, width = 16,
  page = 4, kv_block = 16, split = 32, runs = { { 0, 5, 30 } } })
attention("pages of 8", { lengths = { 260, 20 }, heads = 4, kv_heads = 2, width = 64, page = 8,
  kv_block = 128, runs = { { 0, 200, 40 } } })
attention("pages of 256", { lengths = { 500, 3 }, heads = 8, kv_heads = 1, width = 64, page = 256,
  kv_block = 128, runs = { { 0, 300, 16 } } })
attention("pages of 64, a warp a row", { lengths = { 1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193,
  256, 257, 300, 2049, 2300 }, heads = 16, kv_heads = 2, width = 64, page = 64, kv_block = 128 })
attention("pages of 64, rows that have a block of keys ahead", { lengths = { 300, 140 }, heads = 4,
  kv_heads = 2, width = 64, page = 64, kv_block = 128, runs = { { 0, 95, 205 }, { 1, 120, 8 } } })
attention("pages of 128, a warp a row of three heads", { lengths = { 400, 90 }, heads = 6,
  kv_heads = 2, width = 64, page = 128, kv_block = 128, runs = { { 0, 50, 3 }, { -1, 0, 2 },
  { 0, 250, 9 }, { 1, 60, 5 } } })
attention("a prompt, a chunk, and rows between them, pages of 64", { lengths = { 700, 130, 65, 9 },
  heads = 16, kv_heads = 2, width = 64, page = 64, kv_block = 128, runs = { { 3, 8, 1 },
  { 0, 301, 205 }, { 1, 0, 129 }, { -1, 0, 3 }, { 2, 3, 61 } } })
attention("a chunk of a head for each key, pages of 64", { lengths = { 500, 70 }, heads = 2,
  kv_heads = 2, width = 64, page = 64, kv_block = 128, runs = { { 0, 100, 311 }, { 1, 0, 70 } } })
attention("prompts of sixteen heads of a key, blocks of 64", { lengths = { 333, 64, 65 },
  heads = 16, kv_heads = 1, width = 64, page = 128, kv_block = 64, runs = { { 0, 200, 77 },
  { 2, 0, 65 }, { 1, 0, 64 } } })
attention("prompts of twelve heads of a key, pages of 256", { lengths = { 300, 129 }, heads = 12,
  kv_heads = 1, width = 64, page = 256, kv_block = 128, runs = { { 0, 0, 40 }, { 0, 250, 23 } } })
attention("rows in no order, pages of 64", { lengths = { 600, 200 }, heads = 8, kv_heads = 1,
  width = 64, page = 64, kv_block = 128, alone = true, runs = { { 0, 500, 3 }, { 0, 7, 2 },
  { 1, 100, 9 }, { 0, 300, 3 }, { 0, 40, 20 }, { -1, 0, 9 } } })
attention("a window and parts, pages of 64", { lengths = { 400, 140 }, heads = 8, kv_heads = 2,
  width = 64, page = 64, kv_block = 128, split = 256, window = 150, runs = { { 0, 200, 90 } } })
attention("width 128", { lengths = { 300, 90 }, heads = 8, kv_heads = 2, width = 128, page = 16,
  kv_block = 128, runs = { { 0, 140, 33 } } })
attention("width 80", { lengths = { 300, 90 }, heads = 8, kv_heads = 2, width = 80, page = 16,
  kv_block = 128, runs = { { 0, 140, 33 } } })
attention("width 192, values of 128", { lengths = { 200, 90 }, heads = 4, kv_heads = 4,
  width = 192, value_width = 128, page = 16, kv_block = 64, runs = { { 0, 100, 33 } } })
attention("width 256", { lengths = { 200, 90 }, heads = 4, kv_heads = 1, width = 256, page = 16,
  kv_block = 64, runs = { { 0, 100, 33 } } })
attention("blocks of 192", { lengths = { 700, 90 }, heads = 4, kv_heads = 1, width = 64, page = 16,
  kv_block = 192, split = 384, runs = { { 0, 300, 33 } } })
attention("blocks of 1024", { lengths = { 1500, 90 }, heads = 4, kv_heads = 1, width = 64,
  page = 16, kv_block = 1024, runs = { { 0, 1100, 5 } } })
for _, window in ipairs { 1, 19, 41, 130, 500 } do
  attention("a window of " .. window, { lengths = { 350, 40 }, heads = 8, kv_heads = 2, width = 64,
    page = 16, kv_block = 64, split = 128, window = window, runs = { { 0, 100, 100 } } })
end
attention("parts", { lengths = { 600, 129, 128 }, heads = 8, kv_heads = 1, width = 64, page = 16,
  kv_block = 128, split = 128, runs = { { 0, 100, 64 }, { 0, 500, 8 } } })
attention("positions in no order", { lengths = { 600 }, heads = 8, kv_heads = 1, width = 64,
  page = 16, kv_block = 128, split = 256, alone = true,
  runs = { { 0, 500, 3 }, { 0, 7, 2 }, { 0, 300, 3 }, { 0, 40, 8 } } })
attention("few rows of a request", { lengths = { 60 }, heads = 4, kv_heads = 2, width = 64,
  page = 16, kv_block = 128, alone = true, runs = { { 0, 50, 2 } } })

for _, dtype in ipairs { "f32", "bf16" } do
  for _, page in ipairs { 1, 5, 16 } do
    add("cache_write", ("%s, pages of %d"):format(dtype, page), function()
      local pages, count = table_of({ 40, 23 }, page)
      local requests, positions, rows = rows_of { lengths = { 40, 23 }, runs = { { 0, 3, 20 },
        { -1, 0, 2 }, { 1, 0, 9 } } }
      return { spread(dtype, { rows, 3, 20 }), spread(dtype, { rows, 3, 9 }), requests, positions,
        pages }, { poison(dtype, { count, 3, 20, page }), poison(dtype, { count, page, 3, 9 }) }, {}
    end)
  end
end

for _, size in ipairs { { 1, 2, 1 }, { 2, 64, 32 }, { 3, 80, 20 }, { 2, 7, 3 }, { 5, 128, 64 } } do
  for _, dtypes in ipairs(data.dtypes) do
    for inverse = 0, 1 do
      for interleaved = 0, 1 do
        local heads, channels, pairs = table.unpack(size)
        add("rope_rows", ("%d heads of %d, %d pairs, inverse %d, interleaved %d, %s to %s"):format(
          heads, channels, pairs, inverse, interleaved, dtypes[1], dtypes[2]), function()
          return { spread(dtypes[1], { 10, heads, channels }), data.ids(10, 0, 11),
            spread("f32", { 12, pairs, 2 }) }, { poison(dtypes[2], { 10, heads, channels }) },
            { inverse = inverse, interleaved = interleaved }
        end)
      end
    end
  end
end

--- Few rows: as many warps for a chain as there are, leaves side by side, several tiles a warp,
--- groups of 8 steps that end early, features and rows that fill nothing.
local function few(rows, depth, widths, leaves, out, bias)
  local name = ("%d x {%s}, K %d, leaves %d to %s%s"):format(rows, table.concat(widths, " "),
    depth, leaves, out, bias and ", bias" or "")
  add("linear", name, function()
    local inputs, outputs = { spread("bf16", { rows, depth }) }, {}
    for i, width in ipairs(widths) do
      inputs[1 + i] = spread("bf16", { width, depth })
      outputs[i] = poison(out, { rows, width })
    end
    for i, width in ipairs(bias and widths or {}) do
      inputs[1 + #widths + i] = spread(bias, { width })
    end
    return inputs, outputs, { parts = #widths, biases = bias and 1 or 0, leaves = leaves }
  end)
end
for _, rows in ipairs { 1, 3, 8, 9, 16 } do
  few(rows, 2048, { 256, 64, 64 }, 1, "bf16")
  few(rows, 512, { 40, 3 }, 4, "f32", "f32")
  few(rows, 1408, { 21 }, 8, "bf16", "bf16")
  few(rows, 80, { 5000 }, 1, "f32")
  few(rows, 1040, { 70 }, 1, "bf16")
  few(rows, 16, { 9 }, 1, "f32", "bf16")
  few(rows, 352, { 3000 }, 2, "bf16")
end

--- Leaves side by side in a cluster: tiles that are full and not, of 64 and 128 rows and columns.
for _, rows in ipairs { 17, 64, 100, 128, 200, 256 } do
  few(rows, 704, { 256, 72 }, 4, "bf16")
  few(rows, 2048, { 136 }, 4, "f32", "f32")
  few(rows, 160, { 2048 }, 4, "bf16", "bf16")
end

--- Rows with all controls: { next, temperature, top_p, top_k, seed, request, position } each.
local function sample(columns, width, make)
  add("sample", ("%d of %d columns"):format(columns, width), function()
    local next_, controls, draws, n = {}, {}, {}, 0
    local function row(known, temperature, top_p, top_k)
      n = n + 1
      next_[n], controls[2 * n - 1], controls[2 * n] = known, temperature, top_p
      for k, value in ipairs { top_k, n * 77771, -n, n % 3 - 1, n, n * 7 } do
        draws[6 * (n - 1) + k] = value
      end
    end
    row(columns - 1, 1, 1, 0)
    row(-2, 1, 1, 0)
    for _, temperature in ipairs { 0, 0.5, 1, 30 } do
      for _, top_p in ipairs { 1, 0.95, 0.5, 0.01 } do
        for _, top_k in ipairs { 0, 1, 300, columns, 5000 } do
          row(-1, temperature, top_p, top_k)
        end
      end
    end
    return { make(n), list(next_), core.tensor("f32", { n, 2 }, controls),
      core.tensor("i32", { n, 6 }, draws) }, { poison("i32", { n }) }, { columns = columns }
  end)
end
for _, size in ipairs { { 1, 1 }, { 12, 16 }, { 256, 256 }, { 700, 704 }, { 4099, 4112 },
  { 32000, 32000 } } do
  sample(size[1], size[2], function(n) return spread("f32", { n, size[2] }, 6) end)
end
sample(700, 704, function(n) -- many equal ones, zeros of both signs, minus infinity
  local values = {}
  for i = 1, n * 704 do
    local x = (i * 7919) % 13 - 6
    values[i] = i % 29 == 0 and -math.huge or x == 0 and (i % 2 == 0 and 0.0 or -0.0) or x / 2
  end
  return core.tensor("f32", { n, 704 }, values)
end)

for _, dtype in ipairs { "f32", "bf16" } do
  for _, width in ipairs { 2048, 21 } do
    add("pick_rows", ("width %d, %s"):format(width, dtype), function()
      local rows = {}
      for i = 1, 256 do rows[i] = i % 9 == 0 and -1 or i * 7919 % 300 end
      return { spread(dtype, { 300, width }), list(rows) }, { poison(dtype, { 256, width }) }, {}
    end)
  end
end
for _, rows in ipairs { 1, 256, 2048 } do
  add("follow", ("%d rows"):format(rows), function()
    local fed, made = {}, {}
    for i = 1, rows do fed[i], made[i] = (i * 7919) % (2 * rows + 2) - rows - 1, i * 31 - 1 end
    return { list(fed), list(made) }, { poison("i32", { rows }) }, {}
  end)
end

return cases
