-- R21: sizes that no kernel has.
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
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  blocks = {
    attention = {
      q = 96, -- error: blocks.attention.q: q 96; kernels have tiles of 64 rows (mma.sync,
              --   everywhere) and 128 (wgmma, sm_90); unset, the kernel chooses
      kv = 100, -- error: blocks.attention.kv: kv 100 is not a multiple of 16 from 16 to 512; try
                --   kv = 96
    },
    gemm = { m = 1000 }, -- error: blocks.gemm.m: m 1000 is not a multiple of 16 from 16 to 512;
                         --   try m = 512
  },
}
