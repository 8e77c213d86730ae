local core = require "tidelock.core"
local promises = require "support.promises"
local support = require "support"

local function attributes(fields)
  local attrs = { key = core.hash_int "h.0.drop", first = 0, length = 8, token_first = 0,
    tokens = 8, feature_first = 0, features = 1024, rate = 0.1 }
  for name, value in pairs(fields or {}) do attrs[name] = value end
  return attrs
end

--- The mask of ones of `rows` tokens and `width` local features.
local function mask(rows, width, fields, options)
  local x, y = core.tensor("f32", { rows, width }), support.poison("f32", { rows, width })
  x:fill(1)
  core.call("dropout", { x }, { y }, attributes(fields), options or {})
  return y
end

describe("case H21: dropout under tensor parallelism", function()
  local whole = mask(8, 1024)

  it("puts the masks of tp 2 and 4 side by side", function()
    local expected = whole:to_table()
    for _, tp in ipairs { 2, 4 } do
      local width = 1024 // tp
      local seen = {}
      for rank = 0, tp - 1 do
        local part = mask(8, width, { feature_first = rank * width })
        for row, values in ipairs(part:to_table()) do
          for i, value in ipairs(values) do
            assert.equal(expected[row][rank * width + i], value)
          end
        end
        assert.is_nil(seen[part:hash()])
        seen[part:hash()] = true
      end
    end
  end)

  it("gives equal rows at positions 3 and 4 different masks", function()
    assert.is_false(core.equal(whole:narrow(1, 4, 1), whole:narrow(1, 5, 1)))
  end)

  it("draws the same mask again, and another one in the next step", function()
    assert.bits(whole, mask(8, 1024))
    assert.is_false(core.equal(whole, mask(8, 1024, {}, { step = 1 })))
    assert.is_false(core.equal(whole, mask(8, 1024, {}, { seed = 1 })))
    assert.is_false(core.equal(whole, mask(8, 1024, { key = core.hash_int "h.1.drop" })))
  end)

  it("keeps an element whose number is the rate itself", function()
    local stream = core.hash_int "h.0.drop"
    for _, index in ipairs { 5, 700 } do
      local rate = (core.random_words(0, stream, index, 0) >> 8) * 2.0 ^ -24
      assert.is_true(mask(1, 1024, { rate = rate }):flat()[index + 1] > 0)
      assert.equal(0, mask(1, 1024, { rate = rate + 2.0 ^ -24 }):flat()[index + 1])
    end
  end)

  it("drops a tenth of 1,000,000 elements", function()
    local y = mask(1000, 1000, { length = 1000, tokens = 1000, features = 1000 })
    local kept, bits = 0, core.tensor("f32", { 1 }, { core.f32(1 / core.f32(0.9)) }):bits()[1]
    for _, value in ipairs(y:bits()) do
      if value == bits then kept = kept + 1 else assert.equal(0, value) end
    end
    assert.near(900000, kept, 5 * math.sqrt(1e6 * 0.09))
  end)
end)

describe("dropout", function()
  it("does not depend on how a batch is cut into micro-batches, ranks and runs", function()
    local whole = mask(32, 64, { features = 64 })
    for micro = 0, 3 do
      assert.bits(whole:narrow(1, micro * 8 + 1, 8), mask(8, 64, { features = 64, first = micro }))
      assert.bits(whole:narrow(1, micro * 8 + 1, 8),
        mask(8, 64, { features = 64 }, { sample_base = micro }))
    end
    local run = mask(8, 64, { features = 64, tokens = 2, token_first = 6 }) -- 4 samples
    for sample = 0, 3 do
      assert.bits(whole:narrow(1, sample * 8 + 7, 2), run:narrow(1, sample * 2 + 1, 2))
    end
  end)

  it("is its own gradient", function()
    local x, dy = promises.spread("bf16", { 8, 64 }, 1), promises.spread("bf16", { 8, 64 }, 2)
    local y, dx = core.tensor("bf16", { 8, 64 }), core.tensor("bf16", { 8, 64 })
    core.call("dropout", { x }, { y }, attributes { features = 64 })
    core.call("dropout", { dy }, { dx }, attributes { features = 64 })
    local forward, backward, given = y:flat(), dx:flat(), x:flat()
    for i = 1, #forward do
      if given[i] ~= 0 then assert.equal(forward[i] == 0, backward[i] == 0) end
    end
  end)

  it("refuses a rate of 1 and rows that do not fit, with the numbers", function()
    local x = core.tensor("f32", { 8, 64 })
    local function message(fields)
      return select(2, pcall(core.call, "dropout", { x }, { x }, attributes(fields)))
    end
    assert.matches("dropout: rate is 1, must be at least 0 and below 1", message { rate = 1 })
    assert.matches("dropout: feature_first is 8, must be 0 to 0",
      message { features = 64, feature_first = 8 })
    assert.matches("dropout: token_first is 1, must be 0 to 0", message { token_first = 1 })
  end)
end)
