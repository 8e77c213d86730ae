--- hf/config.lua - config.json of Hugging Face models: what a model is, in facts.
--
--     config.json  --read-->  facts  --write-->  config.json
--
-- Facts say what the modules of nn can say, under one name for all families. What a file says and
-- no module can do is reported with the field and its value, all of it at once; so are fields that
-- nobody here knows. Null and absent are the same: what transformers takes then.
local core = require "tidelock.core"
local latent = require "tidelock.hf.latent"
local types = require "tidelock.language.types"

local config = {}

---@class tidelock.HfFacts
---@field family string # "llama", ..: model_type of the file
---@field vocab integer
---@field dim integer
---@field layers integer
---@field heads integer
---@field kv_heads integer
---@field head_dim integer
---@field hidden? integer # of dense layers
---@field eps number
---@field tied boolean
---@field rope { base: number, scaling?: table, interleaved?: boolean }
---@field attention_bias boolean
---@field mlp_bias boolean
---@field qk_norm boolean
---@field windows table<integer, integer> # of layer i, from 1; nil: all keys
---@field latent? table # of latent attention: q_rank, kv_rank, nope, rope, v
---@field further_layers? integer # behind the last one, for further tokens: left aside
---@field experts? { count: integer, top_k: integer, hidden: integer, normalize: boolean } # and of
---  deepseek_v3 shared, groups, top_groups, scale
---@field sparse table<integer, boolean> # layer i, from 1, is a mixture of experts
---@field context? integer # positions that the model was trained for

--- Each family: the class that transformers loads, what is its own, and what transformers takes for
--- a field that a file leaves out. windows: "layers" has them by layer, "all" in every layer.
config.families = {
  llama = { class = "LlamaForCausalLM", bias = true, mlp_bias = true, base = 10000, eps = 1e-6 },
  qwen3 = { class = "Qwen3ForCausalLM", bias = true, qk_norm = true, windows = "layers",
    base = 10000, eps = 1e-6, head_dim = 128 },
  mixtral = { class = "MixtralForCausalLM", experts = true, windows = "all", base = 1000000,
    eps = 1e-5 },
  qwen3_moe = { class = "Qwen3MoeForCausalLM", bias = true, experts = true, qk_norm = true,
    windows = "all", base = 10000, eps = 1e-6 },
  deepseek_v3 = { class = "DeepseekV3ForCausalLM", experts = true, latent = true, base = 10000,
    eps = 1e-6 },
}
local known_families = "deepseek_v3, llama, mixtral, qwen3, qwen3_moe"

local refused_families = {
  deepseek_v2 = "its attention is that of deepseek_v3, but its files are not read in this version",
  deepseek_v32 = "the indexer that picks the keys of its attention is not available in this "
    .. "version",
  deepseek_v4 = "its compressed attention and hyper-connections are not available in this version",
}

--- Fields that change nothing of what the model computes.
local indifferent = {}
for name in ([[
  architectures model_type dtype torch_dtype transformers_version use_cache initializer_range
  bos_token_id eos_token_id pad_token_id max_position_embeddings _name_or_path output_attentions
  output_hidden_states return_dict router_aux_loss_coef max_window_layers is_encoder_decoder
  chunk_size_feed_forward id2label label2id problem_type task_specific_params auto_map
]]):gmatch "%S+" do indifferent[name] = true end

local Reader = {}
Reader.__index = Reader

--- A field, nil where it is absent or null; from then on it counts as read.
function Reader:get(key)
  self.read[key] = true
  local value = self.values[key]
  if value == core.json.null then return nil end
  return value
end

function Reader:wrong(key, text, ...)
  local value = self.values[key]
  self.report(("%s = %s; %s"):format(key, types.show(value), text:format(...)))
end

