-- A recipe reads no files.
local tl = require "tidelock"
local nn = tl.nn
local file = io.open("README.md") -- error: io is not there in a recipe: a recipe reads no files;
                                  --   tl.data names them

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  data  = file,
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
