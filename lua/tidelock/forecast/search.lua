--- `./tl plan RECIPE --cluster FILE --search [--ranks N]`: every layout of N ranks, estimated and
--- ranked; no device, no plan of any of them.
---
---     candidates    tp x dp x pp = N, ep, micro-batch, schedule
---          |  rules.lua                      -> refused: why, and how many
---          |  estimate.lua: memory           -> does not fit: how many
---          v  estimate.lua: time             -> the best ten, with what holds each back
---
--- A policy with fewer leaves than a layout has ranks is no reason to refuse it: the table says
--- which leaves it needs, since that is another key.
local core = require "tidelock.core"
local draft = require "tidelock.language.draft"
local estimate = require "tidelock.forecast.estimate"
local fit = require "tidelock.text.fit"
local flops = require "tidelock.forecast.flops"
local layer_costs = require "tidelock.forecast.layer_costs"
local requests = require "tidelock.plan.requests"
local rules = require "tidelock.plan.rules"
local screen = require "tidelock.text.screen"
local search_table = require "tidelock.forecast.search_table"

local search = {}

search.shown = 10
local ranks_max = 16384

--- The layout section of a candidate.
local function layout_of(spec, c)
  local layout = {}
  for name, value in pairs(spec.layout) do layout[name] = value end
  layout.tp, layout.dp, layout.pp, layout.ep, layout.cp = c.tp, c.dp, c.pp, c.ep, 1
  layout.schedule, layout.virtual_stages = c.schedule, c.virtual
  layout.stages, layout.experts, layout.island = nil, nil, nil
  if layout.all_to_all == "hierarchical" then layout.all_to_all = "auto" end
  return layout
end

--- Leaves that the layout needs: those of the policy, or more.
local function leaves_of(spec, c)
  local leaves = {}
  for name, value in pairs(spec.policy.leaves) do leaves[name] = value end
  for _, axis in ipairs { "tp", "dp" } do
    local own = spec.policy.name == "batch" and c[axis] or leaves[axis]
    leaves[axis] = own % c[axis] == 0 and own or math.max(own, c[axis])
  end
  return leaves
end

--- The first rule that a candidate breaks, in words without numbers of its own; nil when none.
local function refusal(plan, c, leaves)
  local spec = plan.spec
  local first
  local policy = {}
  for name, value in pairs(spec.policy) do policy[name] = value end
  policy.leaves = leaves
  rules.check({
    layout = layout_of(spec, c), policy = policy, model = plan.widths, blocks = spec.blocks,
    batch = { samples = spec.batch.samples, micro = c.micro, length = spec.batch.length },
    site = function() return "the recipe" end,
  }, function(_, format, ...)
    first = first or format:format(...)
  end, function() end)
  return first and first:match "^[^;(]*[^;( ]"
end

