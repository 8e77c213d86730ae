--- expand.lua - from the description of a model to the graph of one micro-batch, forward only.
---
---     tokens -> embed -> layers -> norm -> head -> loss of each token
---
--- Each node carries the layer it belongs to ("embed", 1 .. n, "head"): the pipeline cuts there.
local doubts = require "tidelock.model.doubts"
local graphs = require "tidelock.model.graph"
local nn = require "tidelock.model.nn"
local problems = require "tidelock.text.problems"
local states = require "tidelock.model.states"
local types = require "tidelock.language.types"
local weights = require "tidelock.model.weights"
local where = require "tidelock.language.where"

local expand = {}

local function round_up(n, unit) return (n + unit - 1) // unit * unit end

--- Learned or looked-up rows of a table whose first dim may be cut over tp.
local function embed(g, ids, table_value)
  local dims = { ids.dims[1], table_value.dims[#table_value.dims] }
  return g:node("embedding", { ids, table_value }, { { dims, g.dtype } })
end

--- A module of a layer, which gives a row of features for each token.
local function apply(m, x)
  local y = nn.apply(m, x)
  if graphs.is_value(y) and #y.dims == 2 and y.dims[1].name == "tokens" then return y end
  local site = type(m) == "table" and m.site or x.graph.site
  error(("%s: a layer's module gives %s, not (tokens, features)"):format(site or "?",
    graphs.is_value(y) and graphs.dims_text(y) or types.show(y)), 0)
end

local function layers(g, model, x)
  for i = 1, model.layers do
    g.layer = i
    g:enter("layers." .. i - 1)
    local list = model.layer_modules[i]
    if getmetatable(list) then list = { list } end
    for _, m in ipairs(list) do x = apply(m, x) end
    if x.dims[2].size ~= model.dim then
      error(("%s: layer %d gives %s; a layer leads back to (tokens, dim %d)"):format(x.site, i - 1,
        graphs.dims_text(x), model.dim), 0)
    end
    g:leave()
  end
  return x
end

--- The loss of each target token, from the recipe's name, table or function; f32 (tokens).
local function losses(g, spec, logits, targets, found)
  local loss = spec.loss
  local value
  if type(loss) == "function" then
    value = loss(graphs.face(g), logits, targets)
    if not graphs.is_value(value) or #value.dims ~= 1 or value.dims[1].name ~= "tokens" then
      found:add(spec.site "loss", "loss",
        "the function must return one number per target, (tokens); got "
        .. (graphs.is_value(value) and graphs.dims_text(value) or types.show(value)))
      found:raise()
    end
  else
    value = g:cross_entropy(logits, targets, loss)
  end
  for _, extra in ipairs(g.losses) do value = value + extra.value end
  return value
end

local function marks(g)
  for _, node in ipairs(g.nodes) do
    local tokens = false
    for _, input in ipairs(node.inputs) do
      tokens = tokens or input.dims[1] and input.dims[1].name == "tokens" or input.input
    end
    node.step = not tokens -- token-free: computed once a step
  end
end

local function trace(plan, found)
  local spec = plan.spec
  local model, leaves = spec.model, spec.policy.leaves
  local g = graphs.new(spec.dtype)
  g.site = model.site
  g.steps, g.tokens = spec.train.steps, spec.batch.samples * spec.batch.length
  local tokens = g:define "tokens"
  local vocab = g:define("vocab", model.vocab, "tp")
  vocab.padded = round_up(model.vocab, 16 * leaves.tp)
  local dim = g:define("dim", model.dim)
  local ids = g:value({ tokens }, "i32", nil, { input = "ids" })
  local targets = g:value({ tokens }, "i32", nil, { input = "targets" })
  local cu = g:value({ tokens }, "i32", nil, { input = "cu" })
  g.cu, g.ids, g.vocab = cu, ids, model.vocab

  local table_value = g:parameter("embed", { vocab, dim }, 1, "matrix")
  local x = g:named("embed.out", embed(g, ids, table_value))
  if model.positions then
    local positions = g:define("positions", model.positions, "tp")
    positions.padded = round_up(model.positions, leaves.tp)
    local where_ids = g:node("position_ids", { cu }, { { { tokens }, "i32" } })
    x = x + embed(g, where_ids, g:parameter("positions", { positions, dim }, 1, "matrix"))
  end
  if model.dropout and model.dropout > 0 then
    x = g:node("dropout", { x }, { { x.dims, x.dtype } }, { rate = model.dropout, key = "dropout" })
  end
  x = layers(g, model, x)

  g.layer, g.site = "head", model.site
  x = nn.apply(model.norm or nn.rms_norm { name = "norm" }, x)
  local head = model.tied and table_value or g:parameter("head", { vocab, dim }, 1, "matrix")
  local logits = g:named("logits", g:linear(x, { head }, nil, { { vocab } }, { dim }, "f32"))
  local loss = losses(g, spec, logits, targets, found)
  marks(g)
  states.complete(g, found)
  loss.name = "loss"
  g.names[#g.names + 1] = loss
  return g, loss
end

--- A weight that was made and that nothing uses. State has no gradient, and needs none.
local function check_uses(g, found)
  local used = {}
  for _, node in ipairs(g.nodes) do
    for _, value in ipairs(node.inputs) do
      if value.weight then used[value.weight] = true end
    end
  end
  for _, weight in ipairs(g.weights) do
    if not used[weight] and weight.kind ~= "state" then
      found:add(weight.site, weight.name, "nothing uses this weight; use it or leave it out")
    end
  end
end

--- A training step moves something.
local function check_frozen(plan, g, fields, found)
  local count = 0
  for _, weight in ipairs(g.weights) do
    if weight.kind ~= "state" then
      if not fields[weight.name].frozen then return end
      count = count + 1
    end
  end
  found:add(plan.spec.site "weights" or plan.spec.file, "weights", ("%s frozen, so there is "
    .. "nothing to train; leave one of them free"):format(count == 1 and "the only weight is"
    or ("all %d weights are"):format(count)))
end

--- Functions of the recipe run here, under its limits and with its lines noted.
function expand.run(plan)
  local found = problems.new()
  local good, g, loss = where.run({ problems = found }, trace, plan, found)
  if not good and (type(g) ~= "table" or not g.message) then
    g = type(g) == "string" and g or ("%s: a function of the model raised %s"):format(
      plan.spec.model.site, types.show(g))
  end
  if not good then error(g, 0) end
  local fields = weights.resolve(g, plan.spec, found)
  check_uses(g, found)
  if not plan.serving then check_frozen(plan, g, fields, found) end
  found:raise()
  return { graph = g, loss = loss, fields = fields,
    doubts = doubts.of(plan.spec, g, fields, plan.recipe) }
end
where.floor(expand.run)

return expand
