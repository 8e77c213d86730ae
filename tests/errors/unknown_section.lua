-- R26: sections too.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  layuot = { tp = 2 }, -- error: layuot: no such key; did you mean layout? a recipe has batch,
                       --   blocks, data, device, dtype, eval, layout, log, loss, model, policy,
                       --   serve, train, weights
  tp = 2, -- error: tp: no such key; write layout = { tp = .. }
  length = 5, -- error: length: no such key; write batch = { length = .. }
}
