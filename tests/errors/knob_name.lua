-- A knob that is not there: nil in a table of Lua's own.
local tl = require "tidelock"
local nn = tl.nn
local p = tl.params { depth = 4, width = 64 }

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = p.dept, layer = layer },
  -- error: params.dept: no such knob; did you mean depth? there are depth, width
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
