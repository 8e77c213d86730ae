-- R9: sequence parallelism cuts each sample over tp.
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
  batch = { samples = 8, micro = 2, length = 30 },
  -- error: batch.length: length 30 is not a multiple of tp 4 (tests/errors/length.lua:19), which
  --   sequence_parallel needs; try length = 32, or layout.sequence_parallel = false
  train = { steps = 10, lr = 1e-3 },
  layout = { tp = 4 },
}
