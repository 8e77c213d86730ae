-- What stands behind a nil would be left out without a word.
local tl = require "tidelock"
local nn = tl.nn
local mixers = {}

local function layer()
  return { nn.residual { nn.rms_norm {}, mixers.none, nn.swiglu { hidden = 96 } } }
  -- error: layer(1, 4): nn.residual: entry 2 is nil, and entry 3 is not; a list has no holes
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
