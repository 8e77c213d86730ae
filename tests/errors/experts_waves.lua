-- Waves cut the experts of a rank evenly.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.moe { experts = 8, top_k = 2, hidden = 64 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  layout = { dp = 2, ep = 2 },
  blocks = { moe = { waves = 3 } },
  -- error: blocks.moe.waves: waves 3 does not divide 4, the experts of a rank (experts 8,
  --   tests/errors/experts_waves.lua:8, ep 2); allowed: 1, 2, 4
}
