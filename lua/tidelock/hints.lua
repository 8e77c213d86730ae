--- Keys that people bring from other programs, and what to write here.
--
-- Read by schema.lua when a key is unknown: the hint stands in the place of "did you mean".
local hints = {}

local tp = "write layout = { tp = .. }"
local pp = "write layout = { pp = .. }"
local ep = "write layout = { ep = .. }"
local cp = "write layout = { cp = .. }"
local dtype = "write dtype = \"bf16\" or \"f32\" at the top of the recipe"
local steps = "write train = { steps = .. }"
local clip = "write train = { clip = .. }"
local micro = "write batch = { micro = .. }, samples of a micro-batch on one rank"
local samples = "write batch = { samples = .. }, samples of a step over all ranks"
local length = "write batch = { length = .. }"
local lr = "write train = { lr = .. }, a number or { \"cosine\", peak = .., warmup = .. }"
local adamw = "write train = { optimizer = { \"adamw\", beta1 = .., beta2 = .., eps = .., "
  .. "decay = .. } }"
local capacity = "no token is ever dropped, so there is no capacity; leave it out"
local accumulation = "it follows from batch.samples / (layout.dp * batch.micro); leave it out"
local attention = "attention always runs in blocks and is exact: sizes are blocks = { "
  .. "attention = { q, kv } }"
local offload = "state stays beside its weight: moving it over PCIe each step costs more than "
  .. "any layout"
local precision = dtype .. "; f32 master weights come with bf16"

