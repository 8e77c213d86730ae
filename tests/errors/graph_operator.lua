-- There are the operators that there are.
local tl = require "tidelock"
local nn = tl.nn

local unit = nn.graph("unit", function(g, x)
  return g.sofmax(x)
  -- error: graphs have no operator sofmax; docs/recipes.md has all, in Graphs written by hand
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
