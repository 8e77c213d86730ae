local core = require "tidelock.core"
local norm = require "support.norm_cases"
local promises = require "support.promises"
local support = require "support"

promises.describe(describe, it, norm.cases)

describe("the oracles of the norms", function()
  local width, rows, eps = 6, 2, 1e-5
  local function values(stream, factor, offset)
    return promises.spread("f32", { rows * width }, stream, factor, offset):flat()
  end
  local gain = promises.spread("f32", { width }, 2, 0.5, 1):flat()
  local bias = promises.spread("f32", { width }, 3):flat()

  it("have the gradients of central differences", function()
    local x, dy = values(1), values(4)
    local _, rstd = norm.rms(x, gain, eps)
    promises.check_slopes(function(at) return (norm.rms(at, gain, eps)) end, x, dy,
      norm.rms_grad(dy, x, gain, rstd))
    local _, mean, deviation = norm.layer(x, gain, bias, eps)
    promises.check_slopes(function(at) return (norm.layer(at, gain, bias, eps)) end, x, dy,
      norm.layer_grad(dy, x, gain, mean, deviation))
  end)
end)

describe("the row rule", function()
  --- The order of rows.h in f32, spelled out: products must be exact, or one rounding each.
  local function row_rule(products)
    local partials = {}
    for i = 1, 2048 do partials[i] = 0.0 end
    for i, product in ipairs(products) do
      local p = (i - 1) % 2048 + 1
      partials[p] = core.f32(partials[p] + product)
    end
    while #partials > 1 do
      local half = {}
      for i = 1, #partials // 2 do half[i] = core.f32(partials[2 * i - 1] + partials[2 * i]) end
      partials = half
    end
    return partials[1]
  end

  for _, width in ipairs { 1, 5, 16, 17, 100, 2048, 2049, 6000 } do
    it("orders the sum of a row of " .. width, function()
      local x = promises.spread("f32", { 1, width }, 9):flat()
      for i = 1, width do x[i] = x[i] * 2.0 ^ math.floor(support.fill_value(8, i) * 9) end
      local y, gain = core.tensor("f32", { 1, width }), core.tensor("f32", { width })
      local mean, rstd = support.poison("f32", { 1 }), support.poison("f32", { 1 })
      gain:fill(1)
      core.call("layer_norm", { core.tensor("f32", { 1, width }, x), gain, gain },
        { y, mean, rstd }, { eps = 0 })
      assert.same({ core.f32(row_rule(x) / width) }, mean:flat())
    end)

    it("orders the sum of squares of a row of " .. width, function()
      local x, products = {}, {}
      for i = 1, width do -- 12 bits each: products are exact, so fmaf rounds once like +
        x[i] = math.floor(support.fill_value(9, i) * 2048) / 2048
        products[i] = x[i] * x[i]
      end
      local sum = support.poison("f32", { 1 })
      core.call("square_sum", { core.tensor("f32", { 1, width }, x) }, { sum },
        { axis = 0, begin = 0, extent = 1, parts = 1, slot_first = 0 })
      assert.same({ row_rule(products) }, sum:flat())
    end)
  end
end)

describe("case H01: a norm whose block depends on the row count", function()
  local hidden = 4096
  local gain, needle = support.filled("f32", { hidden }, 2), support.filled("f32", { 1, hidden }, 1)

  local function hashes(rows, place)
    local parts = {}
    for row = 1, rows do
      local other = row == place and needle or support.filled("f32", { 1, hidden }, 3 + row % 5)
      parts[row] = other
    end
    local x = core.tensor("f32", { rows, hidden })
    for row, part in ipairs(parts) do
      core.call("cast", { part }, { x:narrow(1, row, 1) }, {})
    end
    local y, rstd = support.poison("f32", { rows, hidden }), support.poison("f32", { rows })
    local dx = support.poison("f32", { rows, hidden })
    core.call("rms_norm", { x, gain }, { y, rstd }, { eps = 1e-6 }, { threads = 2 })
    core.call("rms_norm_grad", { x, x, gain, rstd }, { dx }, {}, { threads = 2 })
    return { y:narrow(1, place, 1):hash(), rstd:narrow(1, place, 1):hash(),
      dx:narrow(1, place, 1):hash() }
  end

  it("does not happen with 1, 2, 31 and 33 rows, first, middle and last", function()
    local expected = hashes(1, 1)
    for _, rows in ipairs { 2, 31, 33 } do
      for _, place in ipairs { 1, (rows + 1) // 2, rows } do
        assert.same(expected, hashes(rows, place))
      end
    end
  end)
end)

describe("a norm", function()
  it("refuses operands that do not fit, with the numbers", function()
    local x, gain = core.tensor("f32", { 2, 6 }), core.tensor("f32", { 4 })
    local y, rstd = core.tensor("f32", { 2, 6 }), core.tensor("f32", { 2 })
    local function message(...) return select(2, pcall(core.call, ...)) end
    assert.matches("rms_norm: rstd has 2 elements, must have 3",
      message("rms_norm", { x, gain }, { y, rstd }, { eps = 0 }))
    local five = core.tensor("f32", { 5 })
    assert.matches("rms_norm: x has 12 elements, not rows of 5",
      message("rms_norm", { x, five }, { y, rstd }, { eps = 0 }))
    local whole = core.tensor("i32", { 6 })
    assert.matches("rms_norm: gain is i32, must be f32 or bf16",
      message("rms_norm", { x, whole }, { y, rstd }, { eps = 0 }))
  end)

  it("may write over its input", function()
    local function data() return promises.spread("f32", { 3, 40 }, 1) end
    local gain, rstd = promises.spread("f32", { 40 }, 2), core.tensor("f32", { 3 })
    local x, y = data(), data()
    core.call("rms_norm", { x, gain }, { y, rstd }, { eps = 1e-6 })
    core.call("rms_norm", { x, gain }, { x, rstd }, { eps = 1e-6 })
    assert.bits(y, x)
  end)
end)
