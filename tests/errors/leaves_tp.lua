-- R18: ranks own whole leaves; leaves never grow by themselves.
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
  layout = { tp = 8, sequence_parallel = true },
  -- error: layout.tp: tp 8 does not divide leaves.tp 4 (tests/errors/leaves_tp.lua:12); allowed:
  --   1, 2, 4; try tp = 4; policy.leaves.tp=8 fits (another key)
}
