local core = require "tidelock.core"
local models = require "support.models"
local promises = require "support.promises"
local rope = require "support.rope_cases"

promises.describe(describe, it, rope.cases)

local function table_of(positions, pairs_count, base, fields)
  local t = core.tensor("f32", { positions, pairs_count, 2 })
  local attrs = { kind = 0, original = 0, base = base, factor = 1, low = 1, high = 4,
    magnitude = 1 }
  for name, value in pairs(fields or {}) do attrs[name] = value end
  core.call("rope_table", {}, { t }, attrs)
  return t
end

describe("a table of rope", function()
  it("keeps positions whole: cos of 257, 15962 and 131071", function()
    local t = table_of(131072, 1, 10000)
    local function cosine(position) return t:narrow(1, position + 1, 1):flat()[1] end
    assert.near(0.819306, cosine(257), 5e-7)
    assert.near(-0.908016, cosine(15962), 5e-7)
    assert.near(-0.817983, cosine(131071), 6e-7)
  end)

  it("has frequencies that are the f32 nearest to base^(-2i/D)", function()
    for _, base in ipairs { 10000, 500000, 1e6, 160000 } do
      local t = table_of(2, 64, base):flat()
      for i = 0, 63 do
        local f = core.f32(rope.frequency(i, 64, base))
        assert.near(math.sin(f), t[128 + 2 * i + 2], 1.2e-7 * math.sin(f))
      end
    end
  end)

  it("has the borders of DeepSeek-V3: waves are kept up to pair 10, slow from pair 23", function()
    local function sines(fields)
      return table_of(2, 32, 10000, fields):narrow(1, 2, 1):flat()
    end
    local plain = sines {}
    local yarn = sines { kind = 2, original = 4096, factor = 40, low = 1, high = 32 }
    for pair = 0, 31 do
      local ratio = math.asin(plain[2 * pair + 2]) / math.asin(yarn[2 * pair + 2])
      if pair <= 10 then assert.equal(1, ratio)
      elseif pair >= 23 then assert.near(40, ratio, 1e-4)
      else assert.is_true(ratio > 1 and ratio < 40) end
    end
  end)

  it("stretched by 4, linearly, turns at place 4 p as far as a plain one at place p", function()
    local layer = { rope = { scaling = { "linear", factor = 4 } } }
    for _, made in ipairs(models.plan(layer).programs[1].instructions) do
      if made.op == "rope_table" then
        made.attrs.base = 500
        local slow, plain = table_of(33, 8, 500, made.attrs), table_of(9, 8, 500)
        for p = 0, 8 do assert.bits(plain:narrow(1, p + 1, 1), slow:narrow(1, 4 * p + 1, 1)) end
        return
      end
    end
    error "no table is made"
  end)

  it("is louder by the magnitude, in one product each", function()
    local fields = { kind = 2, original = 64, factor = 4, low = 1, high = 4 }
    local quiet = table_of(40, 8, 1e4, fields):flat()
    fields.magnitude = 1.1
    local loud = core.f32(1.1)
    for i, value in ipairs(table_of(40, 8, 1e4, fields):flat()) do
      assert.equal(core.f32(quiet[i] * loud), value)
    end
  end)

  it("refuses kinds and numbers that it does not have", function()
    local function message(fields) return select(2, pcall(table_of, 4, 2, 10000, fields)) end
    assert.matches("rope_table: kind is 3, must be 0 to 2", message { kind = 3 })
    assert.matches("rope_table: yarn needs original > 0", message { kind = 2 })
    assert.matches("rope_table: yarn needs base above 1, got 1",
      message { kind = 2, original = 9, base = 1 })
    assert.matches("rope_table: magnitude is 0", message { magnitude = 0 })
    assert.matches("rope_table: llama3 needs original > 0", message { kind = 1 })
    assert.matches("rope_table: base is 0.5", message { base = 0.5 })
  end)
end)

describe("rope", function()
  local function turn(x, cu, positions, attrs)
    local shape = x:shape()
    local y = core.tensor(x:dtype(), shape)
    local t = table_of(positions, shape[3] // 2, 1e4)
    core.call("rope", { x, core.tensor("i32", { #cu }, cu), t }, { y },
      attrs or { inverse = 0, interleaved = 0 })
    return y
  end

  it("starts again in each segment, wherever the segment lies", function()
    local x = promises.spread("f32", { 15, 2, 8 }, 1)
    local packed = turn(x, { 0, 5, 6, 15 }, 16)
    assert.bits(packed:narrow(1, 1, 5), turn(x:narrow(1, 1, 5), { 0, 5 }, 16))
    assert.bits(packed:narrow(1, 6, 1), turn(x:narrow(1, 6, 1), { 0, 1 }, 16))
    assert.bits(packed:narrow(1, 7, 9), turn(x:narrow(1, 7, 9), { 0, 9 }, 16))
    assert.bits(packed, turn(x, { 0, 0, 5, 5, 5, 6, 15, 15, 15 }, 16))
  end)

  it("turns back with inverse", function()
    local x = promises.spread("f32", { 20, 2, 16 }, 1)
    local y = turn(x, { 0, 20 }, 32)
    local back = turn(y, { 0, 20 }, 32, { inverse = 1, interleaved = 0 })
    local want, got = x:flat(), back:flat()
    for i = 1, #want do assert.near(want[i], got[i], 3e-7) end
  end)

  it("names a position past the table, with both numbers", function()
    local x = core.tensor("f32", { 9, 1, 4 })
    local _, message = pcall(turn, x, { 0, 2, 9 }, 6)
    assert.matches("rope: position 6 of segment 1 is past the table's 6", message)
  end)

  it("names the bad entry of cu_seqlens", function()
    local x = core.tensor("f32", { 10, 1, 4 })
    local function message(cu) return select(2, pcall(turn, x, cu, 16)) end
    assert.matches("cu_seqlens: entry 0 is 1, must be 0", message { 1, 5, 9 })
    assert.matches("cu_seqlens: entry 2 is 4, less than 5", message { 0, 5, 4 })
    assert.matches("cu_seqlens: entry 2 is 12, but there are 10 rows", message { 0, 5, 12 })
    assert.matches("cu_seqlens: the last entry is 5, but there are 10 rows", message { 0, 5 })
  end)

  it("may write over its input", function()
    for interleaved = 0, 1 do
      local x = promises.spread("f32", { 20, 2, 18 }, 1)
      local attrs = { inverse = 0, interleaved = interleaved }
      local y = turn(x, { 0, 20 }, 32, attrs)
      local cu = core.tensor("i32", { 2 }, { 0, 20 })
      core.call("rope", { x, cu, table_of(32, 9, 1e4) }, { x }, attrs)
      assert.bits(y, x)
    end
  end)
end)
