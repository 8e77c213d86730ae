local core = require "tidelock.core"
local promises = require "support.promises"
local reduce = require "support.reduce_cases"
local support = require "support"

promises.describe(describe, it, reduce.cases)

--- Adds in f32, in the order that sum_tokens states: blocks of 64 rows of each run of each piece.
local function in_order(dy, a, width)
  local acc = {}
  for i = 1, a.runs * width do acc[i] = 0.0 end
  for sample = 0, a.samples - 1 do
    for run = 0, a.runs - 1 do
      local start, stop = run * a.length // a.runs, (run + 1) * a.length // a.runs
      for block = start, stop - 1, 64 do
        for c = 1, width do
          local s = 0.0
          for at = block, math.min(block + 64, stop) - 1 do
            s = core.f32(s + dy[(a.first + sample * a.length + at) * width + c])
          end
          acc[run * width + c] = core.f32(acc[run * width + c] + s)
        end
      end
    end
  end
  return acc
end

describe("sums over tokens", function()
  local rows, width = 420, 5
  local dy = promises.spread("f32", { rows, width }, 1)
  local x = promises.spread("f32", { rows, width }, 2)
  local rstd = promises.spread("f32", { rows }, 3, 0.3, 1)
  local mean = promises.spread("f32", { rows }, 4)

  local function sum(acc, fields)
    local a = { kind = 0, first = 0, samples = 1, length = rows, runs = 1, mode = 0 }
    for name, value in pairs(fields) do a[name] = value end
    core.call("sum_tokens", { dy, x, rstd, mean }, { acc }, a, { threads = 2 })
    return acc, a
  end

  for _, fields in ipairs { { runs = 1 }, { runs = 4, samples = 2, length = 205, first = 3 },
    { runs = 3, samples = 6, length = 70 }, { runs = 8, length = 5 } } do
    it(("keep their order with %d runs of %d rows"):format(fields.runs, fields.length or rows),
      function()
        local acc, a = sum(support.poison("f32", { fields.runs, width }), fields)
        local expected = in_order(dy:flat(), a, width)
        assert.bits(core.tensor("f32", { fields.runs, width }, expected), acc)
      end)
  end

  it("given in several calls have the bits of one", function()
    for kind = 0, 3 do
      local whole = sum(support.poison("f32", { 2, width }),
        { kind = kind, samples = 6, length = 70, runs = 2 })
      local parts = support.poison("f32", { 2, width })
      sum(parts, { kind = kind, samples = 1, length = 70, runs = 2 })
      sum(parts, { kind = kind, samples = 3, length = 70, runs = 2, first = 70, mode = 1 })
      sum(parts, { kind = kind, samples = 2, length = 70, runs = 2, first = 280, mode = 1 })
      assert.bits(whole, parts)
    end
  end)

  it("of a run are those of a rank that holds only the run", function()
    local whole = sum(support.poison("f32", { 4, width }), { samples = 2, length = 200, runs = 4 })
    for run = 0, 3 do
      local part = support.poison("f32", { 1, width })
      sum(part, { first = run * 50, length = 50 })
      sum(part, { first = 200 + run * 50, length = 50, mode = 1 })
      assert.bits(whole:narrow(1, run + 1, 1), part)
    end
  end)

  it("refuse rows that are not there", function()
    local _, message = pcall(sum, core.tensor("f32", { 1, width }), { first = 1 })
    assert.matches("sum_tokens: samples %* length is 420, must be 0 to 419", message)
  end)
end)

