-- A residual branch has a module.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual {},
    -- error: layer(1, 4): nn.residual has no modules; write nn.residual { norm, mixer }
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
