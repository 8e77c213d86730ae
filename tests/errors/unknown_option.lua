-- R26: and options of modules.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kvheads = 4 } },
    -- error: nn.attention.kvheads: no such key; did you mean kv_heads? nn.attention has bias,
    --   head_dim, heads, kv_heads, name, qk_norm, rope, window
    nn.residual { nn.rms_norm {}, nn.swiglu { hiden = 96 } },
    -- error: nn.swiglu.hiden: no such key; did you mean hidden? nn.swiglu has bias, hidden, name
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
