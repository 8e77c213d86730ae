-- R7: tp divides the feed-forward width.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 90 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  layout = { tp = 4 }, -- error: layout.tp: tp 4 does not divide hidden 90
                       --   (tests/errors/hidden.lua:8); allowed: 1, 2, 3, 5, 6, 9, 10, 15, ..,
                       --   90, or hidden = 88 or 92; try tp = 2
}
