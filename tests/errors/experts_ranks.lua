-- R2: ep folds over tp x dp.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.moe { experts = 8, top_k = 2, hidden = 64 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  layout = { dp = 2, ep = 4 },
  -- error: layout.ep: ep 4 does not divide tp 1 * dp 2 = 2; allowed: 1, 2, or a larger dp
}
