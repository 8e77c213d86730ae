-- H19: the loss of a batch is refused, and the loss needs shares.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.moe { experts = 8, top_k = 2, hidden = 64,
      balance = { "batch_loss", weight = 0.01 } } },
      -- error: nn.moe.balance: "batch_loss": over a batch it would need every routing of the
      --   step before the first backward pass, and a token would depend on its
      --   neighbours; write { "loss", weight = .. }, the mean over samples; allowed:
      --   "bias", "loss", "none"
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
