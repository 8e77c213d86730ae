-- Keys from other programs get a hint.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, length = 32, micro_batch_size = 2 },
  -- error: batch.micro_batch_size: no such key; write batch = { micro = .. }, samples of a
  --   micro-batch on one rank
  train = { steps = 10, lr = 1e-3, learning_rate = 1e-3, weight_decay = 0.1 },
  -- error: train.learning_rate: no such key; write train = { lr = .. }, or train = { lr = {
  --   "cosine", peak = .., floor = .., warmup = .. } }
  -- error: train.weight_decay: no such key; write train = { optimizer = { "adamw", decay = .. } }
  parallel_mode = "thd", -- error: parallel_mode: no such key; documents are always packed, and
                         --   attention and positions restart at each; leave it out
  flash_attn_version = "2.0", -- error: flash_attn_version: no such key; attention always runs in
                              --   blocks and is exact; sizes are blocks = { attention = { q = ..,
                              --   kv = .. } }
  sparse_attention_config = { top_k = 128 },
  -- error: sparse_attention_config: no such key; sparse attention is not available in this
  --   version; write nn.attention { window = .. }
  tensor_model_parallel_size = 2, -- error: tensor_model_parallel_size: no such key; write layout
                                  --   = { tp = .. }
  zero_optimization = { stage = 3 }, -- error: zero_optimization: no such key; ZeRO is not
                                     --   available in this version; to save memory write layout
                                     --   = { tp = .. }, or batch = { micro = .. }
  offload = true, -- error: offload: no such key; state stays beside its weight: moving it each
                  --   step costs more than any layout; leave it out
  layout = { pipeline_model_parallel_size = 2 },
  -- error: layout.pipeline_model_parallel_size: no such key; write layout = { pp = .. }
}
