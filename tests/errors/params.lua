-- A knob has a plain value and a name of its own.
local tl = require "tidelock"
local nn = tl.nn
local p = tl.params { depth = 4, device = "host", sizes = { 1, 2 } }
-- error: params.device: a recipe has a field of this name; choose another
-- error: params.sizes: expected a number, a string or true or false, got a table

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = p.depth, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
