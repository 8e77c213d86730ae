--- hf/modules.lua - from the modules of a recipe to the facts of a Hugging Face model, or the
--- reason why no architecture of transformers is this model.
--
--     nn.residual { nn.rms_norm, nn.attention }, nn.residual { nn.rms_norm, nn.swiglu or nn.moe }
--
--     norms of heads   mixtures of experts   family
--     no               no                    llama
--     yes              no                    qwen3
--     no               all layers            mixtral
--     yes              some or all layers    qwen3_moe
--
-- Latent attention (nn.mla) in every layer, dense layers first and then mixtures that are chosen by
-- sigmoids and a bias, is deepseek_v3.
local config = require "tidelock.hf.config"
local latent = require "tidelock.hf.latent"

local modules = {}

local function refuse(text, ...) error({ reason = text:format(...) }, 0) end

--- The name of a module in its layer; weights that layers share have no place in such a file.
local function scope_of(m, where)
  local name = m.options.name or m.kind
  if name:sub(1, 1) == "/" then refuse("%s: %s is shared by name", where, name) end
  return name
end

--- Norm and block of a residual branch.
local function branch(m, where)
  if type(m) ~= "table" or m.kind ~= "residual" or #m.children ~= 2 then
    refuse("%s is not nn.residual { norm, block }", where)
  end
  local norm, block = m.children[1], m.children[2]
  if type(norm) ~= "table" or norm.kind ~= "rms_norm" then
    refuse("%s: its norm is %s; only nn.rms_norm has a place there", where,
      type(norm) == "table" and "nn." .. norm.kind or "a function")
  end
  if type(block) ~= "table" then refuse("%s: its block is a function", where) end
  return norm, block
end

--- Notes a fact that is one for the whole model.
local function same(facts, key, value, where)
  if facts[key] == nil then facts[key] = value end
  if facts[key] ~= value then
    refuse("%s: %s is %s, and %s elsewhere", where, key, tostring(value),
      tostring(facts[key]))
  end
end

local scaling_fields = { "factor", "low", "high", "original", "beta_fast", "beta_slow",
  "attention_factor", "mscale", "mscale_all_dim" }

local function read_rope(facts, o, where)
  local rope = o.rope
  if not rope then refuse("%s: nn.attention without rope", where) end
  if rope.interleaved and not facts.latent then refuse("%s: rope.interleaved", where) end
  if rope.dim and rope.dim ~= facts.head_dim then
    refuse("%s: rope.dim %d turns a part of head_dim %d", where, rope.dim, facts.head_dim)
  end
  local s, scaling, words = rope.scaling, nil, {}
  if s then
    scaling = { s.name }
    for i, key in ipairs(scaling_fields) do
      scaling[key], words[i] = s[key], ("%s %.17g"):format(key, s[key] or 0)
    end
  end
  same(facts, "rope_text", ("%.17g %s %s %s"):format(rope.base, s and s.name or "-",
    table.concat(words, " "), tostring(rope.interleaved or false)), where)
  facts.rope = { base = rope.base, scaling = scaling }
  if facts.latent then facts.rope.interleaved = rope.interleaved end
end

local function read_latent(facts, m, where)
  local o = m.options
  facts.latent = {
    q_rank = o.q_rank, kv_rank = o.kv_rank, nope = o.nope_dim, rope = o.rope_dim,
    v = o.v_dim or o.nope_dim,
  }
  same(facts, "latent_text", ("%d %d %d %d %d"):format(o.q_rank or 0, o.kv_rank, o.nope_dim,
    o.rope_dim, facts.latent.v), where)
  same(facts, "heads", o.heads, where)
  same(facts, "kv_heads", o.heads, where)
  same(facts, "head_dim", o.rope_dim, where)
  same(facts, "attention_bias", false, where)
  same(facts, "qk_norm", false, where)
  if o.eps ~= latent.eps then
    refuse("%s: eps of nn.mla is %g; transformers has %g there, whatever the model says", where,
      o.eps, latent.eps)
  end
  read_rope(facts, { rope = o.rope or { base = 10000, interleaved = true } }, where)
end

