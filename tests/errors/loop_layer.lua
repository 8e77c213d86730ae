-- A layer ends.
local tl = require "tidelock"
local nn = tl.nn

local function layer(i)
  repeat i = i + 1 until i < 0 -- error: layer(1, 4): stopped after 2 million lines: this does not
                               --   end, and a recipe only describes
  return { nn.rms_norm {} }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
