-- R1: the product of the axes is the number of ranks.
-- ranks: 16
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
  layout = { tp = 2, pp = 2 }, -- error: layout: tp 2 * cp 1 * pp 2 * dp 1 = 4, but the world has
                               --   16 ranks; allowed: dp = 4 or tp = 8 or pp = 8; try dp = 4
  policy = { "layout", leaves = { dp = 8 } },
}
