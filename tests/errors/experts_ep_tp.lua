-- R3: where no ep fits experts and tp, tp is what can be another one.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.moe { experts = 5, top_k = 2, hidden = 64 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  layout = { tp = 2 },
  -- error: layout.ep: ep 2 does not divide experts 5 (tests/errors/experts_ep_tp.lua:8); allowed:
  --   another tp than 2, or layout.experts = a list of ranks by expert
}