describe("the probes of a fold", function()
  local function fold(values)
    local y = support.poison("f32", { 1 })
    core.call("fold", { core.tensor("f32", { #values, 1 }, values) }, { y }, {})
    return y:flat()[1]
  end

  it("find a tree", function()
    assert.equal(0, fold { 1e8, 1, -1e8, 1 }) -- P4
    assert.equal(1, fold { 2 ^ 24, 1, 1, -2 ^ 24 }) -- Q4
    assert.equal(5, fold { 2 ^ 24, 1, 1, 1, -2 ^ 24, 1, 1, 1 }) -- P8
    local sixteen = { 1, 1, 2 ^ 24 }
    for i = 4, 15 do sixteen[i] = 1 end
    sixteen[16] = -2 ^ 24
    assert.equal(13, fold(sixteen)) -- P16 with leaves of one
  end)

  it("round once at the end: H4 and H8", function()
    local function rounded(values)
      local y = support.poison("bf16", { 1 })
      core.call("fold", { core.tensor("f32", { #values, 1 }, values) }, { y }, {})
      return y:flat()[1]
    end
    local small = 2 ^ -9
    assert.equal(1.0078125, rounded { 1, small, small, small })
    assert.equal(1.015625, rounded { 1, small, small, small, small, small, small, small })
  end)

  it("has one answer for any number of ranks that own aligned leaves", function()
    local x = promises.spread("f32", { 16, 33 }, 1)
    local whole = support.poison("f32", { 33 })
    core.call("fold", { x }, { whole }, {})
    for _, ranks in ipairs { 2, 4, 8 } do
      local roots = support.poison("f32", { ranks, 33 })
      local each = 16 // ranks
      for r = 0, ranks - 1 do
        core.call("fold", { x:narrow(1, r * each + 1, each) }, { roots:narrow(1, r + 1, 1) }, {})
      end
      local y = support.poison("f32", { 33 })
      core.call("fold", { roots }, { y }, {})
      assert.bits(whole, y)
    end
  end)

  it("refuses a number of rows that is no power of two", function()
    local _, message = pcall(core.call, "fold", { core.tensor("f32", { 3, 1 }) },
      { core.tensor("f32", { 1 }) }, {})
    assert.matches("fold: x has 3 rows, must be a power of two", message)
  end)
end)

describe("the gradient norm", function()
  local function slots_of(g, a)
    local slots = support.poison("f32", { a.slots or a.parts })
    core.call("square_sum", { g }, { slots }, { axis = a.axis, begin = a.begin or 0,
      extent = a.extent, parts = a.parts, slot_first = a.slot_first or 0 }, { threads = 2 })
    return slots
  end

  it("adds chunks of 65,536 elements in order", function()
    local cols, values = 70000, {}
    for i = 1, 2 * cols do values[i] = math.floor(support.fill_value(3, i) * 2048) / 2048 end
    local function chunk(first, last) -- the row rule; products are exact
      local p = {}
      for i = 1, 2048 do p[i] = 0.0 end
      for i = first, last do
        local at = (i - first) % 2048 + 1
        p[at] = core.f32(p[at] + values[i] * values[i])
      end
      while #p > 1 do
        local half = {}
        for i = 1, #p // 2 do half[i] = core.f32(p[2 * i - 1] + p[2 * i]) end
        p = half
      end
      return p[1]
    end
    local two = core.f32(chunk(1, 65536) + chunk(65537, 131072))
    local expected = core.f32(two + chunk(131073, 140000))
    local g = core.tensor("f32", { 2, cols }, values)
    assert.same({ expected }, slots_of(g, { axis = 0, extent = 2, parts = 1 }):flat())
  end)

  it("has the same slots whole and on ranks that hold parts of either dim", function()
    local g = promises.spread("f32", { 12, 40 }, 1)
    for axis = 0, 1 do
      local extent = axis == 0 and 12 or 40
      local whole = slots_of(g, { axis = axis, extent = extent, parts = 4 }):flat()
      for rank = 0, 1 do
        local part = slots_of(g, { axis = axis, begin = rank * extent // 2, extent = extent // 2,
          parts = 2, slot_first = 2 * rank, slots = 4 }):flat()
        for i = 1, 4 do
          assert.equal((i - 1) // 2 == rank and whole[i] or 0, part[i])
        end
      end
    end
  end)

  it("of three tensors of 16 ones and four of 4 twos is 10.583005", function()
    local values = { 16, 16, 16, 16, 16, 16, 16 }
    local norm, control = support.poison("f32", { 1 }), support.poison("f32", { 2 })
    core.call("grad_norm", { core.tensor("f32", { 7 }, values), core.tensor("i64", { 1 }, { 1 }),
      core.tensor("f32", { 1 }, { 1 }) }, { norm, control },
      { counts = { 1, 1, 1, 1, 1, 1, 1 }, clip = 0 })
    assert.near(10.583005, norm:flat()[1], 1e-6)
    assert.same({ 1, 0 }, control:flat())
  end)

  it("skips a step whose norm or loss is not finite, or that has no targets", function()
    local function control(slot, count, value)
      local norm, out = support.poison("f32", { 1 }), support.poison("f32", { 2 })
      core.call("grad_norm", { core.tensor("f32", { 1 }, { slot }),
        core.tensor("i64", { 1 }, { count }), core.tensor("f32", { 1 }, { value }) },
        { norm, out }, { counts = { 1 }, clip = 1 })
      return out:flat()
    end
    local clipped = control(4, 1, 1)
    assert.near(0.5, clipped[1], 1e-6)
    assert.equal(0, clipped[2])
    assert.same({ 1, 0 }, control(0.25, 1, 1))
    assert.equal(1, control(4, 0, 1)[2])
    assert.equal(1, control(math.huge, 1, 1)[2])
    assert.equal(1, control(0 / 0, 1, 1)[2])
    assert.equal(1, control(4, 1, math.huge)[2])
    assert.equal(1, control(4, 1, 0 / 0)[2])
  end)
end)
