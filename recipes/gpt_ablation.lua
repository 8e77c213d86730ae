-- gpt_ablation.lua - equal tokens; the learning rate follows the width.
local tl = require "tidelock"
local nn = tl.nn
local p = tl.params { depth = 12, width = 768 } -- also on the command line: depth=24

local function layer() -- called as layer(i, n), i from 1
  return {
    nn.residual { nn.layer_norm {}, nn.attention { heads = p.width // 64, rope = false } },
    nn.residual { nn.layer_norm {}, nn.gelu { hidden = 4 * p.width } },
  }
end
local train, held = tl.data.tokens { "data/web_*.bin", dtype = "uint16", eos = 50256 }:split(0.99)

return tl.recipe {
  model   = nn.decoder { vocab = 50257, dim = p.width, layers = p.depth, layer = layer,
    positions = 1024, tied = true },
  weights = {
    { "*.o", "*.down", init = 0.02 / math.sqrt(2 * p.depth) },
    { "positions", decay = 0 },
  },
  data    = train,
  eval    = { data = held, every = 250, samples = 256 },
  batch   = { samples = 512, micro = 16, length = 1024 },
  train   = {
    steps = 5000, clip = 1.0, optimizer = { "adamw", beta1 = 0.9, beta2 = 0.95, decay = 0.1 },
    lr = { "cosine", peak = 6e-4 * 768 / p.width, floor = 6e-5, warmup = 250 },
  },
}:over("depth", { 6, 12, 24 }):over("width", { 384, 768 })
