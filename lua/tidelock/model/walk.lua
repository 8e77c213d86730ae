--- Walks the modules of a model: makes the layers, checks what needs the width, and gathers the
--- facts that the rules of a layout read.
local core = require "tidelock.core"
local fit = require "tidelock.text.fit"
local types = require "tidelock.language.types"
local where = require "tidelock.language.where"
local yarn = require "tidelock.model.yarn"

--- layers_max: a program lists what every layer does, so their number has a bound, far above what
--- is useful; one with too many digits is told and not made for hours.
local walk = { layers_max = 4096 }

--- The modules that layer(i, n) gives, as a list; nil when it fails (the problem is noted).
local function make_layer(options, i, context, report)
  local call = ("layer(%d, %d)"):format(i, options.layers)
  local good, result = where.run(context, options.layer, i, options.layers)
  if not good then
    local message = types.raised(result)
    local place, text = message:match "^([^\n:]+:%d+): (.*)$"
    context.problems:add(place or options.site, call, text or message)
    return nil
  end
  local list = types.module.check(result) and { result } or result
  if type(list) ~= "table" or #list == 0 then
    report("model.layer", "%s gives %s; it returns a list of modules, as { nn.residual { .. } }",
      call, types.show(result))
    return nil
  end
  local gap, last = types.hole(list)
  if gap then
    report("model.layer", "entry %d of %s is nil, and entry %d is not; a list has no holes", gap,
      call, last)
    return nil
  end
  for position, module in ipairs(list) do
    if not types.module.check(module) then
      report("model.layer", "entry %d of %s is %s, not a module", position, call,
        types.show(module))
      return nil
    end
  end
  return list
end

local visitors = {}

--- Notes a problem of one option of a module, at the option's line.
local function problem(walker, module, key, format, ...)
  local name = "nn." .. module.kind
  local place = where.field(module.site, name, key)
  walker.problems:add(place, name .. "." .. key, format:format(...))
end

--- Width of a head, and what is wrong with it.
local function check_head(module, walker)
  local o, dim = module.options, walker.dim
  local width = o.head_dim
  if not width and dim and dim % o.heads ~= 0 then
    local near = fit.nearest(o.heads, fit.divisors(dim), function() return true end)
    problem(walker, module, "heads", "heads %d does not divide dim %d (%s); set head_dim, or try "
      .. "heads = %d", o.heads, dim, walker.site "model.dim", near)
    return
  end
  width = width or dim and dim // o.heads
  if not width then return end
  if width > 256 then
    problem(walker, module, o.head_dim and "head_dim" or "heads",
      "head_dim %d is above 256, the widest that the op attention has", width)
  end
  local turned = o.rope and (o.rope.dim or width)
  if turned and turned > width then
    problem(walker, module, "rope", "rope.dim %d is above head_dim %d", turned, width)
  elseif turned and turned % 2 ~= 0 then
    local fewer = turned > 1 and ("rope = { dim = %d } or "):format(turned - 1) or ""
    problem(walker, module, "rope", "it turns pairs of channels, but there are %d; "
      .. "try %srope = false", turned, fewer)
  end
end

--- Numbers of stretched waves, as f32, since that is how the op rope_table has them.
local function check_scaling(s, wrong)
  local slow, fast = "low", "high"
  if s.name == "yarn" then slow, fast = "beta_slow", "beta_fast" end
  if s.factor and core.f32(s.factor) < 1 then
    wrong("scaling.factor", "factor %.9g is below 1, and waves are only stretched; try factor = 1",
      s.factor)
  end
  local low, high = s[slow], s[fast]
  if low and high and core.f32(low) >= core.f32(high) then
    wrong("scaling." .. slow, "%s %.9g is not below %s %.9g; try %s = 1, %s = %d", slow, low, fast,
      high, slow, fast, s.name == "yarn" and 32 or 4)
  end
  if s.name ~= "yarn" or not s.factor then return end
  local magnitude = core.f32(yarn.magnitude(s))
  if magnitude > 0 and magnitude <= 2.0 ^ 60 then return end
  local key = s.attention_factor and s.attention_factor ~= 0 and "attention_factor" or "mscale"
  wrong("scaling." .. key, "it multiplies cosines and sines by %.9g; that must be above 0 and at "
    .. "most 2^60; leave %s out", magnitude, key)
