local core = require "tidelock.core"
local elementwise = require "support.elementwise_cases"
local promises = require "support.promises"
local support = require "support"

promises.describe(describe, it, elementwise.cases)

describe("the oracles of elementwise operators", function()
  it("have the gradients of central differences", function()
    local dy = promises.spread("f32", { 8 }, 3):flat()
    local gate = promises.spread("f32", { 8 }, 1, 3):flat()
    local up = promises.spread("f32", { 8 }, 2):flat()
    local dgate, dup = elementwise.swiglu_grad(dy, gate, up)
    promises.check_slopes(function(x) return elementwise.swiglu(x, up) end, gate, dy, dgate)
    promises.check_slopes(function(x) return elementwise.swiglu(gate, x) end, up, dy, dup)
    for kind = 0, #elementwise.kinds do
      local name, value, slope = table.unpack(elementwise.kinds[kind])
      local x = promises.spread("f32", { 8 }, 5, 2, name == "log" and 2.5 or 0):flat()
      local gradient = {}
      for i = 1, 8 do gradient[i] = dy[i] * slope(x[i]) end
      promises.check_slopes(function(at)
        local y = {}
        for i = 1, 8 do y[i] = value(at[i]) end
        return y
      end, x, dy, gradient)
    end
  end)
end)

describe("an elementwise operator", function()
  it("may write over its input where its contract says so", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local function data(stream) return promises.spread(dtype, { 3, 700 }, stream, 3) end
      local function twice(op, attrs, others, at, outputs)
        local expected, ins, outs = {}, {}, {}
        for i = 1, outputs do expected[i] = core.tensor(dtype, { 3, 700 }) end
        for i = 1, others do ins[i] = data(i) end
        core.call(op, ins, expected, attrs)
        for i = 1, outputs do outs[i] = ins[at[i]] end
        core.call(op, ins, outs, attrs)
        for i = 1, outputs do assert.bits(expected[i], outs[i]) end
      end
      twice("swiglu", {}, 2, { 1 }, 1)
      twice("swiglu", {}, 2, { 2 }, 1)
      twice("swiglu_grad", {}, 3, { 2, 3 }, 2)
      twice("swiglu_grad", {}, 3, { 1, 3 }, 2)
      twice("binary", { kind = 0, broadcast = 0 }, 2, { 1 }, 1)
      twice("scale", { factor = 3 }, 1, { 1 }, 1)
      for kind = 0, 8 do
        twice("unary", { kind = kind }, 1, { 1 }, 1)
        twice("unary_grad", { kind = kind }, 2, { 1 }, 1)
      end
    end
  end)

  it("refuses kinds that do not exist", function()
    local x = core.tensor("f32", { 2 })
    local function message(...) return select(2, pcall(core.call, ...)) end
    assert.matches("unary: kind is 10, must be 0 to 9",
      message("unary", { x }, { x }, { kind = 10 }))
    assert.matches("binary: b has 2 elements, must have 1", message("binary", { x, x }, { x },
      { kind = 0, broadcast = 1 }))
  end)

  it("rounds to the nearest bf16, ties to even, and keeps what is not finite", function()
    local cases = { -- f32 bits, bf16 bits
      { 0x3f808000, 0x3f80 }, { 0x3f818000, 0x3f82 }, { 0x3f808001, 0x3f81 }, { 0x3f807fff,
        0x3f80 },
      { 0xbf818000, 0xbf82 }, { 0x7f7fffff, 0x7f80 }, { 0x7f800000, 0x7f80 }, { 0xff800000,
        0xff80 },
      { 0x7f800001, 0x7fc0 }, { 0xffc12345, 0xffc1 }, { 0x00008000, 0x0000 }, { 0x00018000,
        0x0002 },
      { 0x80000000, 0x8000 } }
    local from, to = {}, {}
    for i = 1, 40 do from[i], to[i] = table.unpack(cases[(i - 1) % #cases + 1]) end
    local y = support.poison("bf16", { 40 })
    core.call("cast", { core.tensor_from_bits("f32", { 40 }, from) }, { y }, {})
    assert.same(to, y:bits())
  end)

  it("keeps NaN in relu and clears -0", function()
    local x = core.tensor("f32", { 4 }, { 0 / 0, -0.0, -1, 2 })
    local y = core.tensor("f32", { 4 })
    core.call("unary", { x }, { y }, { kind = 3 })
    local out = y:flat()
    assert.is_true(out[1] ~= out[1])
    assert.same({ 0, 0, 0x40000000 }, { table.unpack(y:bits(), 2) })
  end)
end)
