local core = require "tidelock.core"
local embedding = require "support.embedding_cases"
local promises = require "support.promises"
local support = require "support"

promises.describe(describe, it, embedding.cases)

describe("the gradient of an embedding", function()
  local rows, vocab, width = 64, 10, 70
  local ids, dy = embedding.ids(rows, vocab, 4), promises.spread("f32", { rows, width }, 5)

  local function add(table_, first, count, mode, first_id, inputs)
    inputs = inputs or { ids, dy }
    core.call("embedding_grad", inputs, { table_ }, { first_id = first_id or 0, first = first,
      samples = 1, length = count, mode = mode })
    return table_
  end

  it("given in several calls has the bits of one", function()
    local whole = add(support.poison("f32", { vocab, width }), 0, rows, 0)
    local parts = add(support.poison("f32", { vocab, width }), 0, 17, 0)
    add(parts, 17, 1, 1)
    add(parts, 18, rows - 18, 1)
    assert.bits(whole, parts)
  end)

  it("has the bits of one chain for more rows than are sorted at a time", function()
    local count, ids_, values = 262144 + 9, {}, {}
    local expected = { 0.0, 0.0, 0.0 }
    for i = 1, count do
      ids_[i], values[i] = i % 3, support.fill_value(2, i)
      expected[i % 3 + 1] = core.f32(expected[i % 3 + 1] + values[i])
    end
    local t = add(support.poison("f32", { 3, 1 }), 0, count, 0, 0,
      { core.tensor("i32", { count }, ids_), core.tensor("f32", { count, 1 }, values) })
    assert.same(expected, t:flat())
  end)

  it("adds each id's rows in ascending order", function()
    local whole = add(core.tensor("f32", { vocab, width }), 0, rows, 0)
    local values, list = {}, ids:flat()
    for i = 1, vocab * width do values[i] = 0.0 end
    local given = dy:flat()
    for row = 1, rows do
      for c = 1, list[row] >= 0 and width or 0 do
        local at = list[row] * width + c
        values[at] = core.f32(values[at] + given[(row - 1) * width + c])
      end
    end
    assert.bits(core.tensor("f32", { vocab, width }, values), whole)
  end)

  it("is the rows of the whole table on a rank that holds a part", function()
    local whole = add(core.tensor("f32", { vocab, width }), 0, rows, 0)
    for first_id = 0, 5, 5 do
      local part = add(support.poison("f32", { 5, width }), 0, rows, 0, first_id)
      assert.bits(whole:narrow(1, first_id + 1, 5), part)
    end
  end)

  it("adds one block sum in mode 2", function()
    local one, two = add(core.tensor("f32", { vocab, width }), 0, 30, 0),
      add(core.tensor("f32", { vocab, width }), 30, 34, 0)
    local expected, sum = {}, one:flat()
    for i, value in ipairs(two:flat()) do expected[i] = core.f32(sum[i] + value) end
    add(one, 30, 34, 2)
    assert.bits(core.tensor("f32", { vocab, width }, expected), one)
  end)

  it("refuses rows that are not there", function()
    local _, message = pcall(add, core.tensor("f32", { vocab, width }), 60, 5, 0)
    assert.matches("embedding_grad: samples %* length is 5, must be 0 to 4", message)
  end)
end)

describe("an embedding", function()
  it("gives +0 for -0, so that ranks may add their parts", function()
    local t = core.tensor("f32", { 2, 2 }, { -0.0, 1, -0.0, -2 })
    local y = support.poison("f32", { 3, 2 })
    core.call("embedding", { core.tensor("i32", { 3 }, { 1, -1, 0 }), t }, { y }, { first = 0 })
    assert.same({ 0, 0xc0000000, 0, 0, 0, 0x3f800000 }, y:bits())
  end)

  it("of positions starts again in each segment", function()
    local ids = support.poison("i32", { 6 })
    core.call("position_ids", { core.tensor("i32", { 7 }, { 0, 0, 3, 4, 6, 6, 6 }) }, { ids }, {})
    assert.same({ 0, 1, 2, 0, 0, 1 }, ids:flat())
  end)
end)
