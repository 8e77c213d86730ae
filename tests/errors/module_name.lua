-- A module that is not there, and the nearest one.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return { nn.residual { nn.rms_norm {}, nn.swigu { hidden = 96 } } }
  -- error: layer(1, 4): nn.swigu: no such function; did you mean nn.swiglu? nn has
  --   attention, decoder, dropout, from_hf, gelu, graph, layer_norm, linear, mla, moe, residual,
  --   rms_norm, swiglu
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
