-- R5: tp divides the heads; R18: and the leaves.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  layout = { tp = 3, sequence_parallel = false },
  -- error: layout.tp: tp 3 does not divide heads 8 (tests/errors/heads.lua:7); allowed: 1, 2, 4,
  --   8; try tp = 4
  -- error: layout.tp: tp 3 does not divide leaves.tp 4 (tests/errors/heads.lua:12); allowed: 1,
  --   2, 4; try tp = 4
}
