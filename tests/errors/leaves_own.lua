-- R18: under batch the leaves are the layout's own.
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
  batch = { samples = 6, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  layout = { dp = 3 }, -- error: layout.dp: dp 3 is not a power of two, and trees add pairs (its
                       --   leaves are the layout's own); try dp = 2 or 4
  policy = "batch",
}
