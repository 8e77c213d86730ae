-- R14: tokens of a sample are routed by the rank that has them.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.moe { experts = 8, top_k = 2, hidden = 64 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  layout = { tp = 2, sequence_parallel = false },
  -- error: layout.sequence_parallel: experts with tp 2 need it: each rank routes its own run
  --   of every sample; leave it out
}
