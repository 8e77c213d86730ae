-- The list of a layer has no holes either.
local tl = require "tidelock"
local nn = tl.nn
local mixers = {}

local function layer()
  return { mixers.none, nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } } }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  -- error: model.layer: entry 1 of layer(1, 4) is nil, and entry 2 is not; a list has no holes
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
