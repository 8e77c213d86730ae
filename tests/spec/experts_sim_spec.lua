-- The simulator of a layer of experts: times that follow by hand, and what the ways are for.
local sim = require "tidelock.forecast.experts_sim"

local machine = { ranks = 4, island = 2, matrix = 1, link = 100, network = 10, latency = 0 }

local function layer(rows, way, waves, more)
  local list = { rows = rows, dim = 1000, hidden = 500, waves = waves or 1, way = way }
  for key, value in pairs(more or {}) do list[key] = value end
  return sim.layer(machine, list)
end

--- rows[source][target], zero but for what is given.
local function only(source, target, count)
  local rows = {}
  for s = 1, 4 do
    rows[s] = {}
    for t = 1, 4 do rows[s][t] = s == source and t == target and count or 0 end
  end
  return rows
end

describe("the simulator of a layer of experts", function()
  it("adds up messages and products of one pair of ranks", function()
    -- 1,000 rows: 2 MB, 20 us inside an island, 200 us between; 3 GFLOP, 3 ms
    assert.near(0.00304, layer(only(1, 2, 1000), "flat").seconds, 1e-12)
    assert.near(0.0034, layer(only(1, 3, 1000), "flat").seconds, 1e-12)
    assert.near(0.003, layer(only(1, 1, 1000), "flat").seconds, 1e-12)
    -- through a relay: 20 us more each way; in a ring three hops forth and one, or three, back
    assert.near(0.00344, layer(only(1, 4, 1000), "hierarchical").seconds, 1e-12)
  end)

  it("overlaps waves", function()
    local rows = only(1, 3, 1000)
    local one, four = layer(rows, "flat", 1), layer(rows, "flat", 4)
    assert.near(0.0034, one.seconds, 1e-12)
    assert.near(0.0031, four.seconds, 1e-12) -- the first wave's way, all products, the last one's
    assert.near(1, one.bound / 0.003, 1e-9)
  end)

  it("sends the same bytes over the network, flat or by islands, and more in a ring", function()
    local rows = sim.rows(4, 100, 2, "uniform")
    local flat, islands = layer(rows, "flat"), layer(rows, "hierarchical")
    assert.near(flat.network, islands.network, 1e-6)
    assert.is_true(layer(rows, "ring").network > flat.network)
  end)

  it("spreads a load as it says", function()
    for load, share in pairs { uniform = 0.25, skewed = 0.7, one = 1 } do
      local rows, total = sim.rows(4, 100, 2, load), 0
      for t = 1, 4 do total = total + rows[3][t] end
      assert.near(200, total, 1e-9)
      assert.near(share * 200, rows[3][1], 1e-9)
    end
  end)
end)
