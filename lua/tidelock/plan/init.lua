--- The planner: stages in one list, each a function of what earlier ones found.
--
--     recipe -> check -> expand -> shard -> differentiate -> pipeline -> place -> emit
--
-- A stage has run(plan), which returns its own new fields and changes none. No stage looks ahead.
local stages = { "check", "expand", "shard", "differentiate", "pipeline", "place", "emit" }

---@class tidelock.PlanOptions
---@field world? integer # ranks that are there; nil: as many threads as the layout has
---@field keep? string[] # patterns of values that stay readable after a step
---@field links? table # speeds of links, of cluster.read: "auto" of layout.all_to_all hangs on them
---@field serving? boolean # rows of requests come, not samples: experts are whole on every rank

---@param recipe tidelock.Recipe
---@param last? string # stop after this stage
---@param options? tidelock.PlanOptions
---@return table plan # everything that the stages found
return function(recipe, last, options)
  options = options or {}
  local plan = { recipe = recipe, world = options.world, keep = options.keep or {},
    serving = options.serving, links = options.links }
  for _, name in ipairs(stages) do
    for field, value in pairs(require("tidelock.plan.stages." .. name).run(plan)) do
      assert(plan[field] == nil, "a stage may not change another's field: " .. field)
      plan[field] = value
    end
    if name == last then break end
  end
  return plan
end
