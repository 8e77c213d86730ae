-- R12: dp divides the samples.
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
  batch = { samples = 6, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  layout = { dp = 4 }, -- error: layout.dp: dp 4 does not divide batch.samples 6
                       --   (tests/errors/samples.lua:15); allowed: 1, 2, 3, 6; try dp = 2
}