end

--- What the op rope_table asks of its numbers.
local function check_rope(module, walker, rope)
  if type(rope) ~= "table" then return end
  local name = "nn." .. module.kind
  local function wrong(path, format, ...)
    walker.problems:add(where.field(module.site, name, "rope"), name .. ".rope." .. path,
      format:format(...))
  end
  local base = rope.base and core.f32(rope.base)
  local stretched = type(rope.scaling) == "table" and rope.scaling
  if base and not (base >= 1 and base <= 2.0 ^ 60) then
    wrong("base", "base %.9g is not from 1 to 2^60; try base = 10000", rope.base)
  elseif base == 1 and stretched and stretched.name == "yarn" then
    wrong("base", "base 1 makes all waves alike, and yarn tells long ones from short ones; try "
      .. "base = 10000")
  end
  if stretched then check_scaling(stretched, wrong) end
  local soft = module.kind == "mla" and stretched and stretched.factor and yarn.softness(stretched)
  if soft and core.f32(soft) == math.huge then
    wrong("scaling.mscale_all_dim", "it multiplies the scale of the softmax by %.9g, which is none "
      .. "in f32; try mscale_all_dim = 1", soft)
  end
end

function visitors.attention(module, walker)
  local o = module.options
  if not o.heads then return end
  check_head(module, walker)
  check_rope(module, walker, o.rope)
  local kv = o.kv_heads or o.heads
  if o.heads % kv ~= 0 then
    problem(walker, module, "kv_heads", "kv_heads %d does not divide heads %d; allowed: %s", kv,
      o.heads, fit.list(fit.divisors(o.heads)))
    return
  end
  local facts = walker.facts.attentions
  facts[#facts + 1] = { heads = o.heads, kv_heads = kv, site = module.site }
end

--- Widths of latent attention: what the op attention takes, and whole pairs that turn.
function visitors.mla(module, walker)
  local o = module.options
  check_rope(module, walker, o.rope)
  if not (o.heads and o.nope_dim and o.rope_dim and o.kv_rank) then return end
  local width = o.nope_dim + o.rope_dim
  if width > 256 then
    problem(walker, module, "nope_dim", "nope_dim %d + rope_dim %d = %d is above 256, the widest "
      .. "head that the op attention has", o.nope_dim, o.rope_dim, width)
  end
  if o.v_dim and o.v_dim > 256 then
    problem(walker, module, "v_dim", "v_dim %d is above 256, the widest that the op attention has",
      o.v_dim)
  end
  if o.rope_dim % 2 ~= 0 then
    problem(walker, module, "rope_dim", "it turns pairs of channels, but there are %d; try "
      .. "rope_dim = %d", o.rope_dim, o.rope_dim + 1)
  end
  if o.kv_rank + o.rope_dim > 2048 then
    problem(walker, module, "kv_rank", "kv_rank %d + rope_dim %d is above 2048, the widest that "
      .. "the op split_heads has", o.kv_rank, o.rope_dim)
  end
  local facts = walker.facts.attentions
  facts[#facts + 1] = { heads = o.heads, kv_heads = o.heads, site = module.site }
end

local function with_hidden(module, walker)
  local facts, width = walker.facts.hiddens, module.options.hidden
  if width then facts[#facts + 1] = { hidden = width, site = module.site } end
end

visitors.swiglu, visitors.gelu = with_hidden, with_hidden

--- Groups of a router: they cut the experts evenly, and those that stay have enough of them.
local function check_groups(module, walker)
  local o, r = module.options, module.options.router
  if not o.experts or not o.top_k or r.groups == 1 then return end
  local top = r.top_groups or r.groups
  if o.experts % r.groups ~= 0 then
    problem(walker, module, "router", "groups %d does not divide experts %d; allowed: %s", r.groups,
      o.experts, fit.list(fit.divisors(o.experts)))
  elseif top > r.groups then
    problem(walker, module, "router", "top_groups %d is above groups %d; try top_groups = %d", top,
      r.groups, r.groups)
  elseif top * (o.experts // r.groups) < o.top_k then
    problem(walker, module, "router", "top_groups %d of %d experts each have fewer than top_k %d "
      .. "experts; try top_groups = %d", top, o.experts // r.groups, o.top_k,
      math.min(r.groups, (o.top_k * r.groups + o.experts - 1) // o.experts))
  end
end

function visitors.moe(module, walker)
  local o = module.options
  o.router = o.router or { name = "softmax", groups = 1, scale = 1, normalize = true }
  o.balance = o.balance or { name = "none" }
  if o.experts and o.top_k and o.top_k > o.experts then
    problem(walker, module, "top_k", "top_k %d is above experts %d; try top_k = %d", o.top_k,
      o.experts, o.experts)
  end
  if o.experts and o.experts > 1024 then
    problem(walker, module, "experts", "experts %d is above 1024, the most that the op route has",
      o.experts)
  end
  if o.top_k and o.top_k > 64 then
    problem(walker, module, "top_k", "top_k %d is above 64, the most that the op route has",
      o.top_k)
  end
  if o.balance.name == "loss" and o.router.name ~= "softmax" then
    problem(walker, module, "balance", "the loss needs scores that are shares, as those of the "
      .. "router \"softmax\"; with %q %s", o.router.name, o.router.name == "hash"
      and "leave balance out" or "write balance = { \"bias\", speed = 1e-3 }")
  end
  if o.router.name == "hash" then
    if o.balance.name == "bias" then
      problem(walker, module, "balance", "a bias moves scores that choose, and the router \"hash\" "
        .. "chooses by token id; leave balance out, or take the router \"sqrt_softplus\"")
    end
  else
    check_groups(module, walker)
  end
  local facts = walker.facts
  if o.experts and o.top_k then
    facts.moes[#facts.moes + 1] = { experts = o.experts, top_k = o.top_k, site = module.site }
  end
  if o.shared and o.shared > 0 and o.hidden then
    facts.hiddens[#facts.hiddens + 1] = { hidden = o.shared * o.hidden, site = module.site }
  end
end

--- Visits a module and what is inside it. Functions and graphs written by hand are not looked into.
local function visit(module, walker)
  if type(module) ~= "table" then return end
  local visitor = visitors[module.kind]
  if visitor then visitor(module, walker) end
  for i, child in ipairs(module.children or {}) do
    if not types.module.check(child) then
      local text = ("entry %d is %s, not a module"):format(i, types.show(child))
      walker.problems:add(module.site, "nn." .. module.kind, text)
    end
    visit(child, walker)
  end
end

--- Same numbers from the same line (a layer that is made many times) are one fact.
local function unique(list)
  local seen, result = {}, {}
  for _, fact in ipairs(list) do
    local id = ("%s %s %s %s"):format(fact.site, fact.heads, fact.kv_heads, fact.hidden
      or fact.experts)
    if not seen[id] then
      seen[id] = true
      result[#result + 1] = fact
    end
  end
  return result
end

--- Makes all layers of the decoder `module`. Returns the model of the spec (options, site,
--- layer_modules) and the facts { trained, layers, vocab, positions, attentions, hiddens, moes }.
function walk.model(module, context, report, site)
  local facts = { attentions = {}, hiddens = {}, moes = {} }
  if type(module) ~= "table" or module.kind ~= "decoder" then
    if module then report("model", "expected nn.decoder { .. }, got %s", types.show(module)) end
    return nil, facts
  end
  local options = module.options
  local model = { site = module.site, layer_modules = {} }
  for key, value in pairs(options) do model[key] = value end
  facts.layers, facts.vocab, facts.positions = options.layers, options.vocab, options.positions
  facts.trained = options.hf and options.hf.context
  local walker = { dim = options.dim, problems = context.problems, facts = facts, site = site }
  if options.layers and options.layers > walk.layers_max then
    report("model.layers", "layers %d is above %d, the most that a program can list; try "
      .. "layers = %d", options.layers, walk.layers_max, walk.layers_max)
    facts.layers = nil
  elseif options.layer and options.layers then
    for i = 1, options.layers do
      local list = make_layer(options, i, context, report)
      if not list then break end
      model.layer_modules[i] = list
      for _, one in ipairs(list) do visit(one, walker) end
    end
  end
  facts.attentions, facts.hiddens = unique(facts.attentions), unique(facts.hiddens)
  facts.moes = unique(facts.moes)
  return model, facts
end

return walk
