-- A recipe ends.
local tl = require "tidelock"
local nn = tl.nn
local n = 0
while n >= 0 do n = n + 1 end -- error: stopped after 2 million lines: this does not end, and a
                              --   recipe only describes

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
}
