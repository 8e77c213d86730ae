-- A function in the place of a module gives a value.
local tl = require "tidelock"
local nn = tl.nn

local function nothing() end

local function layer()
  return { nn.residual { nn.rms_norm {}, nothing } }
  -- error: a function in the place of a module gives nil, not a value
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
