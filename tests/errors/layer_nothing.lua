-- A layer gives modules.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return nil
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  -- error: model.layer: layer(1, 4) gives nil; it returns a list of modules, as { nn.residual {
  --   .. } }
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
