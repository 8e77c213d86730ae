-- A shared weight has one shape.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96, name = "/ffn" } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 128, name = "/ffn" } },
    -- error: the shared weight ffn.gate is (96, 64) at tests/errors/weight_shared.lua:7 and
    --   (128, 64) here
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
