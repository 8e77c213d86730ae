-- Token files say how wide a token is.
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
  data  = tl.data.tokens { "web.bin" },
  -- error: data.tokens.dtype: missing: of the ids in the files; write dtype = "uint16", or "uint32"
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
