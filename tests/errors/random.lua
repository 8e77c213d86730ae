-- A recipe has no random numbers.
local tl = require "tidelock"
local nn = tl.nn
local width = 64 + math.random(2) -- error: math.random is not there in a recipe: it gives other
                                  --   numbers on every run; initial values come from weight rules
                                  --   and policy.seed

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = width, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
