-- A layer leads back to the width of the model.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.linear { out = 96 },
    -- error: layer 0 gives (tokens, out 96); a layer leads back to (tokens, dim 64)
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
