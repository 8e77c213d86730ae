-- experts.lua - simulates a layer of experts on a cluster; its table: docs/performance/experts.md.
local cluster = require "tidelock.forecast.cluster"
local sim = require "tidelock.forecast.experts_sim"

local facts = cluster.read(arg and arg[1] or "recipes/clusters/h200x16.yaml")
local machine = { ranks = facts.ranks, island = facts.island or facts.ranks,
  matrix = facts.matrix.bf16, link = facts.link, network = facts.network or facts.link,
  latency = facts.latency }
print(("%s: %d ranks in islands of %d, link %g GB/s, network %g GB/s, %g us, %g TFLOP/s"):format(
  facts.name, machine.ranks, machine.island, machine.link, machine.network, machine.latency,
  machine.matrix))
print "| load | batch | way | 1 wave: us | over bound | 4 waves: us | over bound | variance |"
print "|---|---|---|---|---|---|---|---|"
local function layer(load, batch, waves, way)
  return sim.layer(machine, {
    rows = sim.rows(machine.ranks, batch * 512 / machine.ranks, 8, load), dim = 4096,
    hidden = 1024, waves = waves, way = way,
  })
end

for _, load in ipairs { "uniform", "skewed", "one" } do
  for _, batch in ipairs { 1, 8, 64, 512 } do
    for _, way in ipairs { "ring", "flat", "hierarchical" } do
      local cells = {}
      for i, waves in ipairs { 1, 4 } do cells[i] = layer(load, batch, waves, way) end
      print(("| %s | %d | %s | %.0f | %.2f | %.0f | %.2f | %.4f |"):format(load, batch, way,
        cells[1].seconds * 1e6, cells[1].ratio, cells[2].seconds * 1e6, cells[2].ratio,
        cells[2].variance))
    end
  end
end

print "\nby islands, over bound with waves:"
print "| load | batch | 1 | 2 | 4 | 8 |\n|---|---|---|---|---|---|"
for _, load in ipairs { "uniform", "skewed", "one" } do
  for _, batch in ipairs { 1, 8, 64, 512 } do
    local cells = {}
    for i, waves in ipairs { 1, 2, 4, 8 } do
      cells[i] = ("%.3f"):format(layer(load, batch, waves, "hierarchical").ratio)
    end
    print(("| %s | %d | %s |"):format(load, batch, table.concat(cells, " | ")))
  end
end
