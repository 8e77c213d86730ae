-- R21: sizes that no product is compiled for.
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
    gemm = { m = 64, n = 256 }, -- error: blocks.gemm: no compiled product has m 64, n 256; as
                                --   { m, n, k } there are { 128, 256, 64 }, { 128, 176, 64 },
                                --   { 128, 128, 64 }, { 128, 88, 64 }, { 128, 64, 64 },
                                --   { 64, 88, 64 }, { 64, 64, 64 }, { 64, 40, 64 },
                                --   { 64, 32, 64 }, { 32, 32, 64 }
  },
}
