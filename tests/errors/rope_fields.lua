-- Fields of rotary positions.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.attention { heads = 8, rope = { theta = 1e4, scaling = { "yarn" } } },
    -- error: nn.attention.rope.scaling.factor: missing: factor of long waves; write factor = ..
    -- error: nn.attention.rope.scaling.original: missing: length the model was first trained for;
    --   write original = ..
    -- error: nn.attention.rope.theta: no such key; nn.attention.rope has base, dim, interleaved,
    --   scaling
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
