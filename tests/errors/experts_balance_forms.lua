-- The loss of a batch by the names and keys that people bring for it.
local tl = require "tidelock"
local nn = tl.nn

local balances = { "batch", "aux_loss", { "loss", weight = 0.01, over = "batch" } }

local function layer(i)
  return {
    nn.residual { nn.rms_norm {}, nn.moe { experts = 8, top_k = 2, hidden = 64,
      balance = balances[i] } },
      -- error: nn.moe.balance: "batch": over a batch it would need every routing of the step
      --   before the first backward pass, and a token would depend on its neighbours; write
      --   { "loss", weight = .. }, the mean over samples; allowed: "bias", "loss", "none"
      -- error: nn.moe.balance: "aux_loss": write { "loss", weight = .. }, the mean over
      --   samples; allowed: "bias", "loss", "none"
      -- error: nn.moe.balance.over: the loss has one form, that of each sample, mean over
      --   samples: over a batch it would need every routing of the step before the first
      --   backward pass, and a token would depend on its neighbours; leave it out
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 3, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
