--- hf/latent.lua - what config.json of deepseek_v3 says beyond other families: latent attention,
--- and a router of sigmoids with groups and a bias.
---
---     q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim     facts.latent
---     n_routed_experts, n_shared_experts, n_group, topk_group, norm_topk_prob,      facts.experts
---     routed_scaling_factor, moe_intermediate_size, first_k_dense_replace
---
--- num_nextn_predict_layers counts layers behind the last one that guess further tokens: they
--- change nothing of what the model says about the next one. transformers leaves their tensors
--- aside, and so does this program. The losses of DeepSeek's training (aux_loss_alpha, seq_aux) are
--- no part of it either.
local latent = {}

--- Norms of latents have this epsilon in transformers, whatever rms_norm_eps is.
latent.eps = 1e-6

---@param r table # reader of hf/config.lua
---@param facts tidelock.HfFacts
function latent.read(r, facts)
  local nope = r:take("qk_nope_head_dim", "count", 128)
  local rope = r:take("qk_rope_head_dim", "count", 64)
  facts.latent = {
    q_rank = r:take("q_lora_rank", "count", false) or nil,
    kv_rank = r:take("kv_lora_rank", "count", 512), nope = nope, rope = rope,
    v = r:take("v_head_dim", "count", 128),
  }
  facts.head_dim = rope
  if nope and rope then
    r:only("head_dim", rope, "transformers keeps qk_rope_head_dim there")
    r:only("qk_head_dim", nope + rope, "it is qk_nope_head_dim + qk_rope_head_dim")
  else -- what is wrong with them has been said
    r:get "head_dim"
    r:get "qk_head_dim"
  end
  r:only("num_key_value_heads", facts.heads, "every head has keys of its own, made of the latent")
  local interleave = r:take("rope_interleave", "boolean", true)
  facts.rope.interleaved = interleave
  facts.further_layers = r:take("num_nextn_predict_layers", "whole", false) or nil
end

---@param r table # reader of hf/config.lua
---@param facts tidelock.HfFacts
function latent.read_experts(r, facts)
  facts.experts = {
    count = r:take("n_routed_experts", "count"), top_k = r:take("num_experts_per_tok", "count"),
    hidden = r:take("moe_intermediate_size", "count"),
    normalize = r:take("norm_topk_prob", "boolean", true),
    shared = r:take("n_shared_experts", "count", 1), groups = r:take("n_group", "count", 8),
    top_groups = r:take("topk_group", "count", 4),
    scale = r:take("routed_scaling_factor", "positive", 2.5),
  }
  local e = facts.experts
  if e.count and e.groups and e.count % e.groups ~= 0 then
    r:wrong("n_group", "it divides n_routed_experts %d", e.count)
  end
  r:only("topk_method", "noaux_tc")
  r:only("scoring_func", "sigmoid")
  r:only("moe_layer_freq", 1)
  r:only("output_router_logits", false, "an extra loss is asked for with balance")
  for _, key in ipairs { "aux_loss_alpha", "seq_aux", "ep_size", "num_local_experts" } do
    r:get(key)
  end
  local dense = r:take("first_k_dense_replace", "whole", 3)
  for i = 1, dense and facts.layers or 0 do facts.sparse[i] = i > dense end
end

--- Fields of a config.json that transformers loads.
function latent.write(facts, out)
  local l, e, dense = facts.latent, facts.experts, 0
  while dense < facts.layers and not facts.sparse[dense + 1] do dense = dense + 1 end
  out.q_lora_rank = l.q_rank or require("tidelock.core").json.null
  out.kv_lora_rank, out.v_head_dim = l.kv_rank, l.v
  out.qk_nope_head_dim, out.qk_rope_head_dim = l.nope, l.rope
  out.qk_head_dim, out.head_dim = l.nope + l.rope, l.rope
  out.rope_interleave, out.num_nextn_predict_layers = facts.rope.interleaved, 0
  out.first_k_dense_replace, out.attention_bias = dense, false
  out.n_routed_experts, out.n_shared_experts, out.num_experts_per_tok = e.count, e.shared, e.top_k
  out.moe_intermediate_size, out.norm_topk_prob = e.hidden, e.normalize
  out.n_group, out.topk_group, out.routed_scaling_factor = e.groups, e.top_groups, e.scale
  out.num_local_experts, out.sliding_window, out.use_sliding_window = nil, nil, nil
end

--- Weights of the attention, to add(ours, theirs, rows, columns).
function latent.weights(facts, ours, theirs, add)
  local l, heads = facts.latent, facts.heads
  local query = heads * (l.nope + l.rope)
  if l.q_rank then
    add(ours .. "q_a", theirs .. "q_a_proj.weight", l.q_rank, facts.dim)
    add(ours .. "q_norm.gain", theirs .. "q_a_layernorm.weight", l.q_rank)
    add(ours .. "q_b", theirs .. "q_b_proj.weight", query, l.q_rank)
  else
    add(ours .. "q", theirs .. "q_proj.weight", query, facts.dim)
  end
  add(ours .. "kv_a", theirs .. "kv_a_proj_with_mqa.weight", l.kv_rank + l.rope, facts.dim)
  add(ours .. "kv_norm.gain", theirs .. "kv_a_layernorm.weight", l.kv_rank)
  add(ours .. "kv_b", theirs .. "kv_b_proj.weight", heads * (l.nope + l.v), l.kv_rank)
  add(ours .. "o", theirs .. "o_proj.weight", facts.dim, heads * l.v)
end

--- Options of nn.mla.
function latent.attention_options(facts)
  local l = facts.latent
  return {
    heads = facts.heads, q_rank = l.q_rank, kv_rank = l.kv_rank, nope_dim = l.nope,
    rope_dim = l.rope, v_dim = l.v, eps = latent.eps,
    rope = {
      base = facts.rope.base, interleaved = facts.rope.interleaved, scaling = facts.rope.scaling,
    },
  }
end

--- Options of nn.moe. The bias of the file chooses and stays as it is: `speed` moves it.
function latent.expert_options(facts, speed)
  local e = facts.experts
  return {
    experts = e.count, top_k = e.top_k, hidden = e.hidden, shared = e.shared,
    router = {
      "sigmoid", groups = e.groups, top_groups = e.top_groups, scale = e.scale,
      normalize = e.normalize,
    },
    balance = { "bias", speed or 0 },
  }
end

--- Whether a tensor is of the layers that guess further tokens.
function latent.is_further(facts, name)
  local layer = math.tointeger(tonumber(name:match "^model%.layers%.(%d+)%."))
  return facts.further_layers ~= nil and layer ~= nil and layer >= facts.layers
    and layer < facts.layers + facts.further_layers
end

return latent
