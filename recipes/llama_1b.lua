-- llama_1b.lua - 20 B tokens on eight ranks.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 32, kv_heads = 4,
      rope = { base = 10000 } } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 5632 } },
  }
end
local web  = tl.data.tokens { "data/web/*.bin", dtype = "uint16", eos = 2 }
local code = tl.data.tokens { "data/code/*.bin", dtype = "uint16", eos = 2 }
-- whole shares; order from the seed alone
local train, held = tl.data.mix { { 8, web }, { 2, code } }:split(0.999)

return tl.recipe {
  model   = nn.decoder { vocab = 32000, dim = 2048, layers = 22, layer = layer },
  dtype   = "bf16",
  weights = { { "*.gain", dtype = "f32" } },
  loss    = { "cross_entropy", z = 1e-4 },
  data    = train,
  eval    = { data = held, every = 500, samples = 512 },
  batch   = { samples = 256, micro = 8, length = 2048 },
  layout  = { dp = 8 },
  policy  = { "layout", leaves = { dp = 8, tp = 8 }, seed = 1 },
  train   = {
    steps = 20e9 // (256 * 2048), clip = 1.0, save = { every = 1000, keep = 3 },
    lr    = { "warmup_stable_decay", peak = 4e-4, warmup = 2000, decay = 4000 },
  },
}
