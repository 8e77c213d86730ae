--- Keys that people bring from other programs, and what to write here.
--
-- Read where a key is unknown: the hint stands in the place of "did you mean". A hint is
--
--     text      what the message says
--     codes     pieces of recipe (or options, "--runs DIR") in the text that are accepted as they
--               stand; ".." is a value of one's own
--     refused   pieces that would be the answer, but for the operators that this version lacks
--
-- tests/spec/hints_spec.lua applies every piece to a recipe: what is in codes has to plan, what is
-- in refused has to be refused. So a hint cannot point to a closed door, and one that says "not
-- available" cannot outlive the day on which it is.
local hints = {}

--- A text with one %s for each code.
local function say(text, ...) return { text = text:format(...), codes = { ... } } end

local function write(code, more) return say("write %s" .. (more or ""), code) end

--- Nothing has to be written: the reason says why.
local function none(reason) return say(reason .. "; leave it out") end

--- `what` is not available in this version, as `code` would ask for; the rest as in `say`.
local function missing(code, what, ...)
  local hint = say(...)
  hint.text = what .. " not available in this version; " .. hint.text
  hint.refused = { code }
  return hint
end

local layout = "layout = { tp = .., pp = .., dp = .. }"
local optimizer = "train = { optimizer = { \"adamw\", beta1 = .., beta2 = .., eps = .., decay = .. "
  .. "} }"
local decay = "train = { optimizer = { \"adamw\", decay = .. } }"
local cosine = "train = { lr = { \"cosine\", peak = .., floor = .., warmup = .. } }"
local stable = "train = { lr = { \"warmup_stable_decay\", peak = .., warmup = .., decay = .. } }"
local eval = "eval = { data = held, every = .., samples = .. }"
local text = "data = tl.data.text { \"FILE\" }"
local tokens = "data = tl.data.tokens { \"FILE\", dtype = \"uint16\", eos = .. }"
local model = "model = nn.decoder { vocab = .., dim = .., layers = .., layer = layer }"
local a_step = "; a step is batch.samples * batch.length tokens"

local function memory(what, code)
  return missing(code, what, "to save memory write %s, or %s", "layout = { tp = .. }",
    "batch = { micro = .. }")
end

-- The model ---------------------------------------------------------------------------------------

