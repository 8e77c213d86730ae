-- Heads of latent attention are cut over tp like others.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.mla { heads = 6, kv_rank = 8, nope_dim = 16, rope_dim = 8 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  layout = { tp = 4 }, -- error: layout.tp: tp 4 does not divide heads 6
  --   (tests/errors/mla_tp.lua:7); allowed: 1, 2, 3, 6; try tp = 2
  train = { steps = 10, lr = 1e-3 },
}
