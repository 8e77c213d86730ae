-- Options that no operator has are refused by the operator's name.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, dropout = 0.1, alibi = true } },
    -- error: nn.attention.alibi: the op attention has no ALiBi; use rope = true, or positions = N
    --   of nn.decoder
    -- error: nn.attention.dropout: the op attention has no dropout on probabilities; put
    --   nn.dropout { rate = .. } behind it
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
