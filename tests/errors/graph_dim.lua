-- A dim is made before it is used.
local tl = require "tidelock"
local nn = tl.nn

local unit = nn.graph("unit", function(g, x)
  return g.matmul(x, g.weight("up", "inner dim"))
  -- error: no dim is called inner; there are dim, tokens, vocab (g.dim makes one)
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
