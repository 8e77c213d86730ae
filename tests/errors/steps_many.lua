-- The key of a run lists the rates of its steps.
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
  train = { steps = 16777217, lr = 1e-3 },
  -- error: train.steps: steps 16777217 is above 16777216, the most whose learning rates the key
  --   of a run can list; try steps = 16777216, and --stop-at N ends it earlier
}
