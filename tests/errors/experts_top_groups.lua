-- Groups that stay have enough experts.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.moe { experts = 8, top_k = 5, hidden = 64,
      router = { "sigmoid", groups = 4, top_groups = 2 } } },
      -- error: nn.moe.router: top_groups 2 of 2 experts each have fewer than top_k 5 experts;
      --   try top_groups = 3
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
