-- R26: an unknown key and its nearest known one.
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
  layout = { pt = 2 }, -- error: layout.pt: no such key; did you mean tp? layout has all_to_all,
                       --   all_to_all_threshold, cp, cp_balance, cp_map, dp, ep, experts, island,
                       --   order, pp, schedule, sequence_parallel, stages, tp, virtual_stages, zero
  policy = { "layout", leaves = { ttp = 4 } },
  -- error: policy.leaves.ttp: no such key; did you mean tp? policy.leaves has cp, dp, tp
  log = { evry = 5 },
  -- error: log.evry: no such key; did you mean every? log has every, replicas, watch
}
