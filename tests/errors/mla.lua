-- Latent attention: widths that the operators have, and pairs that turn.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.mla {
      heads = 4,
      kv_rank = 2040, -- error: nn.mla.kv_rank: kv_rank 2040 + rope_dim 65 is above 2048, the widest
      --   that the op split_heads has
      nope_dim = 192, -- error: nn.mla.nope_dim: nope_dim 192 + rope_dim 65 = 257 is above 256, the
      --   widest head that the op attention has
      rope_dim = 65, -- error: nn.mla.rope_dim: it turns pairs of channels, but there are 65; try
      --   rope_dim = 66
      v_dim = 512, -- error: nn.mla.v_dim: v_dim 512 is above 256, the widest that the op attention
      --   has
    } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
