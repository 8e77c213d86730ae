--- check: from the recipe as written to plan.spec, with every default filled in.
--
-- All mistakes of the recipe, its modules and its layout are raised together. What is left is
-- right: later stages check nothing that a recipe can say. spec = {
--
--     name, file, dtype, device          strings
--     model     the options of nn.decoder, site, and layer_modules[i], the modules of layer i
--     loss      { name = "cross_entropy", smoothing, z } or the recipe's function
--     weights   the rules as written, checked
--     data      what tl.data.* made;  eval { data, every, samples } or nil
--     batch     { samples, micro, length };  layout { tp, cp, pp, dp, ep, order, .. };  blocks
--     policy    { name, leaves = { tp, dp, cp }, arithmetic, seed }
--     train     { steps, lr, clip, optimizer, save }; rates.at(train.lr, step) is a step's rate
--     log       { every, watch };  notes: sentences about choices that were made
--     experts   a list of { experts, top_k, site }: the mixtures of the model
--     site      function(path) -> "file:line" or "command line"
-- }
-- and `widths`: what rules.lua knows of the model, layers, heads and hidden widths; `way`: why rows
-- of experts go as they do, where speeds of links decide.
local blocks = require "tidelock.language.blocks"
local data = require "tidelock.language.data"
local links = require "tidelock.plan.links"
local policy = require "tidelock.language.policy"
local problems = require "tidelock.text.problems"
local rates = require "tidelock.language.rates"
local rules = require "tidelock.plan.rules"
local schema = require "tidelock.language.schema"
local walk = require "tidelock.model.walk"

local check = {}

local function nothing() end

--- Sections and forms that a recipe may leave out get their defaults.
local function fill(spec)
  for _, name in ipairs { "layout", "blocks", "log" } do
    spec[name] = spec[name] or schema.section(name, {}, name, nothing)
  end
  for _, name in ipairs { "attention", "gemm", "moe" } do
    spec.blocks[name] = spec.blocks[name] or schema.section("blocks." .. name, {}, name, nothing)
  end
  spec.batch, spec.train = spec.batch or {}, spec.train or {}
  spec.policy = spec.policy or schema.form("policy", "layout", "policy", nothing)
  spec.loss = spec.loss or schema.form("loss", "cross_entropy", "loss", nothing)
  spec.train.optimizer = spec.train.optimizer or schema.form(
    "optimizer", "adamw", "train.optimizer", nothing
  )
end

local function check_train(spec, context, report)
  local train = spec.train
  if train.recompute then
    report("train.recompute", "not available in this version; leave it out, or use tp or pp")
  end
  if train.loss_scale then
    report("train.loss_scale",
      "dtype %q reaches as far as f32 and needs no loss scale; leave it out",
      spec.dtype)
  end
  train.recompute, train.loss_scale = nil, nil
  train.lr = rates.resolve(train, context, report)
  train.warmup = nil
end

--- A rule must set something. Rules are handed on as written; their fields were checked.
local function check_weights(spec, raw, report)
  for i, rule in ipairs(spec.weights) do
    local fields = 0
    for key in pairs(type(raw[i]) == "table" and raw[i] or {}) do
      fields = fields + (type(key) == "string" and 1 or 0)
    end
    if fields == 0 and #rule > 0 then
      report(("weights[%d]"):format(i), "this rule names weights and sets nothing; try decay = 0")
    end
    spec.weights[i] = raw[i]
  end
end

--- Everything but the model: sections, forms, policy. Returns the spec.
local function sections(recipe, context, report)
  local spec = schema.section("recipe", recipe.values, "", report)
  fill(spec)
  if spec.loss.name == "function" then spec.loss = spec.loss.call end
  check_weights(spec, recipe.values.weights or {}, report)
  check_train(spec, context, report)
  spec.policy = policy.resolve(spec.policy, spec.layout, spec.dtype, report)
  blocks.check(spec.blocks, report)
  return spec
end

local function refuse_sweep(recipe)
  if #recipe.axes == 0 then return end
  local keys, collected = {}, problems.new()
  for i, axis in ipairs(recipe.axes) do keys[i] = axis.key end
  collected:add(recipe.file, nil,
    ("a sweep of %d points over %s; choose one with --point N"):format(
    #recipe:points(), table.concat(keys, ", ")))
  collected:raise()
end

--- A recipe's micro-batch may be larger than what a layout from elsewhere leaves to a rank: it then
--- takes all that the rank has, since no bit depends on it. One from the command line is meant.
local function fit_micro(spec, site, note)
  local micro, samples, dp = spec.batch.micro, spec.batch.samples, spec.layout.dp
  if not micro or not samples or samples % dp ~= 0 or micro <= samples // dp then return end
  if site "batch.micro" == "command line" then return end
  spec.batch.micro = samples // dp
  note("batch.micro %d (%s) is more than the samples of a rank; it takes all %d, and no bit moves",
    micro, site "batch.micro", spec.batch.micro)
end

--- Why rows of experts go as they do, where speeds of links decide; nil where they do not.
local function choose_way(layout, speeds)
  if not speeds or layout.all_to_all ~= "auto" or layout.ep == 1 then return nil end
  local why
  layout.all_to_all, layout.island, why = links.choose(layout, speeds)
  return why
end

--- plan.recipe (and plan.world, the number of ranks when it is given) -> { spec }.
function check.run(plan)
  local recipe, notes = plan.recipe, {}
  refuse_sweep(recipe)
  local collected = recipe.problems:copy()
  local context = { problems = collected }
  local function site(path) return recipe:site(path) end
  local function report(path, format, ...)
    local text = select("#", ...) > 0 and format:format(...) or format
    collected:add(site(path), path ~= "" and path or nil, text)
  end
  local function note(format, ...) notes[#notes + 1] = format:format(...) end

  local spec = sections(recipe, context, report)
  local model, facts = walk.model(spec.model, context, report, site)
  -- with experts ep folds over tp at least, so that an owner sees whole samples
  local folds = #facts.moes > 0 and not plan.serving
  spec.layout.ep = spec.layout.ep or folds and spec.layout.tp or 1
  fit_micro(spec, site, note)
  rules.check({
    blocks = spec.blocks, layout = spec.layout, batch = spec.batch, policy = spec.policy,
    eval = spec.eval, model = facts,
    world = plan.world, site = site, serving = plan.serving, links = plan.links,
  }, report, note)
  for _, source in ipairs { spec.data, spec.eval and spec.eval.data } do
    data.check(source, facts.vocab, function(...) collected:add(...) end)
  end
  collected:raise()

  spec.name, spec.file, spec.site = recipe.name, recipe.file, site
  spec.model, spec.notes, spec.experts = model, notes, facts.moes
  spec.batch.micro = spec.batch.micro or spec.batch.samples // spec.layout.dp
  if spec.policy.name == "fast" then
    note "policy fast promises no bits; the host runs the same kernels as for batch"
  end
  local way = not plan.serving and choose_way(spec.layout, plan.links) or nil
  return { spec = spec, widths = facts, way = way }
end

return check
