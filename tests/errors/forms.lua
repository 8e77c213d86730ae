-- A value of the wrong form says which forms there are.
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
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = { peak = 1 }, save = 3, optimizer = true },
  -- error: train.lr: a table here starts with a name; allowed: "constant", "cosine",
  --   "warmup_stable_decay"
  -- error: train.optimizer: expected a name, a table that starts with a name, got true
  -- error: train.save: expected false or a table as { every = 50 }, got 3
  weights = { gain = { decay = 0 } },
  -- error: weights.gain: no such key; this is a list: its entries have no names
}
