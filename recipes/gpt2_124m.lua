-- gpt2_124m.lua - the shape of GPT-2 small: learned positions, layer norm, GELU, biases, one table
-- for embedding and head. 10 B tokens on one GPU; ./tl plan recipes/gpt2_124m.lua needs none.
local tl = require "tidelock"
local nn = tl.nn

local layers, dim, length = 12, 768, 1024

local function layer()
  return {
    nn.residual { nn.layer_norm {}, nn.attention { heads = 12, rope = false, bias = true } },
    nn.residual { nn.layer_norm {}, nn.gelu { hidden = 4 * dim, bias = true } },
  }
end

return tl.recipe {
  model   = nn.decoder { vocab = 50257, dim = dim, layers = layers, layer = layer,
    positions = length, tied = true, norm = nn.layer_norm {} },
  dtype   = "bf16",
  weights = {
    -- Each branch adds to the residual stream: its last matrix starts smaller, as in GPT-2.
    { "*.o", "*.down", init = 0.02 / math.sqrt(2 * layers) },
    { "positions", decay = 0 },
  },
  data    = tl.data.tokens { "data/web/*.bin", dtype = "uint16", eos = 50256 },
  batch   = { samples = 480, micro = 48, length = length },
  policy  = "batch", -- one GPU: no leaves that only other layouts need
  device  = "cuda",
  train   = {
    steps = 20000, clip = 1.0, optimizer = { "adamw", beta1 = 0.9, beta2 = 0.95, decay = 0.1 },
    lr = { "cosine", peak = 6e-4, floor = 6e-5, warmup = 700 },
  },
}
