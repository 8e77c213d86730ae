-- One warm-up.
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
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, warmup = 3, lr = { "cosine", peak = 1e-3, floor = 1e-2 } },
  -- error: train.lr.floor: floor 0.01 is above peak 0.001
  -- error: train.warmup: lr = { "cosine", .. } has a warmup of its own; write it there
}
