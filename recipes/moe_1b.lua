-- moe_1b.lua - 64 experts, 6 of them and a shared one per token; no auxiliary loss.
local tl = require "tidelock"
local nn = tl.nn
local p = tl.params { layers = 16, dim = 1024, hidden = 320, dense = 2816 }

local function layer(i)
  local experts = nn.moe {
    experts = 64, top_k = 6, hidden = p.hidden, shared = 1,
    router  = { "sigmoid", groups = 8, top_groups = 4, scale = 2.5 },
    balance = { "bias", speed = function(step) return step < 30000 and 1e-3 or 0 end },
  }
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 16, kv_heads = 4 } },
    -- the first layer is dense
    nn.residual { nn.rms_norm {}, i == 1 and nn.swiglu { hidden = p.dense } or experts },
  }
end

return tl.recipe {
  model  = nn.decoder { vocab = 32000, dim = p.dim, layers = p.layers, layer = layer },
  dtype  = "bf16",
  data   = tl.data.tokens { "data/web/*.bin", dtype = "uint16", eos = 2 },
  batch  = { samples = 256, micro = 8, length = 2048 },
  layout = { dp = 8, ep = 8 },
  blocks = { moe = { waves = 4 } },
  train  = { steps = 40000, lr = { "cosine", peak = 4e-4, floor = 4e-5, warmup = 1000 },
    clip = 1.0 },
  log    = { watch = { "layers.*.moe.bias:max" } }, -- loads are in the log of every step
}
