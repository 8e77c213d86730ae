-- R12: the held-out samples fill whole micro-batches.
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
  train = { steps = 10, lr = 1e-3 },
  eval  = { data = tl.data.text { "LICENSE" }, samples = 7 },
  -- error: eval.samples: samples 7 is not a multiple of dp 1 * micro 2 = 2; try samples = 8
}
