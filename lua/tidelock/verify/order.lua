--- verify/order.lua - the samples of a step in another order, the order inside each leaf kept.
---
---     as they come   [ s0 s1 | s2 s3 | s4 s5 | s6 s7 ]     leaves of dp    ((l0+l1)+(l2+l3))
---     neighbours     [ s2 s3 | s0 s1 | s6 s7 | s4 s5 ]                     ((l1+l0)+(l3+l2))
---     halves         [ s4 s5 | s6 s7 | s0 s1 | s2 s3 ]                     ((l2+l3)+(l0+l1))
---     mirrored       [ s6 s7 | s4 s5 | s2 s3 | s0 s1 ]                     both
---
--- A tree adds two numbers at a time, which has no order: leaves that change places with their
--- partners may not change a bit, though other micro-batches, buffers and ranks take them. Any
--- other exchange of leaves, or of samples inside one, is another sum by contract.
---
--- Dropout draws by a sample's place in the batch, and a balance of experts sums over all samples
--- in order: such models have no such rows.
local data = require "tidelock.language.data"
local sample = require "tidelock.verify.sample"

local order = {}

--- Place i of `leaves`, from 0 -> the leaf that stands there.
order.kinds = {
  { name = "as they come", place = function(i) return i end },
  { name = "neighbours", place = function(i) return i ~ 1 end },
  { name = "halves", place = function(i, leaves) return i ~ leaves // 2 end },
  { name = "mirrored", place = function(i, leaves) return i ~ (leaves - 1) end },
}

--- All samples of `steps` steps, the leaves of each in the order of a kind.
local function given(one, steps)
  local list, per = {}, one.samples // one.leaves
  for step = 0, steps - 1 do
    for i = 0, one.leaves - 1 do
      local leaf = one.kind.place(i, one.leaves)
      for s = leaf * per, (leaf + 1) * per - 1 do
        list[#list + 1] = sample.read(one.source, step, s, one.samples)
      end
    end
  end
  return data.given(list)
end

--- The recipe of a cell.
---@param recipe tidelock.Recipe
---@param one table # source, samples, leaves, kind
---@param steps integer
function order.recipe(recipe, one, steps)
  return recipe:with { data = given(one, steps) }:override { "eval=nil" }
end

--- What decides bits by the place of a sample; nil: nothing does.
local function placed(plan)
  for _, node in ipairs(plan.graph and plan.graph.nodes or {}) do
    if node.op == "dropout" then return "dropout draws by a sample's place in the batch" end
  end
  return sample.balanced(plan) and "the balance of experts sums over all samples in order" or nil
end

--- The row of a run's recipe, in a list; and what has to be said where there is none.
---@param run tidelock.Run
---@return table[] rows
---@return string? note
function order.rows(run)
  local spec = run.plan.spec
  local leaves, samples = spec.policy.leaves.dp, spec.batch.samples
  if leaves < 2 or leaves & (leaves - 1) ~= 0 or samples % leaves ~= 0 then return {} end
  local why = placed(run.plan)
  if why then return {}, "leaves in another order: not compared: " .. why end
  local row = { family = "order" }
  local names = {}
  local function add(kind, name, words)
    words.order = { source = run.sources[1], samples = samples, leaves = leaves, kind = kind }
    row[#row + 1], names[#names + 1] = words, name
  end
  for i, kind in ipairs(order.kinds) do
    if i ~= 3 or leaves > 2 then add(kind, kind.name, {}) end
  end
  if spec.layout.dp == 1 then add(order.kinds[4], "also dp 2", { "layout.dp=2" }) end
  row.label = "leaves " .. table.concat(names, ", ")
  return { row }
end

return order
