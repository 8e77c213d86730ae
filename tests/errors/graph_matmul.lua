-- A product sums over what both have.
local tl = require "tidelock"
local nn = tl.nn

local unit = nn.graph("unit", function(g, x)
  g.dim("inner", 96)
  g.dim("outer", 96)
  return g.matmul(x, g.weight("up", "inner outer"))
  -- error: matmul: (tokens, dim 64) and (inner 96, outer 96) have no dim in common
end)

local function layer()
  return {
    nn.residual { unit },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
