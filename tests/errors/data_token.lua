-- The token that ends documents has the width of tokens.
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
  data  = tl.data.tokens { "web.bin", dtype = "uint16", eos = 70000 },
  -- error: data.tokens.eos: expected a token id, 0 to 65535 in uint16, got 70000
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
