-- Numbers that the tables of rope cannot have, each at its field.
local tl = require "tidelock"
local nn = tl.nn

local ropes = {
  { base = 0.5 },
  { base = 1e19 },
  { base = 1, scaling = { "yarn", factor = 2, original = 64 } },
  { scaling = { "linear", factor = 0.5 } },
  { scaling = { "llama3", low = 4, high = 4 } },
  { scaling = { "yarn", factor = 0.25, original = 64, beta_slow = 33 } },
  { scaling = { "yarn", factor = 2, original = 64, attention_factor = 1e20 } },
  { scaling = { "yarn", factor = 2, original = 64, mscale = 1e30, mscale_all_dim = 1e-30 } },
}

local loud = { "yarn", factor = 2, original = 64, mscale = 1e25, mscale_all_dim = 1e25 }

local function layer(i)
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, rope = ropes[i] } },
    -- error: nn.attention.rope.base: base 0.5 is not from 1 to 2^60; try base = 10000
    -- error: nn.attention.rope.base: base 1e+19 is not from 1 to 2^60; try base = 10000
    -- error: nn.attention.rope.base: base 1 makes all waves alike, and yarn tells long ones from
    --   short ones; try base = 10000
    -- error: nn.attention.rope.scaling.factor: factor 0.5 is below 1, and waves are only
    --   stretched; try factor = 1
    -- error: nn.attention.rope.scaling.low: low 4 is not below high 4; try low = 1, high = 4
    -- error: nn.attention.rope.scaling.factor: factor 0.25 is below 1, and waves are only
    --   stretched; try factor = 1
    -- error: nn.attention.rope.scaling.beta_slow: beta_slow 33 is not below beta_fast 32; try
    --   beta_slow = 1, beta_fast = 32
    -- error: nn.attention.rope.scaling.attention_factor: it multiplies cosines and sines by
    --   1.00000002e+20; that must be above 0 and at most 2^60; leave attention_factor out
    -- error: nn.attention.rope.scaling.mscale: it multiplies cosines and sines by 6.93147158e+28;
    --   that must be above 0 and at most 2^60; leave mscale out
    nn.residual { nn.rms_norm {}, nn.mla { heads = 4, kv_rank = 8, nope_dim = 8, rope_dim = 8,
      rope = { base = 0.25, scaling = { "linear", factor = 0.125 } } } },
    -- error: nn.mla.rope.base: base 0.25 is not from 1 to 2^60; try base = 10000
    -- error: nn.mla.rope.scaling.factor: factor 0.125 is below 1, and waves are only stretched;
    --   try factor = 1
    nn.residual { nn.rms_norm {}, nn.mla { heads = 4, kv_rank = 8, nope_dim = 8, rope_dim = 8,
      rope = { scaling = loud } } },
    -- error: nn.mla.rope.scaling.mscale_all_dim: it multiplies the scale of the softmax by
    --   4.80453014e+47, which is none in f32; try mscale_all_dim = 1
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 8, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
