-- A mistake in a layer.
local tl = require "tidelock"
local nn = tl.nn

local function layer(i)
  return { nn.residual { nn.rms_norm {}, nn.linear { out = i.width } } }
  -- error: layer(1, 4): attempt to index a number value (local 'i')
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
