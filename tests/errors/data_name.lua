-- A kind of data that is not there, and the nearest one.
local tl = require "tidelock"
local nn = tl.nn

local function layer() return { nn.swiglu { hidden = 96 } } end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = tl.data.txt { "README.md" },
  -- error: tl.data.txt: no such function; did you mean tl.data.text? tl.data has given, mix, text,
  --   tokens
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
