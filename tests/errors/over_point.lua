-- Every point of a sweep is checked.
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
}
  :over("layout", {
    { tp = 2 },
    { tp = 3, sequence_parallel = false },
    -- error: layout.tp: tp 3 does not divide heads 8 (tests/errors/over_point.lua:7); allowed: 1,
    --   2, 4, 8; try tp = 4
    -- error: layout.tp: tp 3 does not divide kv_heads 4 (tests/errors/over_point.lua:7); allowed:
    --   1, 2, 4 (or a multiple of 4); try tp = 4
    -- error: layout.tp: tp 3 does not divide leaves.tp 4 (tests/errors/over_point.lua:12);
    --   allowed: 1, 2, 4; try tp = 4
  })
