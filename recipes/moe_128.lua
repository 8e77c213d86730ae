-- moe_128.lua - 128 experts of a model of width 4096, samples of 512 tokens, 1 to 64 of them in a
-- step. For eight ranks: tp 8 takes any number of samples.
local tl = require "tidelock"
local nn = tl.nn
local p = tl.params { samples = 64, layers = 2, dim = 4096, hidden = 1024 }

local function layer()
  local experts = nn.moe {
    experts = 128, top_k = 8, hidden = p.hidden,
    balance = { "loss", weight = 0.001 },
  }
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 32, kv_heads = 8 } },
    nn.residual { nn.rms_norm {}, experts },
  }
end

return tl.recipe {
  model  = nn.decoder { vocab = 32000, dim = p.dim, layers = p.layers, layer = layer },
  dtype  = "bf16",
  data   = tl.data.tokens { "data/web/*.bin", dtype = "uint16", eos = 2 },
  batch  = { samples = p.samples, micro = p.samples < 8 and p.samples or 8, length = 512 },
  layout = { tp = 8, ep = 8 },
  blocks = { moe = { waves = 4 } },
  policy = { "layout", leaves = { tp = 8, dp = 8 } },
  train  = { steps = 10000, lr = { "cosine", peak = 3e-4, floor = 3e-5, warmup = 500 },
    clip = 1.0 },
}
