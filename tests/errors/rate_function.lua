-- A rate is a number for every step.
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
  train = { steps = 10, lr = function(step) return step < 5 and 1e-3 end },
  -- error: train.lr: gave false for step 5; expected a number, 0 or more
}
