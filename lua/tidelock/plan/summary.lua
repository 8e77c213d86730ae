--- summary.lua - a plan in numbers, for headers, logs and tables; and the key of the run.
local canonical = require "tidelock.model.canonical"
local key = require "tidelock.language.key"
local schedule_check = require "tidelock.plan.schedule_check"
local schedules = require "tidelock.plan.schedules"

local summary = {}

--- Heads of the first attention of the model; nil when there is none.
local function heads_of(graph)
  for _, node in ipairs(graph.nodes) do
    if node.op == "attention" then return node.inputs[1].dims[2].size,
      node.inputs[2].dims[2].size end
  end
end

--- Most leaf buffers that a weight's gradient has on a rank.
local function leaf_buffers(plan)
  local most = 0
  for _, sum in pairs(plan.ranks[1].sums) do
    local count = 0
    for _ in pairs(sum.stack) do count = count + 1 end
    most = math.max(most, count)
  end
  return most
end

--- Bytes of the arenas of all ranks. A place is that of a pipeline stage and, with experts, of a
--- position in the group that exchanges rows.
local function arena_bytes(plan)
  local layout = plan.spec.layout
  local total, alike = 0, layout.tp * layout.dp // layout.ep
  for _, place in ipairs(plan.places) do total = total + place.bytes * alike end
  return total
end

--- Share of the pipeline's time that is idle in the plan's own order, if every pass cost the same.
---@param plan table # after the stage pipeline
---@return number # 0 without a pipeline
function summary.bubble(plan)
  local layout = plan.spec.layout
  if layout.pp == 1 then return 0 end
  return assert(schedule_check.run(plan.orders, {
    pp = layout.pp, micros = plan.micros, virtual_stages = schedules.virtual_stages(layout),
  })).bubble_fraction
end

---@param plan table # after the stage place
---@return table # { weights, tensors, layers, dim, vocab, heads, kv_heads, ranks, planned_bytes,
---  rank_bytes, memory_kinds, leaf_buffers, stages, bubble }
function summary.of(plan)
  local model, layout = plan.spec.model, plan.spec.layout
  local count = 0
  for _, weight in ipairs(plan.graph.weights) do count = count + weight.rows * weight.cols end
  local heads, kv_heads = heads_of(plan.graph)
  local fullest = 1
  for i, place in ipairs(plan.places) do
    if place.bytes > plan.places[fullest].bytes then fullest = i end
  end
  return {
    weights = count, tensors = #plan.graph.weights, layers = model.layers, dim = model.dim,
    vocab = model.vocab,
    heads = heads, kv_heads = kv_heads, ranks = layout.tp * layout.dp * layout.pp,
    planned_bytes = arena_bytes(plan),
    rank_bytes = plan.places[fullest].bytes, memory_kinds = plan.places[fullest].kinds,
    leaf_buffers = leaf_buffers(plan),
    stages = plan.stages, bubble = summary.bubble(plan),
  }
end

--- key, recipe_hash and the hashes of what the key covers. `data_text`: the
--- fingerprint of the data; nil: its description.
function summary.keys(plan, data_text)
  return key.all(plan.spec, canonical.model(plan.graph, plan.fields), data_text)
end

return summary
