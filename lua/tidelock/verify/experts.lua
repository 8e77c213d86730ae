--- verify/experts.lua - rows of `./tl verify` for models with experts.
---
--- Every layout of ep 1 to 8, tp 1 and 2, dp 1 to 4 and pp 1 and 2 is a cell. Micro-batches, waves
--- and the way that rows take go round from cell to cell, so that every pair of their values
--- occurs; `--all` runs the whole product.
local verify = {}

local ways = { { "flat" }, { "hierarchical", 2 }, { "ring" }, { "hierarchical", 4 } }

local function fits(spec, ep, tp, dp)
  local leaves = spec.policy.leaves
  return ep % tp == 0 and tp * dp % ep == 0 and leaves.tp % tp == 0 and leaves.dp % dp == 0
    and spec.batch.samples % dp == 0
end

--- Waves of `list` that cut the experts of a rank evenly, in every mixture.
local function waves_of(spec, ep)
  local list = {}
  for _, waves in ipairs { 1, 2, 4 } do
    local good = true
    for _, one in ipairs(spec.experts) do
      good = good and one.experts % ep == 0 and one.experts // ep % waves == 0
    end
    if good then list[#list + 1] = waves end
  end
  return list
end

local function micros_of(spec, dp)
  local list = {}
  for _, micro in ipairs { 1, 2, 4 } do
    if spec.batch.samples // dp % micro == 0 then list[#list + 1] = micro end
  end
  return list
end

--- Ways that suit a group of ep ranks.
local function ways_of(ep)
  local list = {}
  for _, way in ipairs(ways) do
    if not way[2] or ep % way[2] == 0 and ep > 1 then list[#list + 1] = way end
  end
  return ep > 1 and list or { ways[1] }
end

local function cell(axes, micro, waves, way)
  local words = { "layout.schedule=1f1b", "layout.all_to_all=" .. way[1] }
  for _, axis in ipairs { "ep", "tp", "dp", "pp" } do
    words[#words + 1] = ("layout.%s=%d"):format(axis, axes[axis])
  end
  words[#words + 1] = "batch.micro=" .. micro
  words[#words + 1] = "blocks.moe.waves=" .. waves
  if way[2] then words[#words + 1] = "layout.island=" .. way[2] end
  return words
end

--- Adds the cells of one layout: one of them, the next in turn, or all.
local function add_cells(spec, row, axes, turn, all)
  local micros, waves, list = micros_of(spec, axes.dp), waves_of(spec, axes.ep), ways_of(axes.ep)
  if #micros == 0 or #waves == 0 then return end
  if not all then
    row[#row + 1] = cell(axes, micros[turn % #micros + 1], waves[turn // 2 % #waves + 1],
      list[turn // 3 % #list + 1])
    return
  end
  for _, micro in ipairs(micros) do
    for _, count in ipairs(waves) do
      for _, way in ipairs(list) do row[#row + 1] = cell(axes, micro, count, way) end
    end
  end
end

--- Rows of the matrix; none for a model without experts.
---@param spec table # plan.spec
---@param all boolean? # the whole product
function verify.rows(spec, all)
  local rows, turn = {}, 0
  if #spec.experts == 0 then return rows end
  for _, ep in ipairs { 1, 2, 4, 8 } do
    for _, tp in ipairs { 1, 2 } do
      local row = { label = ("ep %d tp %d, dp 1 to 4, pp 1, 2"):format(ep, tp) }
      for _, dp in ipairs { 1, 2, 4 } do
        for _, pp in ipairs { 1, spec.model.layers > 1 and 2 or nil } do
          if fits(spec, ep, tp, dp) then
            add_cells(spec, row, { ep = ep, tp = tp, dp = dp, pp = pp }, turn, all)
            turn = turn + 1
          end
        end
      end
      rows[#rows + 1] = row
    end
  end
  return rows
end

return verify
