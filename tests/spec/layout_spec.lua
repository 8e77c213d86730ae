local blocks = require "tidelock.language.blocks"
local fit = require "tidelock.text.fit"
local layout = require "tidelock.plan.layout"

local axes = { "tp", "cp", "dp", "pp" }

--- All orders of a list.
local function permutations(list)
  if #list == 0 then return { {} } end
  local result = {}
  for i = 1, #list do
    local rest = table.move(list, 1, #list, 1, {})
    local first = table.remove(rest, i)
    for _, tail in ipairs(permutations(rest)) do
      table.insert(tail, 1, first)
      result[#result + 1] = tail
    end
  end
  return result
end

local function text_of(groups)
  local words = {}
  for i, group in ipairs(groups) do words[i] = table.concat(group, ",") end
  return table.concat(words, " ")
end

--- Groups found by comparing coordinates: ranks that agree outside of the mask.
local function groups_by_force(section, varies)
  local by_id, groups = {}, {}
  for rank = 0, layout.world(section) - 1 do
    local at, words = layout.coordinates(section, rank), {}
    for i, axis in ipairs(axes) do words[i] = varies[axis] and "*" or at[axis] end
    local id = table.concat(words, " ")
    if not by_id[id] then
      by_id[id] = {}
      groups[#groups + 1] = by_id[id]
    end
    table.insert(by_id[id], rank)
  end
  return groups
end

describe("the grid of ranks", function()
  it("has the groups that equal coordinates make, for 24 orders and 15 masks", function()
    local cases = 0
    for _, order in ipairs(permutations(axes)) do
      local section = { tp = 2, cp = 3, dp = 4, pp = 5, order = table.concat(order, "-") }
      for bits = 1, 15 do
        local mask, varies = {}, {}
        for i, axis in ipairs(axes) do
          if bits & 1 << (i - 1) ~= 0 then
            mask[#mask + 1], varies[axis] = axis, true
          end
        end
        local expected = text_of(groups_by_force(section, varies))
        assert.equal(expected, text_of(layout.groups(section, mask)), section.order)
        cases = cases + 1
      end
    end
    assert.equal(360, cases)
  end)

  it("gives the leftmost axis neighbouring ranks", function()
    local section = { tp = 2, cp = 2, dp = 2, pp = 2, order = "tp-cp-dp-pp" }
    assert.equal("0,1", table.concat(layout.groups(section, { "tp" })[1], ","))
    assert.equal("0,2", table.concat(layout.groups(section, { "cp" })[1], ","))
    assert.equal("0,4", table.concat(layout.groups(section, { "dp" })[1], ","))
    assert.equal("0,8", table.concat(layout.groups(section, { "pp" })[1], ","))
  end)

  it("turns ranks into coordinates and back", function()
    local section = { tp = 2, cp = 1, dp = 3, pp = 2, order = "dp-pp-tp" }
    for rank = 0, 11 do
      assert.equal(rank, layout.rank(section, layout.coordinates(section, rank)))
    end
  end)

  it("drops ep from the order and adds axes of size 1 that are missing", function()
    local size = { tp = 2, cp = 1, dp = 2, pp = 1 }
    assert.same({ "tp", "dp", "cp", "pp" }, layout.parse_order("tp-ep-dp", size))
    assert.is_nil(layout.parse_order("tp", size))
  end)
end)

describe("numbers that fit", function()
  it("are the divisors, ascending", function()
    assert.same({ 1, 2, 3, 4, 6, 9, 12, 18, 36 }, fit.divisors(36))
    assert.same({ 1 }, fit.divisors(1))
  end)

  it("are the nearest by ratio, of two as near the larger", function()
    local function any() return true end
    assert.equal(4, fit.nearest(3, { 1, 2, 4, 8, 16 }, any))
    assert.equal(8, fit.nearest(4, { 2, 8 }, any))
    assert.equal(8, fit.nearest(100, { 1, 2, 4, 8 }, any))
    assert.is_nil(fit.nearest(3, { 1, 2 }, function() return false end))
  end)
end)

describe("blocks of attention", function()
  it("hold 128 keys up to head_dim 128 and 64 above, unless set", function()
    assert.equal(128, blocks.attention_kv(nil, 64))
    assert.equal(128, blocks.attention_kv(nil, 128))
    assert.equal(64, blocks.attention_kv(nil, 192))
    assert.equal(32, blocks.attention_kv(32, 192))
  end)
end)
