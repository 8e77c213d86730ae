-- Values that no recipe has: they are refused like any other.
local tl = require "tidelock"
local nn = tl.nn

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = function()
    return { nn.rms_norm {}, nn.attention { heads = 4 } }
  end },
  data    = tl.data.text { "README.md" },
  batch   = { samples = 8, micro = 2, length = 32 },
  weights = { 3 },
  -- error: weights[1]: a weight rule starts with a pattern of weight names, as {
  --   "*.gain", decay = 0 }
  -- error: weights[1]: expected a table with decay, dtype, from, frozen, init,
  --   lr_scale, optimizer, got 3
  policy  = { "layout", leaves = { dp = 1 << 30 } },
  -- error: policy.leaves.dp: dp 1073741824 is above 65536, the most leaves that a tree has
  train   = { steps = 1 << 31, lr = 1e-3 },
  -- error: train.steps: expected a positive integer up to 2147483647, got
  --   2147483648
}