local of_model = {
  { write "nn.decoder { vocab = .. }", "vocab vocab_size padded_vocab_size n_vocab" },
  { none "the vocabulary is padded inside, to a multiple of 16 x leaves.tp",
    "make_vocab_size_divisible_by pad_vocab_size_multiple_of" },
  { write "nn.decoder { dim = .. }", "dim d_model hidden_size hidden_dim n_embd embed_dim width" },
  { write "nn.decoder { layers = .. }",
    "layers num_layers n_layer n_layers num_hidden_layers depth encoder_num_layers" },
  { write "nn.attention { heads = .. }",
    "heads num_attention_heads n_head n_heads num_heads attention_heads" },
  { write "nn.attention { kv_heads = .. }",
    "kv_heads num_key_value_heads num_query_groups n_kv_heads n_kv_head num_kv_heads "
    .. "group_query_attention multi_query_attention" },
  { write "nn.attention { head_dim = .. }", "head_dim kv_channels head_size d_head" },
  { write "nn.mla { heads = .., kv_rank = .., nope_dim = .., rope_dim = .. }",
    "kv_lora_rank multi_latent_attention mla use_mla qk_nope_head_dim qk_rope_head_dim qk_head_dim "
    .. "qk_pos_emb_head_dim" },
  { write "nn.mla { heads = .., q_rank = .., kv_rank = .., nope_dim = .., rope_dim = .. }",
    "q_lora_rank" },
  { write "nn.mla { heads = .., kv_rank = .., nope_dim = .., rope_dim = .., v_dim = .. }",
    "v_head_dim" },
  { write "nn.attention { window = .. }",
    "window sliding_window use_sliding_window window_size attention_window" },
  { write "nn.attention { qk_norm = true }",
    "qk_layernorm use_qk_norm qk_layer_norm use_qk_layernorm" },
  { write "nn.attention { bias = true }", "attention_bias add_qkv_bias qkv_bias use_bias bias" },
  { write "nn.swiglu { hidden = .., bias = true }",
    "mlp_bias add_bias_linear disable_bias_linear bias_swiglu_fusion" },
  { write "nn.swiglu { hidden = .. }",
    "hidden intermediate_size ffn_hidden_size ffn_dim d_ff n_inner mlp_dim feed_forward_dim" },
  { write("nn.swiglu { hidden = .. }", ", the number that it comes to"),
    "mlp_ratio multiple_of ffn_dim_multiplier" },
  { say("put %s or %s in the layer", "nn.swiglu { hidden = .. }", "nn.gelu { hidden = .. }"),
    "hidden_act hidden_activation activation_function activation swiglu gelu gated_linear_unit" },
  { say("put %s or %s in the layer", "nn.rms_norm {}", "nn.layer_norm {}"),
    "normalization norm norm_type norm_name rms_norm layer_norm" },
  { write "nn.rms_norm { eps = .. }", "rms_norm_eps rmsnorm_eps norm_eps norm_epsilon" },
  { write "nn.layer_norm { eps = .. }",
    "layer_norm_eps layer_norm_epsilon layernorm_epsilon layernorm_eps" },
  { write "nn.decoder { tied = true }",
    "tied tie_word_embeddings tie_embeddings weight_tying share_embeddings_and_output_weights" },
  { write("nn.decoder { tied = false }", ", the default"), "untie_embeddings_and_output_weights" },
  { write "nn.attention { rope = { base = .. } }", "rope rope_theta rotary_base rope_base" },
  { write("nn.attention { rope = { dim = .. } }", ", the channels of a head that turn"),
    "rotary_percent partial_rotary_factor rotary_dim rotary_pct" },
  { write("nn.attention { rope = { scaling = { \"llama3\", factor = .., original = .. } } }"),
    "rope_scaling rope_scaling_factor rope_type original_max_position_embeddings" },
  { say("write %s, the default, or for a learned table %s", "nn.attention { rope = true }",
    "nn.decoder { positions = .. }"),
    "position_embedding_type use_rotary_position_embeddings pos_emb positional_embedding" },
  { say("write %s; a learned table is %s", "batch = { length = .. }",
    "nn.decoder { positions = .. }"), "max_position_embeddings n_positions n_ctx positions" },
  { say("the op attention has no dropout on probabilities; write %s",
    "nn.residual { ..., dropout = .. }"), "attention_dropout attn_pdrop attn_dropout" },
  { write "nn.residual { ..., dropout = .. }",
    "hidden_dropout hidden_dropout_prob resid_pdrop resid_dropout dropout dropout_prob" },
  { write "nn.decoder { dropout = .. }", "embd_pdrop embedding_dropout" },
  { write("weights = { { \"*.q\", \"*.k\", \"*.v\", \"*.o\", init = .. } }",
    ", and so on for other names; matrices start with std 0.02"),
    "initializer_range init_method_std init_std initializer_std init_method init_scheme" },
  { write "weights = { { \"embed\", frozen = true } }",
    "freeze frozen freeze_layers requires_grad" },
  { say("a model is written out: %s, or read from a folder by nn.from_hf", model),
    "base_model model_name model_name_or_path model_type architectures architecture flavor "
    .. "model_config pretrained_model_name_or_path" },
  { say("attention always runs in blocks and is exact; sizes are %s",
    "blocks = { attention = { q = .., kv = .. } }"),
    "flash_attn_version flash_attention flash_attn use_flash_attn use_flash_attention "
    .. "use_flash_attention_2 attn_implementation attention_backend attn_impl sdp_attention "
    .. "xformers_attention use_sdpa transformer_impl memory_efficient_attention" },
  { say("sparse attention is not available in this version; write %s",
    "nn.attention { window = .. }"), "sparse_attention_config sparse_attention recompute_kv" },
  { write "blocks = { attention = { q = .. } }", "block_size_m block_m block_q" },
  { write "blocks = { attention = { kv = .. } }", "block_size_n block_n block_kv block_k" },
  { none "a run trains and keeps no cache of keys and values", "use_cache kv_cache" },
}

