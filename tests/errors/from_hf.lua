-- A folder that is no model; the rest of the recipe is checked all the same.
local tl = require "tidelock"

return tl.recipe {
  model = tl.nn.from_hf { "tests/golden/hf", ignored = {} },
  -- error: nn.from_hf.ignored: no such key; did you mean ignore? nn.from_hf has bias_speed,
  --   folder, ignore
  -- error: nn.from_hf: tests/golden/hf/config.json: cannot open it: No such file or directory
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 3, length = 32 },
  -- error: batch.micro: micro 3 does not divide 8, the samples of a rank
  --   (tests/errors/from_hf.lua:10); try micro = 2 or 4
  train = { steps = 10, lr = 1e-3 },
}
