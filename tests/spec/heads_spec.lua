-- Channels of heads: what each operator promises, the order of sums over heads, and gradients.
local core = require "tidelock.core"
local heads = require "support.heads_cases"
local promises = require "support.promises"

local spread = promises.spread

promises.describe(describe, it, heads.cases)

local function call(op, inputs, shapes, attrs, dtype)
  local outputs = {}
  for i, shape in ipairs(shapes) do outputs[i] = core.tensor(dtype or "f32", shape) end
  core.call(op, inputs, outputs, attrs)
  return table.unpack(outputs)
end

describe("pieces of heads", function()
  it("are the bits that were there, and together the whole again", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local x = spread(dtype, { 9, 3, 20 }, 1)
      local a, b = call("split_heads", { x }, { { 9, 3, 13 }, { 9, 3, 7 } },
        { parts = 2, first = 0 }, dtype)
      assert.bits(x, (call("join_heads", { a, b }, { { 9, 3, 20 } }, { parts = 2 }, dtype)))
    end
  end)

  it("are rounded once where the dtype changes", function()
    local x = spread("f32", { 4, 2, 10 }, 1)
    local rounded = call("scale", { x }, { { 4, 2, 10 } }, { factor = 1 }, "bf16")
    local all = { parts = 1, first = 0 }
    assert.bits(rounded, (call("split_heads", { x }, { { 4, 2, 10 } }, all, "bf16")))
    local wide = call("join_heads", { rounded }, { { 4, 2, 10 } }, { parts = 1 })
    assert.same(rounded:flat(), wide:flat())
  end)

  it("must fit, with the numbers", function()
    local function message(op, inputs, shapes, attrs)
      return select(2, pcall(call, op, inputs, shapes, attrs))
    end
    local x = spread("f32", { 4, 2, 10 }, 1)
    assert.matches("split_heads: end of the pieces is 11, must be 0 to 10",
      message("split_heads", { x }, { { 4, 2, 6 } }, { parts = 1, first = 5 }))
    assert.matches("split_heads: y has 4 rows of 3 heads beside 4 of 2",
      message("split_heads", { x }, { { 4, 3, 6 } }, { parts = 1, first = 0 }))
    assert.matches("join_heads: channels of the pieces is 10, must be 11 to 11",
      message("join_heads", { x }, { { 4, 2, 11 } }, { parts = 1 }))
    assert.matches("join_heads: x has 4 rows of 2 heads beside 4 of 6",
      message("join_heads", { x }, { { 4, 6, 10 } }, { parts = 1 }))
    assert.matches("sum_heads: leaves is 3, must be a power of two that divides heads 6",
      message("sum_heads", { spread("f32", { 4, 6, 10 }, 1) }, { { 4, 10 } },
        { first = 0, leaves = 3 }))
    assert.matches("sum_heads: channels of y is 8, must be 1 to 7",
      message("sum_heads", { x }, { { 4, 8 } }, { first = 3, leaves = 1 }))
  end)
end)

describe("a sum over heads", function()
  --- In f32: chains of neighbours from +0, then pairs.
  local function written_out(x, first, width, count, channels, leaves)
    local runs, size = {}, count // leaves
    for c = 1, width do
      local level = {}
      for leaf = 0, leaves - 1 do
        local s = 0.0
        for head = leaf * size, leaf * size + size - 1 do
          s = core.f32(s + x[head * channels + first + c])
        end
        level[leaf + 1] = s
      end
      while #level > 1 do
        local above = {}
        for i = 1, #level // 2 do above[i] = core.f32(level[2 * i - 1] + level[2 * i]) end
        level = above
      end
      runs[c] = level[1]
    end
    return runs
  end

  it("has the order of the contract, for any number of leaves", function()
    local x = spread("f32", { 1, 24, 9 }, 5)
    local seen = {}
    for _, leaves in ipairs { 1, 2, 4, 8 } do
      local y = call("sum_heads", { x }, { { 1, 7 } }, { first = 2, leaves = leaves }):flat()
      assert.same(written_out(x:flat(), 2, 7, 24, 9, leaves), y)
      seen[table.concat(y, " ")] = true
    end
    local different = 0
    for _ in pairs(seen) do different = different + 1 end
    assert.is_true(different > 1) -- the leaves do change bits: they belong to the policy
  end)

  it("goes on over ranks: roots of halves, added, are the whole's", function()
    local x = spread("f32", { 6, 8, 5 }, 2)
    local low, high = call("split_heads", { core.tensor_from_bits("f32", { 6, 1, 40 }, x:bits()) },
      { { 6, 1, 20 }, { 6, 1, 20 } }, { parts = 2, first = 0 })
    local function root(half)
      local own = core.tensor_from_bits("f32", { 6, 4, 5 }, half:bits())
      return (call("sum_heads", { own }, { { 6, 5 } }, { first = 0, leaves = 2 }))
    end
    local sum = call("binary", { root(low), root(high) }, { { 6, 5 } }, { kind = 0, broadcast = 0 })
    assert.bits(call("sum_heads", { x }, { { 6, 5 } }, { first = 0, leaves = 4 }), sum)
  end)
end)
