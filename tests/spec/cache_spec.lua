-- Attention over pages has the bits of attention over a whole prompt: the rows of some requests, in
-- any order and number, against `attention` with a segment for each request. Outputs are f32 in
-- bf16, too: no rounding hides another order.
local core = require "tidelock.core"
local support = require "support"
local spread = require("support.promises").spread

--- Packed q, k, v of requests with `lengths`, and attention's o.
local function whole(dtype, o)
  local rows, cu = 0, { 0 }
  for i, length in ipairs(o.lengths) do
    rows = rows + length
    cu[i + 1] = rows
  end
  local q = spread(dtype, { rows, o.heads, o.width }, 1, 3)
  local k = spread(dtype, { rows, o.kv_heads, o.width }, 2, 3)
  local v = spread(dtype, { rows, o.kv_heads, o.value_width or o.width }, 3)
  local result = support.poison("f32", { rows, o.heads, o.value_width or o.width })
  local lse = support.poison("f32", { rows, o.heads })
  core.call("attention", { q, k, v, core.tensor("i32", { #cu }, cu) }, { result, lse }, o.attrs)
  return { q = q, k = k, v = v, o = result, cu = cu, rows = rows }
end

--- A table that gives every request its pages, scattered over the pool.
local function table_of(o)
  local most, pages, list = 0, 0, {}
  for _, length in ipairs(o.lengths) do
    most = math.max(most, (length + o.page - 1) // o.page)
    pages = pages + (length + o.page - 1) // o.page
  end
  local page, count = 0, pages + 3
  local step = count % 7 == 0 and 5 or 7
  for n, length in ipairs(o.lengths) do
    for entry = 1, most do
      local used = entry <= (length + o.page - 1) // o.page
      list[(n - 1) * most + entry] = used and page or -1
      if used then page = (page + step) % count end
    end
  end
  return core.tensor("i32", { #o.lengths, most }, list), count
end

--- Rows (from 0) of the packed array as { request, position }.
local function place(cu, row)
  for n = 1, #cu - 1 do
    if row < cu[n + 1] then return n - 1, row - cu[n] end
  end
end

local function lists(cu, rows)
  local requests, positions = {}, {}
  for i, row in ipairs(rows) do requests[i], positions[i] = place(cu, row) end
  return core.tensor("i32", { #rows }, requests), core.tensor("i32", { #rows }, positions)
end

--- Row after row of a tensor, in the order of `rows`.
local function pick(t, rows)
  local shape, bits, all = t:shape(), {}, t:bits()
  local width = #all // shape[1]
  for i, row in ipairs(rows) do
    table.move(all, row * width + 1, (row + 1) * width, (i - 1) * width + 1, bits)
  end
  shape[1] = #rows
  return core.tensor_from_bits(t:dtype(), shape, bits)
end

--- All rows in an order of their own.
local function shuffled(count)
  local rows = {}
  for i = 1, count do rows[i] = i - 1 end
  for i = count, 2, -1 do
    local j = math.floor((support.fill_value(9, i) + 1) * 0.5 * i) + 1
    rows[i], rows[j] = rows[j], rows[i]
  end
  return rows
end

local function check(dtype, o)
  o.attrs.scale = core.f32(0.35)
  local w = whole(dtype, o)
  local pages, count = table_of(o)
  local keys = support.poison(dtype, { count, o.kv_heads, o.width, o.page })
  local values = support.poison(dtype, { count, o.page, o.kv_heads, o.value_width or o.width })
  local order = shuffled(w.rows)
  for first = 1, #order, o.chunk do -- writes come in chunks, in any order
    local rows = table.move(order, first, math.min(#order, first + o.chunk - 1), 1, {})
    local requests, positions = lists(w.cu, rows)
    core.call("cache_write", { pick(w.k, rows), pick(w.v, rows), requests, positions, pages },
      { keys, values }, {}, { threads = 2 })
  end
  for first = 1, #order, o.chunk do
    local rows = table.move(order, first, math.min(#order, first + o.chunk - 1), 1, {})
    local requests, positions = lists(w.cu, rows)
    local got = support.poison("f32", { #rows, o.heads, o.value_width or o.width })
    core.call("attention_cached", { pick(w.q, rows), keys, values, requests, positions, pages },
      { got }, o.attrs, { threads = first % 3 + 1 })
    assert.bits(pick(w.o, rows), got)
  end
end

describe("attention over pages", function()
  local shapes = {
    { name = "pages of 4, a row at a time", lengths = { 37, 1, 20 }, heads = 4, kv_heads = 2,
      width = 16, page = 4, chunk = 1, attrs = { window = 0, kv_block = 16, split = 32 } },
    { name = "pages of 16, widths that fill no vector", lengths = { 70, 33 }, heads = 6,
      kv_heads = 2, width = 20, value_width = 13, page = 16, chunk = 7,
      attrs = { window = 0, kv_block = 32, split = 64 } },
    { name = "a window", lengths = { 90, 40 }, heads = 2, kv_heads = 1, width = 24, page = 16,
      chunk = 64, attrs = { window = 19, kv_block = 16, split = 48 } },
    { name = "a window that begins inside a step", lengths = { 150 }, heads = 4, kv_heads = 2,
      width = 32, page = 64, chunk = 30, attrs = { window = 41, kv_block = 64, split = 64 } },
    { name = "eight heads of one key, pages of 64", lengths = { 200 }, heads = 8, kv_heads = 1,
      width = 64, page = 64, chunk = 50, attrs = { window = 0, kv_block = 128, split = 8192 } },
    { name = "a page of 5", lengths = { 31, 12, 50 }, heads = 3, kv_heads = 3, width = 8,
      page = 5, chunk = 11, attrs = { window = 21, kv_block = 16, split = 16 } },
  }
  for _, shape in ipairs(shapes) do
    for _, dtype in ipairs { "f32", "bf16" } do
      it(("has the bits of whole prompts: %s, %s"):format(shape.name, dtype), function()
        check(dtype, shape)
      end)
    end
  end

  it("refuses what no request has", function()
    local f32, i32 = spread, core.tensor
    local keys, values = f32("f32", { 2, 1, 8, 4 }, 1), f32("f32", { 2, 4, 1, 8 }, 2)
    local function call(request, position, pages)
      core.call("attention_cached", { f32("f32", { 1, 1, 8 }, 3), keys, values,
        i32("i32", { 1 }, { request }), i32("i32", { 1 }, { position }),
        i32("i32", { 1, 2 }, pages) }, { core.tensor("f32", { 1, 1, 8 }) },
        { window = 0, kv_block = 8, split = 8, scale = 1 })
    end
    assert.error_matches(function() call(1, 0, { 0, 1 }) end, "row 0: request 1; there are 1")
    assert.error_matches(function() call(0, 8, { 0, 1 }) end, "row 0: position 8; a request has 8")
    assert.error_matches(function() call(0, -1, { 0, 1 }) end, "row 0: position %-1")
    assert.error_matches(function() call(0, 5, { 0, 2 }) end,
      "row 0: entry 1 of request 0 is page 2; there are 2")
    assert.error_matches(function() call(0, 5, { -1, 1 }) end, "entry 0 of request 0 is page %-1")
    call(0, 3, { 0, -1 })
  end)
end)
