-- balanced.lua - every hidden unit shall be open for half of the tokens: a bias that is no weight,
-- but a state, is moved towards that after each step.
local tl = require "tidelock"
local nn = tl.nn

--- The step of the bias: 0.01, and nothing near the end.
local function speed(step) return step <= 80 and 0.01 or 0 end

--- A feed-forward net. `load` (hidden) is the share of the step's tokens that a unit lets pass: a
--- sum over the global batch, in any layout.
local ffn = nn.graph("ffn", function(g, x) -- x (tokens, dim)
  g.dim("hidden", 384, "tp")
  local bias = g.state("bias", "hidden") -- the value before the step; 0 at first, no gradient
  local seen = g.matmul(x, g.weight("up", "hidden dim")) + bias -- (tokens, hidden)
  local load = g.named("load", g.mean(g.relu(g.sign(seen))))
  g.update(bias, bias + g.sign(0.5 - load) * speed) -- once, after the step
  return g.matmul(g.relu(seen), g.weight("down", "dim hidden"))
end)

--- A moving average of what leaves the layer, for the log alone.
local level = nn.graph("level", function(g, x)
  local average = g.state("average", "dim")
  g.update(average, 0.9 * average + 0.1 * g.mean(x))
  return x
end)

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 4, kv_heads = 2 } },
    nn.residual { nn.rms_norm {}, ffn },
    level,
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 96, layers = 3, layer = layer },
  data  = tl.data.text { "/usr/share/common-licenses/GPL-3" },
  batch = { samples = 16, micro = 4, length = 128 },
  train = { steps = 100, lr = { "cosine", peak = 3e-3, warmup = 10, floor = 3e-4 }, clip = 1.0 },
  log   = { watch = { "layers.*.load:max", "layers.*.bias:norm", "layers.*.average:rms" } },
}