local function read_attention(facts, m, i, where)
  same(facts, "mixer", m.kind, where)
  if m.kind == "mla" then return read_latent(facts, m, where) end
  if m.kind ~= "attention" then refuse("%s: nn.%s is no attention", where, m.kind) end
  local o = m.options
  same(facts, "heads", o.heads, where)
  same(facts, "kv_heads", o.kv_heads or o.heads, where)
  same(facts, "head_dim", o.head_dim or facts.dim // o.heads, where)
  same(facts, "attention_bias", o.bias, where)
  same(facts, "qk_norm", o.qk_norm and true or false, where)
  if o.qk_norm then same(facts, "eps", o.qk_norm.eps, where) end
  read_rope(facts, o, where)
  facts.windows[i] = o.window
end

--- A mixture of deepseek_v3.
local function read_chosen(facts, o, i, where)
  local router = o.router
  if router.name ~= "sigmoid" or o.balance.name ~= "bias" or o.shared < 1 then
    refuse("%s: its router is %q, its balance %q and its shared experts are %d; beside nn.mla only "
      .. "\"sigmoid\", \"bias\" and 1 or more have a place", where, router.name, o.balance.name,
      o.shared)
  end
  facts.experts = {
    count = o.experts, top_k = o.top_k, hidden = o.hidden, normalize = router.normalize,
    shared = o.shared, groups = router.groups, top_groups = router.top_groups or router.groups,
    scale = router.scale,
  }
  local e = facts.experts
  same(facts, "experts_text", ("%d %d %d %s %d %d %d %.17g"):format(e.count, e.top_k, e.hidden,
    tostring(e.normalize), e.shared, e.groups, e.top_groups, e.scale), where)
  facts.sparse[i] = true
end

local function read_experts(facts, m, i, where)
  local o = m.options
  local router = o.router
  if facts.latent then return read_chosen(facts, o, i, where) end
  if router.name ~= "softmax" or router.groups ~= 1 or router.scale ~= 1 then
    refuse("%s: its router is %q with %d groups and scale %g; only a plain softmax has a place",
      where, router.name, router.groups or 1, router.scale)
  end
  if o.shared > 0 then refuse("%s: shared experts", where) end
  local experts = { count = o.experts, top_k = o.top_k, hidden = o.hidden,
    normalize = router.normalize }
  same(facts, "experts_text", ("%d %d %d %s"):format(o.experts, o.top_k, o.hidden,
    tostring(router.normalize)), where)
  facts.experts, facts.sparse[i] = experts, true
end

local function read_block(facts, m, i, where)
  if m.kind == "moe" then return read_experts(facts, m, i, where) end
  if m.kind ~= "swiglu" then refuse("%s: nn.%s has no place there", where, m.kind) end
  same(facts, "hidden", m.options.hidden, where)
  same(facts, "mlp_bias", m.options.bias, where)
end

local function read_layer(facts, list, i)
  local where = ("layer %d"):format(i - 1)
  if #list ~= 2 then refuse("%s has %d modules, not an attention and a block", where, #list) end
  local mixer_norm, mixer = branch(list[1], where .. ", first branch")
  local ffn_norm, ffn = branch(list[2], where .. ", second branch")
  read_attention(facts, mixer, i, where)
  read_block(facts, ffn, i, where)
  same(facts, "eps", mixer_norm.options.eps, where)
  same(facts, "eps", ffn_norm.options.eps, where)
  return {
    mixer = scope_of(mixer, where), mixer_norm = scope_of(mixer_norm, where),
    ffn = scope_of(ffn, where), ffn_norm = scope_of(ffn_norm, where),
  }
end

--- Dense layers stand first; a model has both.
local function check_latent(facts, sparse)
  if sparse == 0 then refuse "nn.mla without experts" end
  for i = 1, facts.layers do
    if facts.sparse[i] and i < facts.layers and not facts.sparse[i + 1] then
      refuse("layer %d is dense behind a mixture; in deepseek_v3 dense layers stand first", i)
    end
  end
  if facts.mlp_bias then refuse "nn.swiglu with biases in deepseek_v3" end
  if facts.experts.count // facts.experts.groups < 2 then
    refuse("groups of %d experts; transformers adds the two best of each",
      facts.experts.count // facts.experts.groups)
  end
  facts.hidden = facts.hidden or facts.experts.hidden
  facts.family, facts.mlp_bias = "deepseek_v3", false
end

--- The family, and what is none of its own.
local function choose_family(facts)
  local sparse = 0
  for i = 1, facts.layers do sparse = sparse + (facts.sparse[i] and 1 or 0) end
  if facts.latent then return check_latent(facts, sparse) end
  local name = facts.qk_norm and (sparse > 0 and "qwen3_moe" or "qwen3")
    or sparse > 0 and "mixtral" or "llama"
  local family = config.families[name]
  if name == "mixtral" and (sparse < facts.layers or not facts.experts.normalize) then
    refuse "without norms of heads every layer is a mixture whose weights are normalized (mixtral)"
  end
  if name == "mixtral" then facts.hidden = facts.experts.hidden end
  if facts.mlp_bias and not family.mlp_bias then refuse("nn.swiglu with biases in %s", name) end
  if facts.attention_bias and not family.bias then
    refuse("nn.attention with biases in %s", name)
  end
  if name == "llama" and facts.dim % facts.heads ~= 0 then
    refuse("heads %d do not divide dim %d, which transformers asks of llama", facts.heads,
      facts.dim)
  end
  local width, windowed = nil, 0
  for i = 1, facts.layers do
    local own = facts.windows[i]
    width, windowed = width or own, windowed + (own and 1 or 0)
    if own and own ~= width then refuse("windows of %d and %d", width, own) end
  end
  if width and not family.windows then refuse("windows without norms of heads (%s)", name) end
  if width and family.windows == "all" and windowed < facts.layers then
    refuse("windows in some layers of %s", name)
  end
  facts.family, facts.mlp_bias = name, facts.mlp_bias or false
end

local function read(spec)
  local model = spec.model
  if model.positions then refuse "nn.decoder.positions: a learned table of positions" end
  local norm = model.norm
  if norm and (type(norm) ~= "table" or norm.kind ~= "rms_norm") then
    refuse "the norm before the head is not nn.rms_norm"
  end
  local facts = {
    vocab = model.vocab, dim = model.dim, layers = model.layers, tied = model.tied, windows = {},
    sparse = {}, eps = norm and norm.options.eps or 1e-6,
  }
  local scopes = { norm = norm and scope_of(norm, "the last norm") or "norm" }
  for i = 1, model.layers do scopes[i] = read_layer(facts, model.layer_modules[i], i) end
  choose_family(facts)
  for _, key in ipairs { "rope_text", "experts_text", "latent_text", "mixer" } do
    facts[key] = nil
  end
  facts.context = math.max(model.hf and model.hf.context or 0, spec.batch.length)
  return facts, scopes
end

--- { facts, scopes } of the model, or { reason }.
---@param spec table # of the stage check
---@return table
function modules.describe(spec)
  local good, facts, scopes = pcall(read, spec)
  if good then return { facts = facts, scopes = scopes } end
  if type(facts) ~= "table" then error(facts, 0) end
  return { reason = facts.reason }
end

return modules
