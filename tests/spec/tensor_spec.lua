local core = require "tidelock.core"
local support = require "support"

describe("a tensor", function()
  it("starts as +0 and tells its shape, dtype and length", function()
    local t = core.tensor("bf16", { 2, 3 })
    assert.same({ 2, 3 }, t:shape())
    assert.equal("bf16", t:dtype())
    assert.equal(2, #t)
    assert.same({ 0, 0, 0, 0, 0, 0 }, t:bits())
    assert.equal("tensor(2 x 3, bf16)", tostring(t))
  end)

  it("puts a part of a list where it stands, or nothing", function()
    local t = core.tensor("i32", { 4 }, { 1, 2, 3, 4 })
    assert.same({ 1, 20, 30, 4 }, t:put({ 10, 20, 30 }, 2, 2):flat())
    assert.same({ 1, 20, 30, 4 }, t:put({}, 1, 0):flat())
    assert.has_error(function() t:put({ 0, 0 }, 2, 2) end)
    assert.has_error(function() t:put({ 0, 0, 0, 0, 0 }, 4, 2) end)
    assert.has_error(function() t:put({ 0 }, 0, 1) end)
    assert.same({ 1, 20, 30, 4 }, t:flat())
  end)

  it("takes flat and nested values and gives both back", function()
    local flat = core.tensor("f32", { 2, 3 }, { 1, 2, 3, 4, 5, 6 })
    local nested = core.tensor("f32", { 2, 3 }, { { 1, 2, 3 }, { 4, 5, 6 } })
    assert.bits(flat, nested)
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, flat:to_table())
    assert.same({ 1, 2, 3, 4, 5, 6 }, nested:flat())
  end)

  it("keeps every dtype's numbers", function()
    assert.same({ -2147483648, 2147483647 },
      core.tensor("i32", { 2 }, { -2147483648, 2147483647 }):flat())
    assert.same({ math.mininteger }, core.tensor("i64", { 1 }, { math.mininteger }):flat())
    assert.same({ 255 }, core.tensor("u8", { 1 }, { 255 }):flat())
    assert.equal("integer", math.type(core.tensor("i64", { 1 }, { 3.0 }):flat()[1]))
    assert.same({ 0x3dcccccd }, core.tensor("f32", { 1 }, { 0.1 }):bits())
  end)

  it("may have no elements", function()
    local t = core.tensor("f32", { 0, 4 }, {})
    assert.equal(0, #t)
    assert.same({}, t:to_table())
    assert.bits(t, core.tensor("f32", { 0, 4 }))
  end)

  it("refuses values that do not fit, with the numbers", function()
    local function message(...) return select(2, pcall(core.tensor, ...)) end
    assert.matches("expected 4 values, got 3", message("f32", { 2, 2 }, { 1, 2, 3 }))
    assert.matches("values of dim 2: expected a table of 2, got table of 1",
      message("f32", { 2, 2 }, { { 1, 2 }, { 3 } }))
    assert.matches("element 2 is 256; u8 takes integers from 0 to 255",
      message("u8", { 2 }, { 1, 256 }))
    assert.matches("element 1 is 1.5; i32 takes integers", message("i32", { 1 }, { 1.5 }))
    assert.matches("element 1 is a string, not a number", message("f32", { 1 }, { "1" }))
    assert.matches("there are f32, bf16, i32, i64, u8", message("f16", { 1 }))
    assert.matches("a shape has 1 to 4 sizes", message("f32", { 1, 1, 1, 1, 1 }))
    assert.matches("a size is an integer from 0", message("f32", { -1 }))
    assert.matches("more than 2^63 bytes", message("f32", { 1 << 31, 1 << 31 }), 1, true)
  end)

  it("shares its memory with narrowed rows, which keep it alive", function()
    local t = core.tensor("f32", { 4, 2 }, { 1, 2, 3, 4, 5, 6, 7, 8 })
    local rows = t:narrow(1, 2, 2)
    assert.same({ { 3, 4 }, { 5, 6 } }, rows:to_table())
    rows:fill(9)
    assert.same({ 1, 2, 9, 9, 9, 9, 7, 8 }, t:flat())
    t:close()
    assert.same({ 9, 9, 9, 9 }, rows:flat())
  end)

  it("narrows only rows that exist, and only dim 1", function()
    local t = core.tensor("f32", { 4, 2 })
    local _, message = pcall(function() t:narrow(1, 3, 3) end)
    assert.matches("tensor_spec.lua:%d+: rows 3..5 of a dim of 4$", message)
    assert.matches("to_table", select(2, pcall(t.narrow, t, 2, 1, 1)))
    assert.matches("no such dim", select(2, pcall(t.narrow, t, 3, 1, 1)))
  end)

  it("says what to use instead of t[1]", function()
    local t = core.tensor("f32", { 2 })
    local _, message = pcall(function() return t[1] end)
    assert.matches("to_table", message)
    assert.matches("narrow", message)
    assert.is_nil(t.absent)
  end)

  it("can be closed twice, and not used afterwards", function()
    local t = core.tensor("f32", { 1000 })
    t:close()
    t:close()
    assert.equal("tensor(closed)", tostring(t))
    assert.matches("tensor is closed", select(2, pcall(t.shape, t)))
    assert.matches("Tensor expected", select(2, pcall(t.shape, io.stdout)))
  end)

  it("is counted while it lives, and <close> gives it back", function()
    collectgarbage()
    local before = core.memory(true).tensor.current
    do
      local t <close> = core.tensor("f32", { 1024 })
      assert.equal(before + 4096, core.memory().tensor.current)
      assert.equal(4, #t:narrow(1, 1, 4))
    end
    collectgarbage()
    assert.equal(before, core.memory().tensor.current)
    assert.equal(before + 4096, core.memory().tensor.peak)
  end)

  it("is opaque, and has identity", function()
    local t = core.tensor("f32", { 1 })
    assert.equal("tidelock.Tensor", getmetatable(t))
    assert.is_false(t == core.tensor("f32", { 1 }))
  end)
end)

describe("equal", function()
  it("compares bits, not values, and names the first difference", function()
    local a = core.tensor("f32", { 3 }, { 1, 0.0, 0 / 0 })
    local b = core.tensor("f32", { 3 }, { 1, -0.0, 0 / 0 })
    assert.same({ true }, { core.equal(a, a) })
    assert.same({ false, 2 }, { core.equal(a, b) })
    assert.same({ false }, { core.equal(a, core.tensor("f32", { 1, 3 })) })
    assert.same({ false }, { core.equal(a, core.tensor("i32", { 3 })) })
  end)
end)

describe("f32 to bf16", function()
  local cases = { -- H24: f32 bits, bf16 bits
    { 0x7F800001, 0x7FC0 }, { 0x7FFF8C22, 0x7FFF }, { 0xFFFFFFFF, 0xFFFF },
    { 0x7FFFFFFF, 0x7FFF }, { 0x7F7FFFFF, 0x7F80 }, { 0x7F7F7FFF, 0x7F7F },
    { 0x3F808000, 0x3F80 }, { 0x3F818000, 0x3F82 }, { 0x3F808001, 0x3F81 },
    { 0x80000001, 0x8000 }, { 0x00018000, 0x0002 }, { 0x7F800000, 0x7F80 },
    { 0xFF800000, 0xFF80 }, { 0x80000000, 0x8000 },
  }
  for _, case in ipairs(cases) do
    it(("gives %04X for %08X (H24)"):format(case[2], case[1]), function()
      assert.equal(case[2], core.bf16_bits(case[1]))
    end)
  end

  it("is what tensors and core.bf16 do with numbers", function()
    for _, case in ipairs(cases) do
      local x = core.tensor_from_bits("f32", { 1 }, { case[1] }):flat()[1]
      if x == x then
        assert.same({ case[2] }, core.tensor("bf16", { 1 }, { x }):bits())
        local back = core.tensor_from_bits("bf16", { 1 }, { case[2] }):flat()[1]
        assert.equal(back, core.bf16(x))
      end
    end
    assert.equal(core.tensor("f32", { 1 }, { 0.1 }):flat()[1], core.f32(0.1))
  end)
end)

describe("the support for specs", function()
  it("names the first element whose bits differ", function()
    local a = core.tensor("f32", { 2 }, { 1, 2 })
    local _, failure = pcall(assert.bits, a, core.tensor("f32", { 2 }, { 1, -2 }))
    assert.matches("element 2 of tensor%(2, f32%): expected bits 40000000, got c0000000",
      tostring(failure))
    assert.is_true((pcall(assert.bits, a, core.tensor("f32", { 2 }, { 1, 2 }))))
  end)

  it("fills as the cases say", function()
    local expected = { -0.984469771, 0.244639158, -0.940450907, -0.878553987 }
    for i = 1, 4 do assert.near(expected[i], support.fill_value(1, i - 1), 1e-9) end
    assert.equal(support.fill_value(2, 5), support.filled("f32", { 2, 3 }, 2):flat()[6])
  end)

  it("poisons every byte", function()
    local t = support.poison("bf16", { 2, 2 })
    assert.same({ 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF }, t:bits())
  end)
end)
