-- A layer that asks for itself, through a table's own fields.
local tl = require "tidelock"
local nn = tl.nn
local widths = setmetatable({}, {
  __index = function(self, i) return self[i + 1] end,
  -- error: layer(1, 4): C stack overflow: a function calls itself without an end
})

local function layer(i)
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = widths[i] } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