-- Data and batch ----------------------------------------------------------------------------------

local of_data = {
  { write "batch = { length = .. }",
    "length seq_length seq_len sequence_length sequence_len max_seq_len max_seq_length max_length "
    .. "context_length context_size block_size cutoff_len encoder_seq_length model_max_length" },
  { write("batch = { micro = .. }", ", samples of a micro-batch on one rank"),
    "micro_batch_size train_micro_batch_size_per_gpu per_device_train_batch_size "
    .. "per_device_batch_size local_batch_size device_batch_size num_micro_batches "
    .. "num_microbatches pipeline_parallel_microbatch_size" },
  { write("batch = { samples = .. }", ", samples of a step over all ranks"),
    "global_batch_size train_batch_size batch_size total_batch_size rampup_batch_size" },
  { none "it follows from batch.samples / (layout.dp * batch.micro)",
    "gradient_accumulation_steps grad_accum_steps accumulate_grad_batches gradient_accumulation "
    .. "accumulation_steps" },
  { say("write %s for bytes, or %s for ids", text, tokens),
    "data_path train_data_path data_dir dataset datasets dataset_path dataset_name dataset_dir "
    .. "train_file train_files corpus dataset_text_field train_data" },
  { say("tokens come from the data: %s reads bytes, %s the ids of a tokenizer", text, tokens),
    "tokenizer tokenizer_type tokenizer_name tokenizer_path tokenizer_model vocab_file merge_file "
    .. "hf_assets_path" },
  { write(tokens), "eos eos_token_id eod_token_id eot_token data_dtype" },
  { none "nothing is padded",
    "pad_token_id bos_token_id pad_to_sequence_len padding padding_side pad_to_multiple_of "
    .. "group_by_length attention_mask" },
  { none "documents are always packed, and attention and positions restart at each",
    "packing sample_packing eval_sample_packing neat_packing reset_position_ids "
    .. "reset_attention_mask eod_mask_loss cu_seqlens parallel_mode" },
  { none "files are mapped, and nothing is loaded ahead",
    "num_workers dataloader_num_workers dataloader_pin_memory dataloader_drop_last "
    .. "dataloader_prefetch_factor pin_memory prefetch_factor preprocessing_num_workers "
    .. "remove_unused_columns overwrite_cache mmap_warmup" },
  { say("write local train, held = tl.data.text { .. }:split(0.99), then %s", eval),
    "split val_set_size validation_split eval_steps eval_interval eval_iters eval_every "
    .. "evals_per_epoch eval_strategy evaluation_strategy per_device_eval_batch_size "
    .. "eval_batch_size do_eval val_data_path eval_file validation_file" },
}

-- Training ----------------------------------------------------------------------------------------

