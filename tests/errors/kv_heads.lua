-- R6: tp divides the kv heads, or a multiple of them.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 12, kv_heads = 6, head_dim = 8 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  layout = { tp = 4 }, -- error: layout.tp: tp 4 does not divide kv_heads 6
                       --   (tests/errors/kv_heads.lua:7); allowed: 1, 2, 3, 6 (or a multiple of
                       --   6); try tp = 2
}
