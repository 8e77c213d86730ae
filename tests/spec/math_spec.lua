local core = require "tidelock.core"
local support = require "support"

local function from_bits(bits) return (string.unpack("<f", string.pack("<I4", bits))) end
local function to_bits(value) return (string.unpack("<I4", string.pack("<f", value))) end

--- `count` inputs, evenly over all 2^32 bit patterns.
local function patterns(count)
  local list, stride = {}, (1 << 32) // count + 1
  for i = 1, count do list[i] = (i * stride) & 0xffffffff end
  return list
end

local function is_nan(bits) return bits & 0x7fffffff > 0x7f800000 end

describe("exp2", function()
  local exp2 = core.math.exp2

  it("is the exponential unit's function at 65,536 inputs", function()
    -- The hash of the unit's results: its model agrees with an H200 on all 2^32 inputs, and
    -- tl_exp2 and tl_exp2_many agree with that model on all 2^32 inputs.
    local packed = {}
    for i, bits in ipairs(patterns(65536)) do
      local y = is_nan(bits) and 0x7fffffff or to_bits(exp2(from_bits(bits)))
      packed[i] = string.pack("<I4", y)
    end
    assert.equal("e87f484c2c1f4b55", core.hash(table.concat(packed)))
  end)

  it("is the unit's function at 262,144 evenly spaced fractions", function()
    local packed = {}
    for i = 0, 262143 do
      packed[i + 1] = string.pack("<I4", to_bits(exp2(from_bits(0x3f800000 + i * 32 + 7))))
    end
    assert.equal("6ed140bde473d45d", core.hash(table.concat(packed)))
  end)

  it("has the unit's values where a simpler function would differ", function()
    local known = { -- input bits, result bits
      { 0x00000000, 0x3f800000 }, { 0x80000000, 0x3f800000 }, { 0x3f800000, 0x40000000 },
      { 0x3f000000, 0x3fb504f3 }, { 0x43000000, 0x7f800000 }, { 0xc2fc0000, 0x00800000 },
      { 0xc2fc0001, 0x00000000 }, { 0xff800000, 0x00000000 }, { 0x7f800000, 0x7f800000 },
      { 0x00000001, 0x3f800000 }, { 0x80000001, 0x3f800000 },
    }
    for _, pair in ipairs(known) do
      assert.equal(pair[2], to_bits(exp2(from_bits(pair[1]))), ("%08x"):format(pair[1]))
    end
  end)
end)

describe("a vector form", function()
  --- The operator `unary` computes in vectors, core.math one number at a time.
  local function check(kind, name, inputs)
    local x = core.tensor_from_bits("f32", { #inputs }, inputs)
    local y = core.tensor("f32", { #inputs })
    core.call("unary", { x }, { y }, { kind = kind })
    for i, bits in ipairs(y:bits()) do
      local expected = core.math[name](from_bits(inputs[i]))
      if expected ~= expected then
        assert.is_true(is_nan(bits))
      else
        assert.equal(to_bits(expected), bits, ("%s of %08x"):format(name, inputs[i]))
      end
    end
  end

  for kind, name in pairs { [0] = "sigmoid", [4] = "tanh", [6] = "exp", [7] = "log" } do
    it("of " .. name .. " has the bits of the function, also at odd lengths", function()
      check(kind, name, patterns(40009))
      for count = 1, 19 do check(kind, name, patterns(count)) end
    end)
  end
end)

describe("the elementary functions", function()
  --- Largest error in units in the last place of f32, over `count` inputs from low to high.
  local function worst(f, exact, low, high, count)
    local largest, place = 0, low
    for i = 0, count do
      local x = core.f32(low + (high - low) * i / count)
      local want = exact(x)
      if want ~= 0 then
        local exponent = math.floor(math.log(math.abs(want), 2)) + 1
        local unit = 2.0 ^ (math.max(exponent, -125) - 24)
        local errors = math.abs(f(x) - want) / unit
        if errors > largest then largest, place = errors, x end
      end
    end
    return largest, place
  end

  local function tanh(x) return (1 - math.exp(-2 * x)) / (1 + math.exp(-2 * x)) end
  local function log2(x) return math.log(x) / math.log(2) end
  local function exp2(x) return 2.0 ^ x end

  -- The bounds that math.h states; a log of powers near 1 loses digits in f64 as well.
  local cases = {
    { "exp2", exp2, -126, 126, 2.04 }, { "exp2", exp2, -1, 1, 2.04 },
    { "log2", log2, 1e-3, 4, 1.03 }, { "log2", log2, 1, 1e30, 1.03 },
    { "log", math.log, 1e-3, 4, 1.76 }, { "log", math.log, 1, 1e30, 1.76 },
    { "exp", math.exp, -1, 1, 2.3 }, { "exp", math.exp, -16, 16, 14.3 },
    { "tanh", tanh, 1e-3, 9, 1.65 }, { "sin", math.sin, -10, 10, 1.54 },
    { "cos", math.cos, -10, 10, 1.55 }, { "sin", math.sin, 1e4, 2097152, 1.54 },
    { "cos", math.cos, 1e4, 2097152, 1.55 },
  }
  for _, case in ipairs(cases) do
    it(("keep the stated error: %s from %g to %g"):format(case[1], case[3], case[4]), function()
      local largest, place = worst(core.math[case[1]], case[2], case[3], case[4], 20000)
      assert.is_true(largest <= case[5], ("%g units at %.9g"):format(largest, place))
    end)
  end

  it("give 0x7fffffff where there is no number", function()
    local nan = 0 / 0
    for name, x in pairs { log2 = -1, sin = 2097153, cos = -2097153, exp2 = nan, tanh = nan } do
      assert.equal(0x7fffffff, to_bits(core.math[name](x)) & 0x7fffffff, name)
    end
    assert.equal(-math.huge, core.math.log2(0))
    assert.equal(math.huge, core.math.log2(math.huge))
    assert.equal(-149, core.math.log2(2.0 ^ -149))
    assert.equal(1, core.math.tanh(math.huge))
  end)

  it("divide one by a number without a division, with the same bits", function()
    assert.equal("0, 0, 0, 0", (support.run("", "reciprocal"):match "[^\n]+"))
  end)

  it("make quotients of a reciprocal and two corrections, with the bits of a division", function()
    -- every 7th fraction; all of them: build/support/quotient
    assert.equal("0 of 8169270, 0 of 1048576", (support.run("7", "quotient"):match "[^\n]+"))
  end)

  it("have pinned bits at 20,000 inputs", function()
    local expected = {
      log2 = "656533106577ab8f", exp = "35e04dfa67292b6f", log = "ce8e1a72fcbedf80",
      tanh = "c63040b248d8ccee", sigmoid = "482644c87538c4cd", sin = "3843e461f80efd18",
      cos = "b29fc1aae6d01ea7", rsqrt = "8cdbc525dd942b33",
    }
    for name, hash in pairs(expected) do
      local packed = {}
      for i, bits in ipairs(patterns(20000)) do
        local y = core.math[name](from_bits(bits))
        packed[i] = string.pack("<I4", y ~= y and 0x7fffffff or to_bits(y))
      end
      assert.equal(hash, core.hash(table.concat(packed)), name)
    end
  end)
end)
