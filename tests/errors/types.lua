-- Wrong types say what was expected and what was there.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = "16" } },
    -- error: nn.attention.heads: expected a positive integer, got "16"
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 1.5, lr = "fast", clip = 0 },
  -- error: train.clip: expected a number above 0, got 0
  -- error: train.lr: "fast" is not known; allowed: "constant", "cosine", "warmup_stable_decay",
  --   a number or a function
  -- error: train.steps: expected a positive integer, got 1.5
  dtype = "fp32", -- error: dtype: "fp32" is not known; allowed: "f32", "bf16"; try "f32"
  device = 1, -- error: device: 1 is not known; allowed: "host", "cuda"
  layout = { tp = "2", sequence_parallel = 1 },
  -- error: layout.sequence_parallel: expected true or false, got 1
  -- error: layout.tp: expected a positive integer, got "2"
}
