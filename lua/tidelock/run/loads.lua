--- loads.lua - what a step's routing looked like: rows of every expert, exact and of all ranks.
---
---     { name = "layers.0.moe", load = { 61, 70, .. }, entropy = 2.73, entropy_max = 2.77,
---       max_over_mean = 1.31, unused = 0, balance_loss = 0.0102 }
---
--- Beside them stands what was exchanged: { rank = 0, peer = 81920, network = 0, host = 0 } ..
---
--- entropy is that of the shares of rows, in nats; even load has log(experts). balance_loss is
--- weighted, and there for the balance "loss" alone.
local core = require "tidelock.core"
local experts = require "tidelock.plan.experts"

local loads = { paths = { "peer", "network", "host" } }

--- The numbers of one load.
function loads.of(rows)
  local total, most, unused, entropy = 0, 0, 0, 0.0
  for _, n in ipairs(rows) do
    total, most = total + n, math.max(most, n)
    unused = unused + (n == 0 and 1 or 0)
  end
  for _, n in ipairs(rows) do
    if n > 0 then entropy = entropy - n / total * core.math.log(n / total) end
  end
  return {
    load = rows, entropy = entropy, entropy_max = core.math.log(#rows), unused = unused,
    max_over_mean = total > 0 and most * #rows / total or 0,
  }
end

--- The tensor of a name on the first rank of each pipeline stage that has it.
local function read(run, name)
  local list, seen = {}, {}
  for index, rank in ipairs(run.table) do
    local at = rank.coordinates
    local v = run.plan.ranks[experts.plan_index(run.spec.layout, at)].persistent[name]
    if v and v.tensor and not seen[at.pp] then
      seen[at.pp] = true
      local t <close> = run.ranks:read(index - 1, v.tensor)
      list[#list + 1] = t:flat()
    end
  end
  return list
end

--- Loads of the last step, layer by layer; nil for a model without experts.
function loads.read(run)
  local result, seen = {}, {}
  for _, node in ipairs(run.plan.graph.nodes) do
    if node.op == "moe" and not seen[node.path] then
      seen[node.path] = true
      local rows = {}
      for _, part in ipairs(read(run, "load " .. node.path)) do -- a layer may be used on two stages
        for e, n in ipairs(part) do rows[e] = (rows[e] or 0) + n end
      end
      local one = loads.of(rows)
      one.name = node.path
      local balance = read(run, "balance " .. node.path)[1]
      one.balance_loss = balance and balance[1]
      result[#result + 1] = one
    end
  end
  return #result > 0 and result or nil
end

--- Bytes of experts' rows that each rank of this process has read from others, by path; nil where
--- there are none. Slabs between GPUs of several processes count as long as they travel.
---@param before? table # what this gave before: the difference is returned
---@return { rank: integer, peer: integer, network: integer, host: integer }[]?
function loads.exchanged(run, before)
  if run.spec.layout.ep == 1 then return nil end
  local list = {}
  for index = 1, #run.table do
    local _, _, paths = run.ranks:traffic(index - 1)
    if paths then
      paths.rank = index - 1
      list[#list + 1] = paths
    end
  end
  for i, one in ipairs(before and list or {}) do
    for _, path in ipairs(loads.paths) do one[path] = one[path] - before[i][path] end
  end
  return #list > 0 and list or nil
end

--- The worst of all layers, for the screen: "experts  load 1.42 of mean, entropy 97%, 0 unused".
function loads.text(list)
  local most, entropy, unused = 0, 1, 0
  for _, one in ipairs(list) do
    most, unused = math.max(most, one.max_over_mean), unused + one.unused
    if one.entropy_max > 0 then entropy = math.min(entropy, one.entropy / one.entropy_max) end
  end
  local text = "        experts: largest load %.2f of the mean, entropy %.1f%% of even, %d unused"
  return text:format(most, 100 * entropy, unused)
end

return loads
