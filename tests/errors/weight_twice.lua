-- Two weights have two names.
local tl = require "tidelock"
local nn = tl.nn

local unit = nn.graph("unit", function(g, x)
  return x * g.weight("scale", "dim") + g.weight("scale", "dim")
  -- error: the weight layers.0.unit.scale is already made at tests/errors/weight_twice.lua:6;
  --   give one of the modules a name (name = "..."; a name that starts with / shares)
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
