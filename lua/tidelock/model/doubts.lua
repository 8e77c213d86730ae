--- doubts.lua - what a recipe may say and hardly means: told before the first step, refused never.
---
---     doubts.of(spec, graph, fields, recipe)
---       -> { "x.lua:9: weights[1]: without effect: ..", .. }
---
---     a weight rule whose every field is set again by later ones
---     a gain that starts near 0: its branch is silent, and so is its gradient
---     a schedule that is longer than the run: its end is never reached
---
--- What cannot be meant is an error elsewhere: a weight that nothing uses or no loss reaches, a
--- pattern that matches nothing, a file that is read twice.
local draft = require "tidelock.language.draft"
local names = require "tidelock.language.names"
local weights = require "tidelock.model.weights"

local doubts = {}

local near_zero = 0.1 -- of gains that start at 1

--- Adds rules of which nothing is left.
local function add_rules(spec, graph, fields, add)
  local list = {}
  for i, weight in ipairs(graph.weights) do list[i] = weight.name end
  for i, rule in ipairs(spec.weights or {}) do
    local left = false
    for _, pattern in ipairs(rule) do
      for _, name in ipairs(names.select(pattern, list)) do
        for _, field in ipairs(weights.fields) do
          left = left or rule[field] ~= nil and fields[name].by[field] == "rule " .. i
        end
      end
    end
    local path = ("weights[%d]"):format(i)
    if not left then
      add(spec.site(path), path, "without effect: later rules set all that it says; leave it out, "
        .. "or put it behind them")
    end
  end
end

--- The largest absolute value that an initial number has, or is likely to have.
local function reach(init)
  if init.kind == "constant" then return math.abs(init.first) end
  if init.kind == "uniform" then return math.max(math.abs(init.first), math.abs(init.second)) end
  if init.kind == "normal" then return math.abs(init.first) + 2 * init.second end
  return math.huge -- a function says what it means
end

local function add_gains(spec, graph, fields, add)
  for _, weight in ipairs(graph.weights) do
    local own = fields[weight.name]
    local rule = own.by.init and own.by.init:match "^rule (%d+)$"
    if weight.kind == "gain" and not own.from and not own.stored and reach(own.init) < near_zero
      and (rule or own.by.init == "given") then
      local path = rule and ("weights[%s]"):format(rule) or weight.name
      add(rule and spec.site(path) or weight.site, path, ("%s is a gain and starts at %.3g or "
        .. "less: what it scales is nearly silent; gains start at 1"):format(weight.name,
        reach(own.init)))
    end
  end
end

local function add_schedule(spec, recipe, add)
  local train, lr = spec.train, spec.train.lr
  local function longer(path, count)
    if count and count > train.steps then
      add(spec.site(path), path, ("%d is more than the run's %d steps: its end is never "
        .. "reached"):format(count, train.steps))
    end
  end
  longer(draft.written(recipe, "train.warmup") and "train.warmup" or "train.lr.warmup", lr.warmup)
  longer("train.lr.steps", lr.steps)
  longer("train.lr.decay", lr.decay)
end

---@param spec table
---@param graph tidelock.Graph
---@param fields table<string, tidelock.WeightFields>
---@param recipe tidelock.Recipe # what was written
---@return string[]
function doubts.of(spec, graph, fields, recipe)
  local list, seen = {}, {}
  local function add(site, path, text)
    local line = ("%s: %s: %s"):format(site or spec.file or "recipe", path, text)
    if not seen[path] then list[#list + 1] = line end -- a rule that reaches many weights: once
    seen[path] = true
  end
  add_rules(spec, graph, fields, add)
  add_gains(spec, graph, fields, add)
  add_schedule(spec, recipe, add)
  return list
end

return doubts