local of_training = {
  { write "train = { steps = .. }",
    "steps max_steps max_iters train_iters total_steps num_steps num_iterations training_steps" },
  { write("train = { steps = .. }", a_step),
    "epochs num_epochs num_train_epochs max_epochs train_samples train_tokens total_tokens "
    .. "max_tokens" },
  { say("write %s, or %s", "train = { lr = .. }", cosine),
    "lr learning_rate max_lr base_lr peak_lr lr_scheduler lr_scheduler_type lr_scheduler_kwargs "
    .. "lr_decay_style scheduler lr_schedule decay_lr decay_type" },
  { write(cosine, "; warmup is in steps"),
    "warmup_steps warmup_iters warmup_ratio lr_warmup_iters lr_warmup_steps lr_warmup_fraction "
    .. "warmup_tokens lr_warmup_samples num_warmup_steps" },
  { write(cosine, "; floor is a rate, not a part of peak"),
    "min_lr lr_min min_lr_ratio min_lr_rate cosine_min_lr_ratio lr_end" },
  { write("train = { lr = { \"cosine\", peak = .., steps = .. } }", ", the step of the floor"),
    "lr_decay_iters lr_decay_samples lr_decay_steps" },
  { write(stable), "lr_wsd_decay_iters lr_wsd_decay_style stable_steps decay_steps decay_ratio" },
  { write(optimizer),
    "optimizer optim optimizer_type optim_args beta1 beta2 betas adam_beta1 adam_beta2 adam_eps "
    .. "adam_epsilon adam_w_mode adamw" },
  { write(decay), "weight_decay decay" },
  { none "an optimizer is an op with a contract, and it is chosen ahead",
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer fused foreach "
    .. "early_step_in_backward use_fused_adam" },
  { write "train = { clip = .. }",
    "grad_clip clip_grad clip_grad_norm max_grad_norm max_norm gradient_clipping gradient_clip_val "
    .. "gradient_clip_norm" },
  { write "loss = { \"cross_entropy\", smoothing = .. }",
    "label_smoothing label_smoothing_factor" },
  { write "loss = { \"cross_entropy\", z = .. }", "z_loss z_loss_coeff z_loss_weight" },
  { write "dtype = \"bf16\"", "torch_dtype bf16 precision mixed_precision_param param_dtype "
    .. "model_dtype bf16_full_eval autocast amp" },
  { write("dtype = \"bf16\"", "; f32 master weights and sums come with it"),
    "mixed_precision mixed_precision_reduce master_weights attention_softmax_in_fp32 "
    .. "accumulate_allreduce_grads_in_fp32 communication_data_type grad_reduce_in_fp32" },
  { say("fp16 is not available; write %s, which needs no loss scale", "dtype = \"bf16\""),
    "fp16 fp16_opt_level half_precision half_precision_backend float16" },
  { say("fp8 is not available; write %s", "dtype = \"bf16\""),
    "fp8 fp8_format enable_float8_linear float8 fp8_recipe" },
  { none "f32 is computed as f32", "tf32 allow_tf32 float32_matmul_precision" },
  { none "bf16 reaches as far as f32 and needs no loss scale",
    "initial_loss_scale loss_scale_window dynamic_loss_scale min_loss_scale hysteresis" },
  { none "quantization and adapters are not available in this version",
    "load_in_8bit load_in_4bit quantization quantization_bit quantization_config adapter lora "
    .. "lora_r lora_rank lora_alpha lora_dropout lora_target lora_target_modules finetuning_type "
    .. "peft_config" },
  { none "kernels are compiled and chosen ahead",
    "compile torch_compile torch_compile_backend torch_compile_mode max_autotune cuda_graph "
    .. "use_liger_kernel liger_kernel enable_liger_kernel unsloth use_unsloth "
    .. "gradient_accumulation_fusion masked_softmax_fusion bias_gelu_fusion cudnn_benchmark "
    .. "triton autotune" },
  { write "policy = { \"layout\", seed = .. }", "seed random_seed manual_seed data_seed" },
  { write("policy = \"layout\"", ": the same bits in every layout"),
    "deterministic deterministic_mode full_determinism use_deterministic_algorithms "
    .. "batch_invariant deterministic_algorithms" },
}

-- Layouts -----------------------------------------------------------------------------------------