--- Adds a reason, counted.
local function count(list, text)
  list[text] = (list[text] or 0) + 1
  if list[text] == 1 then list[#list + 1] = text end
end

--- Micro-batch sizes worth looking at: powers of two that divide the samples of a rank.
local function micros_of(samples)
  local list, micro = {}, 1
  while micro <= samples and micro <= 64 do
    if samples % micro == 0 then list[#list + 1] = micro end
    micro = 2 * micro
  end
  return list
end

local function eps_of(spec, c)
  if #spec.experts == 0 then return { 1 } end
  local list = {}
  for _, ep in ipairs(fit.divisors(c.tp * c.dp)) do
    if ep % c.tp == 0 then list[#list + 1] = ep end
  end
  return list
end

--- Waves of the recipe where they cut the experts of a rank, else fewer.
local function waves_of(spec, ep)
  local waves = spec.blocks.moe.waves
  for _, one in ipairs(spec.experts) do
    while waves > 1 and one.experts // ep % waves ~= 0 do waves = waves // 2 end
  end
  return waves
end

--- Whether the backward pass finds the rows of the forward pass.
function search.keeps(spec, waves)
  local keep = spec.blocks.moe.keep
  if keep == nil then return waves == 1 end
  return keep
end

local schedules = { { "1f1b", 1 }, { "zb-h1", 1 }, { "interleaved", 2 } }

--- All candidates of a layout: ep, micro-batch and schedule vary. each(c).
local function variants(spec, base, each)
  local samples = spec.batch.samples // base.dp
  for _, ep in ipairs(eps_of(spec, base)) do
    local waves = waves_of(spec, ep)
    for _, micro in ipairs(micros_of(samples)) do
      for i = 1, base.pp > 1 and #schedules or 1 do
        each { tp = base.tp, dp = base.dp, pp = base.pp, ep = ep, micro = micro,
          micros = samples // micro, schedule = schedules[i][1], virtual = schedules[i][2],
          waves = waves, keep = search.keeps(spec, waves) }
      end
    end
  end
end

--- The best candidate of each (tp, dp, pp, ep), best first; and what was left out.
---@param plan table # after the stage expand
---@param facts table # of cluster.read
---@param world integer
---@return table[] found, table refused # refused: texts, and by text how many; fields full, all
function search.of(plan, facts, world)
  local spec, layers = plan.spec, layer_costs.of(plan)
  local work = flops.of_step(plan.graph, spec.batch)
  local refused, best, found = { full = 0, all = 0 }, {}, {}
  local room = facts.memory * 2 ^ 30
  local function try(c)
    local leaves = leaves_of(spec, c)
    refused.all = refused.all + 1
    local why = refusal(plan, c, leaves)
    if why then return count(refused, why) end
    c.leaves, c.leaves_dp = leaves, leaves.dp
    c.guess = estimate.of(layers, c, spec, facts, work)
    if c.guess.bytes > room then
      refused.full = refused.full + 1
      return
    end
    local id = ("%d %d %d %d"):format(c.tp, c.dp, c.pp, c.ep)
    if not best[id] then found[#found + 1] = id end
    if not best[id] or c.guess.step_s < best[id].guess.step_s then best[id] = c end
  end
  for _, tp in ipairs(fit.divisors(world)) do
    for _, dp in ipairs(fit.divisors(world // tp)) do
      local base = { tp = tp, dp = dp, pp = world // (tp * dp) }
      if spec.batch.samples % dp ~= 0 then
        count(refused, ("dp %d does not divide batch.samples %d"):format(dp, spec.batch.samples))
      elseif base.pp > spec.model.layers then
        count(refused, ("pp %d: the model has %d layers"):format(base.pp, spec.model.layers))
      else
        variants(spec, base, try)
      end
    end
  end
  for i, id in ipairs(found) do found[i] = best[id] end
  table.sort(found, function(a, b)
    if a.guess.step_s ~= b.guess.step_s then return a.guess.step_s < b.guess.step_s end
    if a.tp ~= b.tp then return a.tp < b.tp end
    if a.dp ~= b.dp then return a.dp < b.dp end
    return a.ep < b.ep
  end)
  return found, refused
end

--- The leaves that a candidate needs and the policy has not.
local function leaf_words(c, spec)
  local words = {}
  for _, axis in ipairs { "tp", "dp" } do
    if c.leaves[axis] ~= spec.policy.leaves[axis] and spec.policy.name ~= "batch" then
      words[#words + 1] = ("policy.leaves.%s=%d"):format(axis, c.leaves[axis])
    end
  end
  return words
end

--- Fields of the recipe's own layout that belong to it alone, with what a candidate has.
local own = {
  { "schedule", "1f1b" }, { "virtual_stages", 1 }, { "stages", "nil" }, { "experts", "nil" },
  { "island", "nil" }, { "all_to_all", "auto" },
}

--- The words that give the candidate to any command.
---@param written table<string, any> # fields of the recipe's own layout, by name
local function overrides_of(c, spec, written)
  local words = {}
  for _, axis in ipairs { "tp", "dp", "pp", "ep" } do
    if axis ~= "ep" or #spec.experts > 0 then
      words[#words + 1] = ("layout.%s=%d"):format(axis, c[axis])
    end
  end
  words[#words + 1] = "batch.micro=" .. c.micro
  local has = { schedule = c.schedule, virtual_stages = c.virtual }
  for _, field in ipairs(own) do
    local name, usual = field[1], field[2]
    local value = has[name] or usual
    if written[name] ~= nil and written[name] ~= value or value ~= usual then
      words[#words + 1] = ("layout.%s=%s"):format(name, value)
    end
  end
  table.move(leaf_words(c, spec), 1, 2, #words + 1, words)
  return table.concat(words, " ")
end

--- The text of a search.
---@param file string # of the recipe
---@param seconds number # that it took
---@param written? table<string, any> # fields of the recipe's own layout, by name
---@param width? integer # of the terminal
function search.text(found, refused, spec, facts, world, file, seconds, written, width)
  local lines = { ("%s   %s like those of %s; %.1f s, nothing was planned"):format(
    file:match "[^/]+$", screen.plural(world, "rank"), facts.name, seconds),
    ("  %s candidates, %s fit"):format(screen.grouped(refused.all),
      screen.plural(#found, "layout")) }
  if #found > 0 then
    local shown, leaves = table.move(found, 1, math.min(search.shown, #found), 1, {}), {}
    for i, c in ipairs(shown) do
      leaves[i] = table.concat(leaf_words(c, spec), " "):gsub("policy%.leaves%.(%l+)=", "%1 ")
    end
    for _, line in ipairs(search_table.lines(shown, leaves, width)) do lines[#lines + 1] = line end
    lines[#lines + 1] = "  best   " .. overrides_of(found[1], spec, written or {})
  end
  if refused.full > 0 then
    lines[#lines + 1] = ("  %s %s more than %g GiB a rank"):format(screen.plural(refused.full,
      "candidate"), refused.full == 1 and "needs" or "need", facts.memory)
  end
  table.sort(refused, function(a, b)
    if refused[a] ~= refused[b] then return refused[a] > refused[b] end
    return a < b
  end)
  for i = 1, math.min(#found > 0 and 3 or 8, #refused) do
    lines[#lines + 1] = ("  %d refused: %s"):format(refused[refused[i]], refused[i])
  end
  return table.concat(lines, "\n")
end

--- The command.
---@param request tidelock.Request
---@param facts table?
---@return integer # exit status: 1 when no layout fits
function search.command(request, facts)
  local options = request.options
  local function usage(text) error({ status = 2, message = "tidelock: plan: " .. text }, 0) end
  for _, name in ipairs { "memory", "program", "rank" } do
    if options[name] then
      usage(("--%s is of one layout, and --search goes through all; the command without --search "
        .. "and with the layout that it found has it"):format(name))
    end
  end
  if not facts then usage "--search goes with --cluster FILE, the machine to search for" end
  local world = options.ranks or facts.ranks
  if world > ranks_max then usage(("--ranks %d: at most %d"):format(world, ranks_max)) end
  local begin = core.files.seconds()
  local recipe, written = requests.of(request), {}
  local words = { "layout.tp=1", "layout.dp=1", "layout.pp=1", "layout.ep=nil" }
  for _, field in ipairs(own) do
    local name, usual = field[1], field[2]
    written[name] = draft.written(recipe, "layout." .. name)
    if name == "all_to_all" and written[name] ~= "hierarchical" then -- else islands are not needed
      written[name] = nil
    elseif written[name] ~= nil then
      words[#words + 1] = ("layout.%s=%s"):format(name, usual)
    end
  end
  recipe = recipe:override(words)
  local plan = requests.plan(recipe, "expand", facts)
  local found, refused = search.of(plan, facts, world)
  io.stdout:write(search.text(found, refused, plan.spec, facts, world, request.recipe,
    core.files.seconds() - begin, written,
    core.files.isatty(1) and core.files.columns() or nil), "\n")
  return #found > 0 and 0 or 1
end

return search