--- A field of a simple type, else `default`; with no default it must be there.
function Reader:take(key, kind, default)
  local value = self:get(key)
  if value == nil then
    if default == nil then self.report(("%s is missing: %s"):format(key, types[kind].expected)) end
    return default
  end
  local good = types[kind].check(value)
  if good == nil then self:wrong(key, "it is %s", types[kind].expected) end
  return good
end

--- A field of which only one value can be computed here.
function Reader:only(key, wanted, why)
  local value = self:get(key)
  if value ~= nil and value ~= wanted then
    self:wrong(key, "only %s is available%s", types.show(wanted), why and ": " .. why or "")
  end
end

local function read_yarn(inner)
  inner:only("truncate", true, "borders of waves are whole channels")
  return {
    "yarn", factor = inner:take("factor", "positive"),
    original = inner:take("original_max_position_embeddings", "count"),
    beta_fast = inner:take("beta_fast", "positive", 32),
    beta_slow = inner:take("beta_slow", "positive", 1),
    attention_factor = inner:take("attention_factor", "positive", false) or nil,
    mscale = inner:take("mscale", "not_negative", 0),
    mscale_all_dim = inner:take("mscale_all_dim", "not_negative", 0),
  }
end

--- rope_theta and rope_scaling, or rope_parameters of newer files.
local function read_rope(r, family)
  local given, name = r:get "rope_parameters", "rope_parameters"
  if given == nil then given, name = r:get "rope_scaling", "rope_scaling" end
  r:get "rope_scaling"
  if given ~= nil and type(given) ~= "table" then
    r:wrong(name, "it is a table")
    given = nil
  end
  given = given or {}
  local inner = setmetatable({ values = given, read = {}, report = function(text)
    r.report(name .. "." .. text)
  end }, Reader)
  local theta = r:take("rope_theta", "positive", family.base)
  local rope = { base = inner:take("rope_theta", "positive", theta) }
  local kind = inner:get "rope_type" or inner:get "type" or "default"
  inner:get "type"
  inner:only("partial_rotary_factor", 1.0)
  if kind == "llama3" then
    rope.scaling = {
      "llama3", factor = inner:take("factor", "positive"),
      low = inner:take("low_freq_factor", "positive"),
      high = inner:take("high_freq_factor", "positive"),
      original = inner:take("original_max_position_embeddings", "count"),
    }
  elseif kind == "yarn" then
    rope.scaling = read_yarn(inner)
  elseif kind == "linear" then
    rope.scaling = { "linear", factor = inner:take("factor", "positive") }
  elseif kind ~= "default" then
    inner:wrong(given.rope_type and "rope_type" or "type", "only \"default\", \"linear\", "
      .. "\"llama3\" and \"yarn\" are available")
    return rope
  end
  inner:finish {}
  return rope
end

--- Keys that a layer sees, by layer_types or by the fields of older files.
local function read_windows(r, family, layers)
  local windows = {}
  if not family.windows then return windows end
  local width, first, kinds = r:take("sliding_window", "count", false), 0, nil
  if family.qk_norm and not r:take("use_sliding_window", "boolean", false) then width = false end
  if family.windows == "layers" then
    kinds, first = r:get "layer_types", r:take("max_window_layers", "whole", 28)
  end
  for i = 1, layers do
    local kind = kinds and kinds[i] or width and i > (first or 0) and "sliding_attention"
    if kind == "sliding_attention" and width then windows[i] = width
    elseif kind == "sliding_attention" then
      r.report(("layer_types[%d] = %q, but no sliding_window is in use"):format(i - 1, kind))
    elseif kind and kind ~= "full_attention" then
      r.report(("layer_types[%d] = %s; only \"full_attention\" and \"sliding_attention\" are "
        .. "available"):format(i - 1, types.show(kind)))
    end
  end
  return windows
end