local of_layouts = {
  { write "layout = { tp = .. }",
    "tensor_model_parallel_size tensor_parallel_size tensor_parallel_degree tensor_parallel "
    .. "tp_size tp_degree pretraining_tp model_parallel_size mp_size" },
  { write "layout = { pp = .. }",
    "pipeline_model_parallel_size pipeline_parallel_size pipeline_parallel_degree "
    .. "pipeline_parallel pp_size pp_degree num_stages" },
  { write "layout = { dp = .. }",
    "data_parallel_size data_parallel_degree data_parallel_replicate_degree data_parallel "
    .. "dp_size dp_degree ddp" },
  { write "layout = { pp = .., schedule = \"interleaved\", virtual_stages = .. }",
    "virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage "
    .. "num_virtual_stages_per_pipeline_rank pipeline_parallel_layers_per_stage" },
  { write("layout = { pp = .., schedule = \"1f1b\" }",
    "; also \"gpipe\", \"interleaved\", \"zb-h1\""),
    "pipeline_parallel_schedule pipeline_schedule" },
  { write("layout = { pp = 2, stages = { 2, 2 } }", ", layers of each stage"),
    "pipeline_parallel_split_points num_layers_in_first_pipeline_stage split_points "
    .. "num_layers_in_last_pipeline_stage decoder_first_pipeline_num_layers pipeline_layout" },
  { write("layout = { sequence_parallel = true }", ", the default"),
    "sequence_parallel enable_sequence_parallel" },
  { say("ranks are the product of %s", layout),
    "world_size num_gpus n_gpu gpus devices num_devices nnodes num_nodes nproc_per_node "
    .. "num_processes local_rank strategy parallel parallelism distributed deepspeed "
    .. "deepspeed_config accelerate ddp_config" },
  { missing("layout = { cp = 2 }", "context parallelism is", "write %s for long samples",
    "layout = { tp = .. }"),
    "context_parallel_size context_parallel_degree context_parallel cp_size cp_comm_type "
    .. "ulysses_sequence_parallel_size ring_attention sequence_parallel_size" },
  { memory("ZeRO is", "layout = { zero = 1 }"),
    "zero_optimization zero_stage zero_config use_distributed_optimizer fsdp fsdp_config "
    .. "fully_shard sharding_strategy data_parallel_shard_degree fsdp_reshard_after_forward "
    .. "stage3_max_live_parameters stage3_max_reuse_distance stage3_prefetch_bucket_size "
    .. "stage3_param_persistence_threshold sub_group_size partition_activations" },
  { memory("recomputation is", "train = { recompute = true }"),
    "recompute recompute_granularity recompute_method recompute_num_layers recompute_activations "
    .. "gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing "
    .. "activation_checkpoint selective_ac_option checkpoint_activations cpu_checkpointing" },
  { none "state stays beside its weight: moving it each step costs more than any layout",
    "offload offload_optimizer offload_param offload_params cpu_offload enable_cpu_offload "
    .. "optimizer_offload optimizer_cpu_offload nvme_path" },
  { none "messages are planned with the step, and no bit depends on their order",
    "overlap_comm overlap_grad_reduce overlap_param_gather tp_comm_overlap reduce_scatter "
    .. "enable_async_tensor_parallel enable_loss_parallel contiguous_gradients bucket_cap_mb "
    .. "reduce_bucket_size allgather_bucket_size allgather_partitions round_robin_gradients "
    .. "prescale_gradients gradient_predivide_factor ddp_bucket_cap_mb align_grad_reduce "
    .. "ddp_find_unused_parameters ddp_backend distributed_backend backend nccl_timeout "
    .. "stage3_gather_16bit_weights_on_model_save sparse_gradients comm_overlap" },
  { none "a rank that is stuck ends the run by itself",
    "ddp_timeout distributed_timeout_minutes timeout elasticity" },
}

-- Running -----------------------------------------------------------------------------------------

