-- R12: micro divides the samples of a rank.
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
  batch = { samples = 8, micro = 3, length = 32 },
  -- error: batch.micro: micro 3 does not divide 4, the samples of a rank
  --   (tests/errors/micro.lua:15); try micro = 2 or 4
  train = { steps = 10, lr = 1e-3 },
  layout = { dp = 2 },
}
