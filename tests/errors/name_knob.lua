-- A knob without the table that has it.
local tl = require "tidelock"
local nn = tl.nn
tl.params { depth = 4 }

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = depth, layer = layer },
  -- error: depth: nothing of this name is defined here; it is a knob:
  --   local p = tl.params { .. }, then p.depth
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
