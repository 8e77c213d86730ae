-- gated.lua - a learned gate per channel scales each branch; every second layer has a short window.
-- It starts from the embedding of the quickstart: run that first.
local tl = require "tidelock"
local nn = tl.nn

--- x + sigmoid(bias) * block(norm(x)), bias (dim).
local function gated(block, name)
  return nn.graph(name, function(g, x) -- x (tokens, dim)
    local y = block(nn.rms_norm {}(x)) -- a module is a function of graph values
    local bias = g.weight("gate_bias", "dim", { init = { "constant", -2 }, decay = 0 })
    local open = g.named("open", g.sigmoid(bias))
    return x + open * y -- (dim) meets (tokens, dim) by name
  end)
end

--- A gated unit written out. `inner` may be cut over tp: there the leaves of its sums lie.
local unit = nn.graph("unit", function(g, x)
  g.dim("inner", 384, "tp")
  local up, gate = g.weight("up", "inner dim"), g.weight("gate", "inner dim")
  local down = g.weight("down", "dim inner")
  -- sums over the dim that both have
  return g.matmul(g.silu(g.matmul(x, gate)) * g.matmul(x, up), down)
end)

local function layer(i)
  local mixer = nn.attention { heads = 8, kv_heads = 4, window = i % 2 == 0 and 64 or nil }
  return { gated(mixer, "mixer"), gated(unit, "channel") }
end

return tl.recipe {
  model   = nn.decoder { vocab = 256, dim = 128, layers = 4, layer = layer },
  weights = { { "embed", frozen = true, from = "runs/quickstart-eaf6" } },
  -- one number per target token; Tidelock sums, and divides once
  loss    = function(g, logits, targets)
    return g.cross_entropy(logits, targets) + 1e-4 * g.square(g.logsumexp(logits, "vocab"))
  end,
  data    = tl.data.text { "/usr/share/common-licenses/MPL-*" },
  batch   = { samples = 16, micro = 2, length = 256 },
  train   = { steps = 200, lr = 3e-3, warmup = 20, clip = 1.0 },
  log     = { watch = { "layers.*.open:mean", "*.gate_bias.grad:norm" } },
}
