-- A module is called, and a list of modules has no holes.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm, nn.swiglu { hidden = 96 } },
    -- error: nn.residual: entry 1 is nn.rms_norm without its { .. }, not a module
    nn.swiglu { hidden = 96 },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer, norm = nn.rms_norm },
  -- error: nn.decoder.norm: expected a module, got nn.rms_norm without its { .. }
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
