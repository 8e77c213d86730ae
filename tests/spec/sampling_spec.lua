-- The choice of a token, step by step as kernels/sampling/sampling.h says, in f32: over several
-- blocks of candidates, for many seeds and controls.
local core = require "tidelock.core"
local promises = require "support.promises"
local sampling = require "support.sampling_cases"

local f32 = core.f32
local log2e = f32(0x1.715476p+0)

--- S(i) of the candidates, i from 1.
local function sums(weight, order)
  local list, blocks, sum = {}, 0.0, 0.0
  for i, id in ipairs(order) do
    if (i - 1) % 256 == 0 then blocks, sum = f32(blocks + sum), 0.0 end
    sum = f32(sum + weight[id])
    list[i] = f32(blocks + sum)
  end
  return list
end

local function falling(z, columns)
  local order = {}
  for i = 1, columns do order[i] = i end
  table.sort(order, function(a, b)
    if z[a] ~= z[b] then return z[a] > z[b] end
    return a < b
  end)
  return order
end

--- The token, from 0: { next, temperature, top_p, top_k, seed, request, position }.
local function token(z, columns, w)
  local ids, order, weight = {}, falling(z, columns), {}
  for i = 1, columns do ids[i] = i end
  local m, temperature, top_p = z[order[1]], f32(w[2]), f32(w[3])
  if temperature == 0 then return order[1] - 1 end
  for i = 1, columns do
    weight[i] = core.math.exp2(f32(f32(f32(z[i] - m) / temperature) * log2e))
  end
  local some = w[4] > 0 and w[4] < columns
  local candidates = (some or top_p < 1) and order or ids
  if some then candidates = table.move(candidates, 1, w[4], 1, {}) end
  local s = sums(weight, candidates)
  if top_p < 1 then
    local all = sums(weight, some and candidates or ids)
    local bound = f32(top_p * all[#all])
    for i = 1, #s do
      if s[i] >= bound then
        candidates = table.move(candidates, 1, i, 1, {})
        break
      end
    end
  end
  local unit = (core.random_words(w[5], core.hash_int "sample", w[7], w[6]) >> 8) * 2.0 ^ -24
  local bound = f32(unit * s[#candidates])
  for i, id in ipairs(candidates) do
    if s[i] > bound then return id - 1 end
  end
  return candidates[#candidates] - 1
end

local function sample(z, columns, ways)
  local ids = core.tensor("i32", { #ways })
  core.call("sample", { z, sampling.operands(ways) }, { ids }, { columns = columns },
    { threads = 2 })
  return ids:flat()
end

describe("sample", function()
  it("takes the token that the page says", function()
    local columns, width, ways = 700, 704, {}
    for _, temperature in ipairs { 0, 0.5, 1, 3 } do
      for _, top_p in ipairs { 1, 0.95, 0.5, 0.01 } do
        for _, top_k in ipairs { 0, 1, 300, 700, 5000 } do
          ways[#ways + 1] = { -1, temperature, top_p, top_k, #ways * 0x123456789, #ways % 3 - 1,
            #ways * 7 }
        end
      end
    end
    local z = promises.spread("f32", { #ways, width }, 3, 6)
    local got, flat = sample(z, columns, ways), z:flat()
    local distinct = {}
    for i, w in ipairs(ways) do
      local row = table.move(flat, (i - 1) * width + 1, (i - 1) * width + columns, 1, {})
      assert.equal(token(row, columns, w), got[i], ("way %d"):format(i))
      distinct[got[i]] = true
    end
    local count = 0
    for _ in pairs(distinct) do count = count + 1 end
    assert.is_true(count > #ways // 2)
  end)

  it("adds up in blocks of 256", function()
    -- so many ids of so little weight that a border in another order of the sum shows
    local columns, rows, m = 20000, 20, -math.huge
    local z, ids, weight = promises.spread("f32", { 1, columns }, 8), {}, {}
    local flat, list = z:flat(), {}
    for i = 1, columns do m = math.max(m, flat[i]) end
    for i = 1, columns do
      ids[i], weight[i] = i, core.math.exp2(f32(f32(flat[i] - m) * log2e))
    end
    for i = 1, rows do table.move(flat, 1, columns, (i - 1) * columns + 1, list) end
    local s, logits = sums(weight, ids), core.tensor("f32", { rows, columns }, list)
    for turn = 0, 299 do
      local ways = {}
      for i = 1, rows do ways[i] = { -1, 1, 1, 0, 4, turn, i } end
      for i, got in ipairs(sample(logits, columns, ways)) do
        local unit = (core.random_words(4, core.hash_int "sample", i, turn) >> 8) * 2.0 ^ -24
        local bound = f32(unit * s[columns])
        assert.is_true(s[got + 1] > bound and (got == 0 or s[got] <= bound))
      end
    end
  end)

  it("takes the lowest id of equal ones", function()
    local z = core.tensor("f32", { 3, 4 }, { 1, 7, 7, 2, -0.0, 0.0, 0.0, -1, 5, 5, 5, 5 })
    assert.same({ 1, 0, 0 }, sample(z, 4, { { -1, 0, 1, 0, 0, 0, 0 }, { -1, 0, 1, 0, 0, 0, 0 },
      { -1, 1, 1, 1, 0, 0, 0 } }))
  end)

  it("draws by the weights", function()
    local ways, count = {}, 4000
    for i = 1, count do ways[i] = { -1, 1, 1, 0, 1, 0, i } end
    local z, list = {}, { math.log(0.5), math.log(0.3), math.log(0.2) }
    for i = 1, count do table.move(list, 1, 3, 3 * i - 2, z) end
    local seen = { 0, 0, 0 }
    for _, id in ipairs(sample(core.tensor("f32", { count, 3 }, z), 3, ways)) do
      seen[id + 1] = seen[id + 1] + 1
    end
    assert.near(0.5, seen[1] / count, 0.03)
    assert.near(0.3, seen[2] / count, 0.03)
  end)

  it("refuses rows that have no token, and names them", function()
    local inf, good = math.huge, { -1, 0, 1, 0, 0, 0, 0 }
    local function refused(text, second, way)
      local z = core.tensor("f32", { 2, 2 }, { 1, 2, table.unpack(second) })
      assert.error_matches(function() sample(z, 2, { good, way or good }) end, text)
    end
    refused("sample: row 1: the logit of token 1 is NaN", { 0, 0 / 0 })
    refused("sample: row 1: the logit of token 0 is Inf", { inf, 0 })
    refused("sample: row 1: the logits of all tokens are %-Inf", { -inf, -inf })
    refused("row 1: temperature is %-1", { 0, 0 }, { -1, -1, 1, 0, 0, 0, 0 })
    refused("row 1: top_p 0, top_k 0", { 0, 0 }, { -1, 1, 0, 0, 0, 0, 0 })
    refused("row 1: top_p 1, top_k %-3", { 0, 0 }, { -1, 1, 1, -3, 0, 0, 0 })
    refused("row 1: next is 2; there are 2 tokens", { 0, 0 }, { 2, 1, 1, 0, 0, 0, 0 })
    local z = core.tensor("f32", { 2, 2 }, { 1, -inf, 0 / 0, 0 })
    assert.same({ 0, 1 }, sample(z, 2, { { -1, 1, 1, 0, 5, 0, 0 }, { 1, 0, 1, 0, 0, 0, 0 } }))
  end)
end)
