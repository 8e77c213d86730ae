-- A layer gives nothing but modules.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return { nn.rms_norm {}, "attention" }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  -- error: model.layer: entry 2 of layer(1, 4) is "attention", not a module
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
