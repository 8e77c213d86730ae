-- R18: the same for dp.
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
  layout = { dp = 4 }, -- error: layout.dp: dp 4 does not divide leaves.dp 2
                       --   (tests/errors/leaves_dp.lua:20); allowed: 1, 2; try dp = 2;
                       --   policy.leaves.dp=4 fits (another key)
  policy = { "layout", leaves = { dp = 2 } },
}
