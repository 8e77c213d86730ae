--- Walks the modules of a model: makes the layers, checks what needs the width, gathers the facts that
--- the rules of a layout read.
local types = require "tidelock.types"
local where = require "tidelock.where"

local walk = {}

local visit

local function list_of(value)
  if types.module.check(value) then return { value } end
  return value
end

--- The modules that layer(i, n) gives, as a list; nil when it fails (the problem is noted).
local function make_layer(options, i, context, report)
  local good, result = where.run(context, options.layer, i, options.layers)
  if not good then
    local message = type(result) == "table" and result.message or tostring(result)
    report("model.layer", ("layer(%d, %d): %s"):format(i, options.layers, message))
    return nil
  end
  local list = list_of(result)
  if type(list) ~= "table" or #list == 0 then
    report("model.layer", ("layer(%d, %d) gives %s; it returns a list of modules, as { nn.residual { .. } }"):format(
      i, options.layers, types.show(result)))
    return nil
  end
  for position, module in ipairs(list) do
    if not types.module.check(module) then
      report("model.layer", ("entry %d of layer(%d, %d) is %s, not a module"):format(
        position, i, options.layers, types.show(module)))
      return nil
    end
  end
  return list
end

local visitors = {}

function visitors.attention(module, walker)
  local o, dim = module.options, walker.dim
  if not o.heads then return end
  local function problem(key, text)
    walker.problems:add(where.field(module.site, "attention", key), "nn.attention." .. key, text)
  end
  local kv = o.kv_heads or o.heads
  if o.heads % kv ~= 0 then
    problem("kv_heads", ("kv_heads %d does not divide heads %d; a kv head serves whole query heads"):format(kv, o.heads))
    kv = nil
  end
  if not o.head_dim and dim and dim % o.heads ~= 0 then
    problem("heads", ("heads %d does not divide dim %d (%s); set head_dim, or try heads = %d"):format(
      o.heads, dim, walker.site "model.dim", walker.nearest_divisor(dim, o.heads)))
  end
  local width = o.head_dim or dim and dim % o.heads == 0 and dim // o.heads
  if width and width > 256 then
    problem(o.head_dim and "head_dim" or "heads", ("head_dim %d is above 256, the widest that the op attention has"):format(width))
  end
  local turned = o.rope and (o.rope.dim or width)
  if turned and turned % 2 ~= 0 then
    problem("rope", ("rope turns pairs of channels, and head_dim %d is odd; set rope = { dim = %d }, or rope = false"):format(
      turned, turned - 1))
  elseif o.rope and o.rope.dim and width and o.rope.dim > width then
    problem("rope", ("rope.dim %d is above head_dim %d"):format(o.rope.dim, width))
  end
  if kv then table.insert(walker.facts.attentions, { heads = o.heads, kv_heads = kv, site = module.site }) end
end

local function with_hidden(module, walker)
  if module.options.hidden then
    table.insert(walker.facts.hiddens, { hidden = module.options.hidden, site = module.site })
  end
end

visitors.swiglu, visitors.gelu = with_hidden, with_hidden

function visitors.moe(module, walker)
  local o = module.options
  if o.experts and o.top_k and o.top_k > o.experts then
    walker.problems:add(where.field(module.site, "moe", "top_k"), "nn.moe.top_k",
      ("top_k %d is above experts %d; try top_k = %d"):format(o.top_k, o.experts, o.experts))
  end
  walker.problems:add(module.site, "nn.moe",
    "mixtures of experts are not available in this version; nn.swiglu { hidden = .. } is the dense form")
end

--- Visits a module and what is inside it. Functions and graphs written by hand are not looked into.
function visit(module, walker)
  if type(module) ~= "table" then return end
  local visitor = visitors[module.kind]
  if visitor then visitor(module, walker) end
  for _, child in ipairs(module.children or {}) do visit(child, walker) end
end

--- Same numbers from the same line (a layer that is made many times) are one fact.
local function unique(list)
  local seen, result = {}, {}
  for _, fact in ipairs(list) do
    local id = table.concat({ fact.site or "", fact.heads or 0, fact.kv_heads or 0, fact.hidden or 0 }, " ")
    if not seen[id] then
      seen[id] = true
      result[#result + 1] = fact
    end
  end
  return result
end

--- Makes all layers of the decoder `module`. Returns the model of the spec (options, site,
--- layer_modules) and the facts { layers, vocab, positions, attentions, hiddens }.
function walk.model(module, context, report, site)
  local facts = { attentions = {}, hiddens = {} }
  if type(module) ~= "table" or module.kind ~= "decoder" then
    if module then report("model", "expected nn.decoder { .. }, got " .. types.show(module)) end
    return nil, facts
  end
  local options = module.options
  local model = { site = module.site, layer_modules = {} }
  for key, value in pairs(options) do model[key] = value end
  facts.layers, facts.vocab, facts.positions = options.layers, options.vocab, options.positions
  local walker = { dim = options.dim, problems = context.problems, facts = facts, site = site }
  walker.nearest_divisor = walk.nearest_divisor
  if options.layer and options.layers then
    for i = 1, options.layers do
      local list = make_layer(options, i, context, report)
      if not list then break end
      model.layer_modules[i] = list
      for _, one in ipairs(list) do visit(one, walker) end
    end
  end
  facts.attentions, facts.hiddens = unique(facts.attentions), unique(facts.hiddens)
  return model, facts
end

--- The divisor of n nearest to `wanted`.
function walk.nearest_divisor(n, wanted)
  local fit = require "tidelock.fit"
  return fit.nearest(wanted, fit.divisors(n), function() return true end)
end

return walk