local known = {
  -- the articles
  parallel_mode = "write layout = { tp = .., dp = .. }; batches are always packed (tokens, "
    .. "heads, dim)",
  flash_attn_version = attention,
  flash_attention = attention,
  use_flash_attn = attention,
  use_flash_attention_2 = attention,
  attn_implementation = attention,
  sparse_attention_config = "sparse attention is not available in this version; nn.attention "
    .. "has window = ..",
  block_size_m = "write blocks = { attention = { q = .. } }",
  block_size_n = "write blocks = { attention = { kv = .. } }",
  recompute_kv = "sparse attention is not available in this version; leave it out",
  cu_seqlens = "segments come from the documents of the data; leave it out",
  num_gpus = "ranks are the product of layout = { tp, pp, dp }",
  world_size = "ranks are the product of layout = { tp, pp, dp }",
  max_autotune = "kernels are fixed; sizes are blocks = { gemm = { m, n, k } }",
  deterministic = "write policy = \"layout\": the same bits in every layout",
  batch_invariant = "write policy = \"batch\" or \"layout\"",
  seed = "write policy = { \"layout\", seed = .. }",
  sequence_parallel = "write layout = { sequence_parallel = .. }; it is on by default",
  -- Megatron-LM
  tensor_model_parallel_size = tp,
  tensor_parallel_size = tp,
  tensor_parallel = tp,
  tp_size = tp,
  pipeline_model_parallel_size = pp,
  pipeline_parallel_size = pp,
  pp_size = pp,
  data_parallel_size = "write layout = { dp = .. }",
  dp_size = "write layout = { dp = .. }",
  context_parallel_size = cp,
  expert_model_parallel_size = ep,
  expert_parallel_size = ep,
  ep_size = ep,
  virtual_pipeline_model_parallel_size = "write layout = { schedule = \"interleaved\", "
    .. "virtual_stages = .. }",
  num_layers_per_virtual_pipeline_stage = "write layout = { schedule = \"interleaved\", "
    .. "virtual_stages = .. }",
  use_distributed_optimizer = "write layout = { zero = .. }",
  recompute_granularity = "write train = { recompute = .. }",
  micro_batch_size = micro,
  global_batch_size = samples,
  seq_length = length,
  seq_len = length,
  max_position_embeddings = "write batch = { length = .. }; a learned table is nn.decoder { "
    .. "positions = .. }",
  num_layers = "write nn.decoder { layers = .. }",
  hidden_size = "write nn.decoder { dim = .. }",
  ffn_hidden_size = "write nn.swiglu { hidden = .. }",
  num_attention_heads = "write nn.attention { heads = .. }",
  num_query_groups = "write nn.attention { kv_heads = .. }",
  kv_channels = "write nn.attention { head_dim = .. }",
  num_experts = "write nn.moe { experts = .. }",
  moe_router_topk = "write nn.moe { top_k = .. }",
  normalization = "put nn.rms_norm {} or nn.layer_norm {} in the layer",
  untie_embeddings_and_output_weights = "write nn.decoder { tied = false }, the default",
  train_iters = steps,
  clip_grad = clip,
  adam_beta1 = adamw,
  adam_beta2 = adamw,
  adam_eps = adamw,
  min_lr = "write train = { lr = { \"cosine\", peak = .., floor = .. } }",
  lr_decay_style = lr,
  lr_warmup_iters = "write train = { lr = { \"cosine\", peak = .., warmup = .. } }",
  -- DeepSpeed
  zero_optimization = "write layout = { zero = .. }",
  zero_stage = "write layout = { zero = .. }",
  offload = offload,
  offload_optimizer = offload,
  offload_param = offload,
  cpu_offload = offload,
  train_batch_size = samples,
  train_micro_batch_size_per_gpu = micro,
  gradient_accumulation_steps = accumulation,
  gradient_clipping = clip,
  zero_allow_untested_optimizer = "an optimizer is an op with a contract: adamw; leave it out",
  activation_checkpointing = "write train = { recompute = .. }",
  stage3_gather_16bit_weights_on_model_save = "a run keeps "
    .. "weights.safetensors, in the dtype of each weight; leave it out",
  scheduler = lr,
  -- Hugging Face
  num_hidden_layers = "write nn.decoder { layers = .. }",
  intermediate_size = "write nn.swiglu { hidden = .. }",
  num_key_value_heads = "write nn.attention { kv_heads = .. }",
  vocab_size = "write nn.decoder { vocab = .. }",
  tie_word_embeddings = "write nn.decoder { tied = true }",
  rope_theta = "write nn.attention { rope = { base = .. } }",
  rope_scaling = "write nn.attention { rope = { scaling = { \"llama3\", factor = .. } } }",
  sliding_window = "write nn.attention { window = .. }",
  rms_norm_eps = "write nn.rms_norm { eps = .. }",
  layer_norm_eps = "write nn.layer_norm { eps = .. }",
  hidden_act = "put nn.swiglu or nn.gelu in the layer",
  attention_dropout = "the op attention has no dropout on probabilities; nn.residual has "
    .. "dropout = ..",
  hidden_dropout_prob = "write nn.residual { ..., dropout = .. }",
  num_experts_per_tok = "write nn.moe { top_k = .. }",
  num_local_experts = "write nn.moe { experts = .. }",
  capacity_factor = capacity,
  moe_expert_capacity_factor = capacity,
  drop_tokens = capacity,
  torch_dtype = dtype,
  bf16 = precision,
  fp16 = precision .. "; fp16 is not available, bf16 needs no loss scale",
  mixed_precision = precision,
  learning_rate = lr,
  lr = lr,
  lr_scheduler = lr,
  lr_scheduler_type = lr,
  warmup_steps = "write train = { lr = { \"cosine\", peak = .., warmup = .. } }",
  weight_decay = adamw,
  adam_epsilon = adamw,
  optimizer = adamw,
  max_grad_norm = clip,
  max_steps = steps,
  num_train_epochs = steps .. "; a step is batch.samples * batch.length tokens",
  epochs = steps .. "; a step is batch.samples * batch.length tokens",
  steps = steps,
  per_device_train_batch_size = micro,
  batch_size = samples,
  gradient_checkpointing = "write train = { recompute = .. }",
  logging_steps = "write log = { every = .. }",
  save_steps = "write train = { save = { every = .. } }",
  eval_steps = "write eval = { data = .., every = .., samples = .. }",
  label_smoothing = "write loss = { \"cross_entropy\", smoothing = .. }",
  label_smoothing_factor = "write loss = { \"cross_entropy\", smoothing = .. }",
  tokenizer = "tokens come from the data: tl.data.text reads bytes, tl.data.tokens token files",
}

--- What to write here in the place of the unknown key `key`, or nil. Case and dashes do not matter.
function hints.of(key)
  if type(key) ~= "string" then return nil end
  return known[(key:lower():gsub("-", "_"))]
end

--- All known keys, sorted.
function hints.keys()
  local keys = {}
  for key in pairs(known) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

return hints
