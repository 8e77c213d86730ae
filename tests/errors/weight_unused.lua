-- Every weight reaches the loss.
local tl = require "tidelock"
local nn = tl.nn

local unit = nn.graph("unit", function(g, x)
  g.weight("scale", "dim")
  -- error: layers.0.unit.scale: nothing uses this weight; use it or leave it out
  -- error: layers.1.unit.scale: nothing uses this weight; use it or leave it out
  -- error: layers.2.unit.scale: nothing uses this weight; use it or leave it out
  -- error: layers.3.unit.scale: nothing uses this weight; use it or leave it out
  return x
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