local of_running = {
  { write "log = { every = .. }",
    "logging_steps log_interval log_every log_every_n_steps steps_per_print print_freq log_freq "
    .. "logging_strategy" },
  { say("behind the command write %s: a record a step", "--jsonl FILE"),
    "report_to wandb wandb_project wandb_log wandb_name tensorboard tensorboard_dir logging_dir "
    .. "csv_monitor monitor mlflow enable_tensorboard enable_wandb plot_loss" },
  { say("behind the command write %s: run folders are kept there", "--runs DIR"),
    "output_dir out_dir save_dir dump_folder checkpoint_dir overwrite_output_dir default_root_dir "
    .. "run_name" },
  { say("behind the command write %s; no bit depends on it", "--threads N"),
    "num_threads omp_num_threads cpu_threads threads" },
  { write "train = { save = { every = .., keep = .. } }",
    "save save_steps save_interval save_strategy save_every save_freq saves_per_epoch "
    .. "save_total_limit checkpoint checkpointing always_save_checkpoint" },
  { write("weights = { { \"*\", from = \"DIR\" } }", ", the folder of an earlier run"),
    "load init_from resume resume_from_checkpoint pretrained_checkpoint checkpoint_path "
    .. "load_checkpoint finetune ckpt_path initial_load_path" },
  { write "device = \"host\"", "use_cpu no_cuda cpu accelerator" },
  { none "a recipe describes one training run, and keeps it on this machine",
    "do_train do_predict push_to_hub hub_model_id hub_token trust_remote_code template "
    .. "special_tokens chat_template eval_only predict_with_generate" },
  { none "the column mfu shows how much of the machine is used, and ./tl bench measures it",
    "wall_clock_breakdown flops_profiler enable_profiling profile profiler comms_logger "
    .. "dump_state autotuning" },
}

-- Experts -----------------------------------------------------------------------------------------

local moe = "nn.moe { experts = .., top_k = .., hidden = .. }"

local of_experts = {
  { write(moe),
    "experts num_experts num_local_experts n_routed_experts num_moe_experts moe top_k "
    .. "num_experts_per_tok moe_router_topk moe_top_k moe_intermediate_size moe_ffn_hidden_size "
    .. "first_k_dense_replace moe_layer_freq decoder_sparse_step norm_topk_prob scoring_func "
    .. "n_group topk_group topk_method routed_scaling_factor router_aux_loss_coef "
    .. "moe_aux_loss_coeff moe_z_loss_coeff moe_router_load_balancing_type output_router_logits "
    .. "n_shared_experts shared_expert_intermediate_size moe_shared_expert_intermediate_size "
    .. "moe_grouped_gemm moe_token_dispatcher_type moe_permute_fusion" },
  { write("layout = { dp = .., ep = .. }", "; ep spreads experts over tp x dp"),
    "expert_model_parallel_size expert_parallel_size expert_parallel_degree ep_size "
    .. "expert_tensor_parallel_size moe_expert_parallel_size" },
  { none "no token is ever dropped, so there is no capacity",
    "capacity_factor eval_capacity_factor min_capacity moe_expert_capacity_factor drop_tokens "
    .. "moe_token_drop_policy moe_pad_expert_input_to_capacity" },
}

local known, names = {}, {}
for _, group in ipairs { of_model, of_data, of_training, of_layouts, of_running, of_experts } do
  for _, row in ipairs(group) do
    for key in row[2]:gmatch "%S+" do
      assert(known[key] == nil, key)
      known[key] = row[1]
      names[#names + 1] = key
    end
  end
end
table.sort(names)

local function find(key)
  return type(key) == "string" and known[(key:lower():gsub("-", "_"))] or nil
end

--- What to write here in the place of the unknown key `key`, or nil. Case and dashes do not matter.
function hints.of(key)
  local hint = find(key)
  return hint and hint.text
end

--- The same for a word on the command line: "write layout.tp=.." where one field is the answer.
function hints.on_command_line(key)
  local hint = find(key)
  if not hint then return nil end
  local section, field = (hint.codes[1] or ""):match "^(%w+) = { ([%w_]+) = %.%. }$"
  if section and hint.text:sub(1, 6) == "write " then
    return ("write %s.%s=.. (in a recipe: %s)"):format(section, field, hint.codes[1])
  end
  return hint.text
end

--- The pieces of recipe of a key's hint: those that are accepted and those that are refused.
function hints.pieces(key)
  local hint = find(key)
  return hint.codes, hint.refused or {}
end

--- All known keys, sorted.
function hints.keys() return table.move(names, 1, #names, 1, {}) end

return hints
