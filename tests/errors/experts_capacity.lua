-- H10: capacities are refused.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.moe { experts = 8, top_k = 2, hidden = 64,
      capacity_factor = 1.25 } },
    -- error: nn.moe.capacity_factor: under the policies "layout" and "batch" no token is ever
    --   dropped: what becomes of it would depend on its neighbours; leave it out
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
