local core = require "tidelock.core"

describe("Philox4x32-10", function()
  -- The known answers of Random123 (kat_vectors, rows "philox4x32 10").
  local known = {
    { { 0, 0, 0, 0, 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
    { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
      { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
    { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0 },
      { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
  }
  for i, case in ipairs(known) do
    it("gives published answer " .. i, function()
      assert.same(case[2], { core.philox(table.unpack(case[1])) })
    end)
  end
end)

describe("random words", function()
  local function words(...) return table.concat({ core.random_words(...) }, " ") end

  it("depend on seed, stream, index and step, and on nothing else", function()
    local base = words(7, 11, 13, 17)
    assert.equal(base, words(7, 11, 13, 17))
    for _, other in ipairs { { 8, 11, 13, 17 }, { 7, 12, 13, 17 }, { 7, 11, 14, 17 },
      { 7, 11, 13, 18 }, { 11, 7, 13, 17 }, { 7, 11, 17, 13 }, { 7, 11, 13 + (1 << 32), 17 } } do
      assert.not_equal(base, words(table.unpack(other)))
    end
  end)

  it("are Philox under the key mix64(seed + mix64(stream))", function()
    local key = core.mix64(5 + core.mix64(6))
    assert.same({ core.philox(9, 1, 10, 2, key & 0xffffffff, key >> 32 & 0xffffffff) },
      { core.random_words(5, 6, 9 | 1 << 32, 10 | 2 << 32) })
  end)

  it("have even bits", function()
    local ones, draws = 0, 20000
    for index = 1, draws do
      local word = core.random_words(1, 2, index, 0)
      while word > 0 do
        ones = ones + (word & 1)
        word = word >> 1
      end
    end
    local sigma = math.sqrt(draws * 32 / 4)
    assert.near(draws * 16, ones, 4 * sigma)
  end)
end)
