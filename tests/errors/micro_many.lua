-- R12: a step has so many micro-batches.
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
  batch = { samples = 1000000007, micro = 1, length = 32 },
  -- error: batch.micro: micro 1 makes 1000000007 micro-batches of a rank's 1000000007 samples;
  --   with 4 layers a step can have 262144; try a larger micro, or fewer samples
  train = { steps = 10, lr = 1e-3 },
}
