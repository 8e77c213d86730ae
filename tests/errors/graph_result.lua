-- A graph returns a value.
local tl = require "tidelock"
local nn = tl.nn

local unit = nn.graph(function() end)
-- error: the function of nn.graph returns nil, not a value

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
