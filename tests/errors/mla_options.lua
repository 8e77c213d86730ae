-- What nn.attention takes and nn.mla does not, and what it must have.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.mla { -- error: nn.mla.kv_rank: missing: width of the latent
      --   that keys and values are made of; write kv_rank = ..
      heads = 4, nope_dim = 16, rope_dim = 8,
      kv_heads = 2, -- error: nn.mla.kv_heads: each head has keys of its own, made of the latent;
      --   leave it out
      head_dim = 24, -- error: nn.mla.head_dim: a head is nope_dim + rope_dim wide; write these
      window = 5, -- error: nn.mla.window: the latent attention of this version sees all keys before
      --   a query; leave it out
      rope = { scaling = { "yarn", factor = 4 } }, -- error: nn.mla.rope.scaling.original:
      --   missing: length the model was first trained for; write original = ..
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
