-- Fields of a rule.
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
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  weights = { { "*.o", init = "small", decay = -1, lrscale = 2 } },
  -- error: weights[1].decay: expected a number, 0 or more, got -1
  -- error: weights[1].init: "small" is not known; allowed: "constant", "normal", "ones",
  --   "uniform", "zeros", a number or a function
  -- error: weights[1].lrscale: no such key; did you mean lr_scale? weights has decay, dtype,
  --   from, frozen, init, lr_scale, optimizer
}