--- Which layers are mixtures of experts, and of what.
local function read_experts(r, facts, family)
  if not family.experts then return end
  if family.latent then return latent.read_experts(r, facts) end
  local mixtral = facts.family == "mixtral"
  local older = not mixtral and r:get "num_experts"
  facts.experts = {
    count = r:take(older and "num_experts" or "num_local_experts", "count"),
    top_k = r:take("num_experts_per_tok", "count"),
    hidden = mixtral and facts.hidden or r:take("moe_intermediate_size", "count"),
    normalize = mixtral or r:take("norm_topk_prob", "boolean", false),
  }
  r:get "num_local_experts"
  r:only("router_jitter_noise", 0.0, "it is noise")
  r:only("output_router_logits", false, "an extra loss is asked for with balance")
  local step, dense = 1, {}
  if not mixtral then
    step = r:take("decoder_sparse_step", "count", 1)
    for _, i in ipairs(r:get "mlp_only_layers" or {}) do dense[i] = true end
  end
  for i = 1, facts.layers or 0 do
    facts.sparse[i] = not dense[i - 1] and i % (step or 1) == 0
  end
end

--- Reports what was never read and is not indifferent; `ignored` are fields that the recipe waives.
function Reader:finish(ignored)
  local names = {}
  for key, value in pairs(self.values) do
    if not self.read[key] and not ignored[key] and value ~= core.json.null then
      names[#names + 1] = key
    end
  end
  table.sort(names)
  for _, key in ipairs(names) do
    self.report(("%s = %s; no such field is known here"):format(key,
      types.show(self.values[key])))
  end
end

local function check_family(values, report)
  local name = values.model_type
  local family = type(name) == "string" and config.families[name]
  if not family then
    local why = refused_families[name] or "there are " .. known_families
    report(("model_type = %s; %s"):format(types.show(name), why))
    return nil
  end
  local classes = values.architectures
  local class = type(classes) == "table" and classes[1]
  if class and class ~= family.class then
    report(("architectures = %s; of %s only %q is available"):format(types.show(class), name,
      family.class))
  end
  return family
end

local function read_sizes(r, facts, family)
  facts.vocab, facts.dim = r:take("vocab_size", "count"), r:take("hidden_size", "count")
  facts.layers = r:take("num_hidden_layers", "count")
  facts.hidden = r:take("intermediate_size", "count")
  facts.heads = r:take("num_attention_heads", "count")
  facts.kv_heads = r:take("num_key_value_heads", "count", facts.heads)
  local whole = facts.dim and facts.heads and facts.dim // facts.heads
  facts.head_dim = r:take("head_dim", "count", family.head_dim or whole)
  facts.eps = r:take("rms_norm_eps", "positive", family.eps)
  facts.tied = r:take("tie_word_embeddings", "boolean", false)
  facts.context = r:take("max_position_embeddings", "count", false) or nil
  if facts.heads and facts.kv_heads and facts.heads % facts.kv_heads ~= 0 then
    r:wrong("num_key_value_heads", "it divides num_attention_heads %d", facts.heads)
  end
end

--- The facts of a decoded config.json, or nil when something was reported.
---@param values table
---@param options { ignore: table<string, boolean>, report: fun(text: string) }
---@return tidelock.HfFacts?
function config.read(values, options)
  local good = true
  local function report(text)
    good = false
    options.report(text)
  end
  local family = check_family(values, report)
  if not family then return nil end
  local r = setmetatable({ values = values, read = {}, report = report },
    Reader)
  local facts = { family = values.model_type, sparse = {}, qk_norm = family.qk_norm or false }
  read_sizes(r, facts, family)
  facts.attention_bias = family.bias and r:take("attention_bias", "boolean", false) or false
  facts.mlp_bias = family.mlp_bias and r:take("mlp_bias", "boolean", false) or false
  facts.rope = read_rope(r, family)
  facts.windows = read_windows(r, family, facts.layers or 0)
  if family.latent then latent.read(r, facts) end
  read_experts(r, facts, family)
  r:only("attention_bias", facts.attention_bias)
  r:only("hidden_act", "silu")
  r:only("attention_dropout", 0.0, "the op attention drops no probabilities")
  r:only("pretraining_tp", 1)
  r:only("quantization_config", nil, "weights of 16 or 32 bits")
  for key in pairs(indifferent) do r:get(key) end
  r:finish(options.ignore)
  return good and facts or nil
end

--- Fields of a config.json that outlive it: those that change nothing of what is computed.
function config.kept(values)
  local kept = {}
  for key, value in pairs(values) do
    if indifferent[key] and key ~= "torch_dtype" then kept[key] = value end
  end
  kept.intermediate_size = values.intermediate_size
  return kept
end

--- transformers takes a factor of 0 as one that is left out.
local function given(value) return value ~= 0 and value or nil end

--- The config.json of facts, as a table; `dtype` as transformers names it, `kept` from config.kept.
---@param facts tidelock.HfFacts
---@param dtype string # "float32"
---@param kept? table
function config.write(facts, dtype, kept)
  local family = config.families[facts.family]
  local out = {
    architectures = { family.class }, model_type = facts.family, dtype = dtype,
    vocab_size = facts.vocab, hidden_size = facts.dim, num_hidden_layers = facts.layers,
    intermediate_size = facts.hidden or facts.experts.hidden, num_attention_heads = facts.heads,
    num_key_value_heads = facts.kv_heads, head_dim = facts.head_dim, hidden_act = "silu",
    rms_norm_eps = facts.eps, tie_word_embeddings = facts.tied, attention_dropout = 0.0,
    max_position_embeddings = facts.context, use_cache = true, rope_theta = facts.rope.base,
  }
  for _, key in ipairs { "bos_token_id", "eos_token_id", "pad_token_id" } do
    out[key] = core.json.null
  end
  for key, value in pairs(kept or {}) do
    if out[key] == nil or key:find "_token_id$" or key == "intermediate_size" then
      out[key] = value
    end
  end
  if family.bias then out.attention_bias = facts.attention_bias end
  if family.mlp_bias then out.mlp_bias = facts.mlp_bias end
  local s = facts.rope.scaling
  if s and s[1] == "yarn" then
    out.rope_scaling = {
      rope_type = "yarn", factor = s.factor, original_max_position_embeddings = s.original,
      beta_fast = s.beta_fast, beta_slow = s.beta_slow, attention_factor = s.attention_factor,
      mscale = given(s.mscale), mscale_all_dim = given(s.mscale_all_dim),
    }
  elseif s and s[1] == "linear" then
    out.rope_scaling = { rope_type = "linear", factor = s.factor }
  elseif s then
    out.rope_scaling = {
      rope_type = "llama3", factor = s.factor, low_freq_factor = s.low, high_freq_factor = s.high,
      original_max_position_embeddings = s.original,
    }
  end
  config.write_layers(facts, out)
  return out
end

--- Windows and experts.
function config.write_layers(facts, out)
  local width
  for i = 1, facts.layers do width = width or facts.windows[i] end
  if facts.latent then return latent.write(facts, out) end
  if facts.family ~= "llama" then out.sliding_window = width or core.json.null end
  if facts.qk_norm then out.use_sliding_window = width ~= nil end
  if config.families[facts.family].windows == "layers" then
    out.layer_types = {}
    for i = 1, facts.layers do
      out.layer_types[i] = facts.windows[i] and "sliding_attention" or "full_attention"
    end
  end
  local experts = facts.experts
  if not experts then return end
  out.num_local_experts, out.num_experts_per_tok = experts.count, experts.top_k
  if facts.family == "mixtral" then return end
  out.num_experts, out.num_local_experts = experts.count, nil
  out.moe_intermediate_size, out.norm_topk_prob = experts.hidden, experts.normalize
  out.decoder_sparse_step, out.mlp_only_layers = 1, core.json.array {}
  for i = 1, facts.layers do
    if not facts.sparse[i] then table.insert(out.mlp_only_layers, i - 1) end
  end
end

return config
