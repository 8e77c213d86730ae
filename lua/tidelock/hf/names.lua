--- hf/names.lua - every weight under both names: those of this program and those of Hugging Face.
--
--     layers.0.attention.q           model.layers.0.self_attn.q_proj.weight   (heads x head_dim, d)
--     layers.0.swiglu.rms_norm.gain  model.layers.0.post_attention_layernorm.weight (dim)
--
-- Both keep a linear as (out, in), so no bytes move. w1, w3 and w2 are gate, up and down.
local latent = require "tidelock.hf.latent"

local names = {}

--- How the modules of a layer are called when nothing renames them.
local function default_scopes(facts, i)
  return {
    mixer = facts.latent and "mla" or "attention", mixer_norm = "rms_norm", ffn_norm = "rms_norm",
    ffn = facts.sparse[i] and "moe" or "swiglu",
  }
end

local function attention_weights(facts, ours, theirs, add)
  if facts.latent then return latent.weights(facts, ours, theirs, add) end
  local q, kv = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
  local parts = { { "q", q, facts.dim }, { "k", kv, facts.dim }, { "v", kv, facts.dim },
    { "o", facts.dim, q } }
  for _, part in ipairs(parts) do
    add(ours .. part[1], theirs .. part[1] .. "_proj.weight", part[2], part[3])
    if facts.attention_bias then
      add(ours .. part[1] .. "_bias", theirs .. part[1] .. "_proj.bias", part[2])
    end
  end
  if facts.qk_norm then
    for _, name in ipairs { "q_norm", "k_norm" } do
      add(ours .. name .. ".gain", theirs .. name .. ".weight", facts.head_dim)
    end
  end
end

local function dense_weights(facts, ours, theirs, add, hidden)
  hidden = hidden or facts.hidden
  local up, down = { hidden, facts.dim }, { facts.dim, hidden }
  for _, part in ipairs { { "gate", up }, { "up", up }, { "down", down } } do
    add(ours .. part[1], theirs .. part[1] .. "_proj.weight", part[2][1], part[2][2])
    if facts.mlp_bias then
      add(ours .. part[1] .. "_bias", theirs .. part[1] .. "_proj.bias", part[2][1])
    end
  end
end

local mixtral_parts = { gate = "w1", up = "w3", down = "w2" }

local function expert_weights(facts, ours, theirs, add)
  local experts = facts.experts
  add(ours .. "router", theirs .. "gate.weight", experts.count, facts.dim)
  for e = 0, experts.count - 1 do
    for _, part in ipairs { "gate", "up", "down" } do
      local word = facts.family == "mixtral" and mixtral_parts[part] or part .. "_proj"
      local rows, cols = experts.hidden, facts.dim
      if part == "down" then rows, cols = cols, rows end
      add(("%sexperts.%d.%s"):format(ours, e, part),
        ("%sexperts.%d.%s.weight"):format(theirs, e, word), rows, cols)
    end
  end
  if not experts.shared then return end
  add(ours .. "bias", theirs .. "gate.e_score_correction_bias", experts.count)
  dense_weights(facts, ours .. "shared.", theirs .. "shared_experts.", add,
    experts.shared * experts.hidden)
end

--- All weights of a model, in the order of its layers: { ours, theirs, shape }.
---@param facts tidelock.HfFacts
---@param scopes? table[] # names of the modules of each layer, where a recipe chose its own
---@return { ours: string, theirs: string, shape: integer[] }[]
function names.of(facts, scopes)
  local list = {}
  local function add(ours, theirs, rows, cols)
    list[#list + 1] = { ours = ours, theirs = theirs, shape = { rows, cols } }
  end
  add("embed", "model.embed_tokens.weight", facts.vocab, facts.dim)
  for i = 1, facts.layers do
    local scope = scopes and scopes[i] or default_scopes(facts, i)
    local ours, theirs = ("layers.%d."):format(i - 1), ("model.layers.%d."):format(i - 1)
    local mixer, ffn = ours .. scope.mixer .. ".", ours .. scope.ffn .. "."
    add(mixer .. scope.mixer_norm .. ".gain", theirs .. "input_layernorm.weight", facts.dim)
    attention_weights(facts, mixer, theirs .. "self_attn.", add)
    add(ffn .. scope.ffn_norm .. ".gain", theirs .. "post_attention_layernorm.weight", facts.dim)
    if facts.sparse[i] then
      local block = facts.family == "mixtral" and "block_sparse_moe." or "mlp."
      expert_weights(facts, ffn, theirs .. block, add)
    else
      dense_weights(facts, ffn, theirs .. "mlp.", add)
    end
  end
  add((scopes and scopes.norm or "norm") .. ".gain", "model.norm.weight", facts.dim)
  if not facts.tied then add("head", "lm_head.weight", facts.vocab, facts.dim) end
  return list
end

return names
