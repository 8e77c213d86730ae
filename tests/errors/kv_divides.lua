-- A kv head serves whole query heads.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 3 } },
    -- error: nn.attention.kv_heads: kv_heads 3 does not divide heads 8; allowed: 1, 2, 4, 8
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
