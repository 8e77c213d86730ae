--- The bit model of a tensor core step, reached through linear_grad_weight in mode 1: dweight holds
--- C, the rows of dy and x are the factors.
local core = require "tidelock.core"
local model = require "support.tensorcore_model"
local support = require "support"

local one = 0x3F80 -- bf16
local f32_one = 0x3F800000

--- Column j of D = the chain over k of a[j][k] * b[k], from c[j]. Everything is bits.
local function chains(a, b, c)
  local columns, length = #a, #b
  local left = {}
  for k = 1, length do
    for j = 1, columns do left[#left + 1] = a[j][k] end
  end
  local out = core.tensor_from_bits("f32", { 1, columns }, c)
  core.call("linear_grad_weight", { core.tensor_from_bits("bf16", { length, 1 }, b),
    core.tensor_from_bits("bf16", { length, columns }, left) }, { out },
    { first = 0, samples = 1, length = length, stride = length, mode = 1, leaves = 1 })
  return out:bits()
end

--- The chain of sum over k of products[k] * 1, from c; k counts from 0, absent ones are 0.
local function probe(c, products, length)
  local a, b = {}, {}
  for k = 1, length or 16 do
    local bits = core.tensor("f32", { 1 }, { products[k - 1] or 0 }):bits()[1]
    assert(bits & 0xFFFF == 0)
    a[k], b[k] = bits >> 16, one
  end
  return chains({ a }, b, { c })[1]
end

local function all(count, value)
  local list = {}
  for k = 0, count - 1 do list[k] = value end
  return list
end

describe("a step probe of sm_90", function()
  for _, case in ipairs {
    { "has 25 bits, not 24", f32_one, all(16, 2.0 ^ -25), 0x3F800004 },
    { "has no more than 25 bits", f32_one, all(16, 2.0 ^ -26), f32_one },
    { "is one step of 16, not two of 8", f32_one, { [0] = 2.0 ^ -24, [8] = 2.0 ^ -24 },
      0x3F800001 },
    { "cuts, it does not round", f32_one, { [0] = 1.5 * 2.0 ^ -23 }, 0x3F800001 },
    { "cuts toward zero", f32_one, { [0] = -2.0 ^ -25 }, 0x3F7FFFFF },
    { "adds exactly inside a step", 0, { [0] = 2.0 ^ 24, 1, -2.0 ^ 24 }, f32_one },
    { "adds exactly up to its 25 bits", 0, { [0] = 2.0 ^ 25, 1, -2.0 ^ 25 }, f32_one },
    { "is one link of a chain", 0, { [0] = 2.0 ^ 24, [16] = 1, [32] = -2.0 ^ 24 }, 0, 48 },
    { "turns -0 into +0", 0x80000000, {}, 0 },
  } do
    local name, c, products, expected, length = table.unpack(case)
    it(name, function() assert.equal(expected, probe(c, products, length)) end)
  end

  it("does not see a product with a zero factor, however large the other", function()
    local huge, c = 0x7F00, 0x0DA24260 -- 2^127; 1e-30
    assert.equal(c, chains({ { huge } }, { 0 }, { c })[1])
  end)
end)

describe("the largest exponent", function()
  --- 15 products of `many` and one of `last`, in units of 2^-159, where an f32 ends at 2^-149.
  local function sum(many, last)
    local a, b = {}, {}
    for k = 1, 16 do
      local left = (k < 16 and many or last) * 2.0 ^ -100
      a[k], b[k] = table.unpack(core.tensor("bf16", { 2 }, { left, 2.0 ^ -59 }):bits())
    end
    return chains({ a }, b, { 0 })[1]
  end

  it("is never below -133", function()
    assert.equal(1, sum(66, 34)) -- 1024 units, if multiples of 2 count
    assert.equal(0, sum(67, 33)) -- 1038 units, if single ones counted
  end)
end)

describe("the edges of vector code", function()
  it("a subnormal factor counts with exponent -126", function()
    -- 2^-127 * 2^63 has exponent -63: four products of 2^-89 lie below its 25 bits
    local tiny, large, small = 0x0040, 0x5F00, 0x1300
    local a, b = { tiny, small, small, small, small }, { large, one, one, one, one }
    assert.equal(0x1F800000, chains({ a }, b, { 0 })[1])
    assert.equal(0x1F800000, chains({ b }, a, { 0 })[1])
  end)

  it("sums that leave 32 bits are exact", function()
    local ones, minus, expected, c = {}, {}, {}, { 0x3FFFFFFF, 0xBFFFFFFF, 0x3F800000 }
    for k = 1, 16 do ones[k], minus[k] = 0x3FFF, 0xBFFF end
    for j, left in ipairs { ones, minus, ones } do expected[j] = model.chain(left, ones, c[j]) end
    assert.same(expected, chains({ ones, minus, ones }, ones, c))
  end)
end)

describe("special values", function()
  local nan, plus, minus = 0x7FFFFFFF, 0x7F800000, 0xFF800000
  for _, case in ipairs {
    { "infinity stands", { 0x7F80 }, { one }, 0, plus },
    { "infinity has the sign of its product", { 0x7F80 }, { 0xBF80 }, 0, minus },
    { "0 * infinity is NaN", { 0x7F80 }, { 0 }, 0, nan },
    { "infinities of both signs are NaN", { 0x7F80, 0xFF80 }, { one, one }, 0, nan },
    { "infinity in C against one in a product is NaN", { 0x7F80 }, { one }, minus, nan },
    { "NaN of any kind is the one NaN", { 0xFFC1 }, { one }, 0, nan },
    { "NaN in C is the one NaN", { one }, { one }, 0xFFC00001, nan },
    { "a sum past the largest number is infinity", { 0x7F7F, 0x7F7F }, { one, one }, 0, plus },
    { "a subnormal result is kept", { 0x0001 }, { one }, 0, 0x00010000 },
    { "a negative underflow is +0", { 0x8001 }, { 0x0001 }, 0, 0 },
  } do
    local name, a, b, c, expected = table.unpack(case)
    it(name, function() assert.equal(expected, chains({ a }, b, { c })[1]) end)
  end
end)

--- Kinds of bf16 numbers: exponent fields, and how often something else.
local random = 1
local function draw(n)
  random = random * 6364136223846793005 + 1442695040888963407
  return (random >> 33) % n
end

local function sign() return draw(2) << 15 end

local kinds = {
  narrow = function() return sign() | 120 + draw(8) << 7 | draw(128) end,
  wide = function() return sign() | 90 + draw(70) << 7 | draw(128) end,
  full = function() return sign() | draw(255) << 7 | draw(128) end,
  subnormal = function() return sign() | (draw(3) == 0 and draw(60) << 7 or 0) | draw(128) end,
  sparse = function() return draw(4) > 0 and sign() or 100 + draw(40) << 7 | draw(128) end,
  ones = function() return draw(8) == 0 and 0xBFFF or 0x3FFF end,
  special = function()
    return sign() | (draw(40) == 0 and 255 or 120 + draw(20)) << 7 | draw(2)
  end,
}
local names = { "narrow", "wide", "full", "subnormal", "sparse", "ones", "special" }

local function draw_c()
  local way = draw(6)
  if way == 0 then return draw(2) << 31 end
  if way == 1 then return draw(2) << 31 | draw(1 << 23) end
  return draw(2) << 31 | (way == 2 and draw(255) or 100 + draw(50)) << 23 | draw(1 << 23)
end

describe("the model in whole numbers", function()
  for _, left in ipairs(names) do
    it("is what the kernel computes, factors " .. left .. " and any", function()
      for _, right in ipairs(names) do
        local columns, length = 33, 40
        local a, b, c, expected = {}, {}, {}, {}
        for k = 1, length do b[k] = kinds[right]() end
        for j = 1, columns do
          a[j], c[j] = {}, draw_c()
          for k = 1, length do a[j][k] = kinds[left]() end
          expected[j] = model.chain(a[j], b, c[j])
        end
        assert.same(expected, chains(a, b, c), left .. " and " .. right)
      end
    end)
  end
end)

--- Hashes of products of 23 x 70 numbers of every kind with 70 x 45 of every kind.
local script = [[
  local core = require "tidelock.core"
  local random = 7
  local function draw(n)
    random = random * 6364136223846793005 + 1442695040888963407
    return (random >> 33) % n
  end
  local function matrix(rows, columns, low, count, special)
    local bits = {}
    for i = 1, rows * columns do
      local field = draw(50) < special and 255 or draw(9) == 0 and 0 or low + draw(count)
      local fraction = draw(3) == 0 and 127 or draw(3) == 0 and 0 or draw(128)
      bits[i] = draw(2) << 15 | field << 7 | fraction
    end
    return core.tensor_from_bits("bf16", { rows, columns }, bits)
  end
  local ranges = { { 127, 1 }, { 110, 30 }, { 60, 80 }, { 1, 254 }, { 1, 40 }, { 185, 60 } }
  for special = 0, 1 do
    for _, left in ipairs(ranges) do
      for _, right in ipairs(ranges) do
        local x = matrix(23, 70, left[1], left[2], special)
        local weight = matrix(45, 70, right[1], right[2], special)
        local y = core.tensor("f32", { 23, 45 })
        core.call("linear", { x, weight }, { y }, { parts = 1, biases = 0, leaves = 1 })
        print(y:hash())
      end
    end
  end]]

describe("the levels of the processor", function()
  it("agree on numbers of every kind", function()
    support.same_at_levels(script, 72)
  end)
end)

describe("a chain", function()
  it("may be stored and resumed at any step", function()
    local x, grad = support.filled("bf16", { 96, 5 }, 1), support.filled("bf16", { 96, 7 }, 2)
    local whole = support.poison("f32", { 7, 5 })
    core.call("linear_grad_weight", { grad, x }, { whole },
      { first = 0, samples = 1, length = 96, stride = 96, mode = 0, leaves = 1 })
    for cut = 16, 80, 16 do
      local pieces = support.poison("f32", { 7, 5 })
      for _, range in ipairs { { 0, cut, 0 }, { cut, 96 - cut, 1 } } do
        core.call("linear_grad_weight", { grad, x }, { pieces },
          { first = range[1], samples = 1, length = range[2], stride = range[2], mode = range[3],
            leaves = 1 })
      end
      assert.bits(whole, pieces)
    end
  end)
end)
