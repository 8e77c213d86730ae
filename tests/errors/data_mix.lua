-- A mixture has whole shares.
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
  data  = tl.data.mix { { 0.8, tl.data.text { "README.md" } } },
  -- error: data.mix: entry 1: expected { share, source } with a whole share from 1
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
