-- R9: positions are exact up to a length.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 2147483647 },
  -- error: batch.length: length 2147483647 is above 2097152, the longest sample whose positions
  --   are exact; try length = 2097152
  train = { steps = 10, lr = 1e-3 },
}
