-- Rotary positions are on, off or a table, and turn channels that a head has.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, rope = 3 } },
    -- error: nn.attention.rope: expected true, false or a table as { base = 10000 }, got 3
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, rope = { dim = 16 } } },
    -- error: nn.attention.rope: rope.dim 16 is above head_dim 8
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
