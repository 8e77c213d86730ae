-- The token that ends documents is one of the vocabulary.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

local web = tl.data.tokens {
  "web.bin",
  dtype = "uint16",
  eos = 50256, -- error: data.tokens.eos: eos 50256 is not below the vocabulary, 50000; try
               --   vocab = 50257, if eos is right
}

return tl.recipe {
  model = nn.decoder { vocab = 50000, dim = 64, layers = 4, layer = layer },
  data  = tl.data.mix { { 1, web }, { 1, tl.data.text { "README.md" } } },
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
