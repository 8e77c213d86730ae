-- quickstart.lua - a small language model, trained on text that every Debian machine has.
local tl = require "tidelock"
local nn = tl.nn

local function layer(i, n) -- i from 1 to n
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 384 } },
  }
end

return tl.recipe {
  model  = nn.decoder { vocab = 256, dim = 128, layers = 4, layer = layer },
  data   = tl.data.text { "/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/Apache-2.0" },
  batch  = { samples = 16, micro = 4, length = 256 },
  policy = "layout",
  train  = { steps = 200, lr = { "cosine", peak = 3e-3, warmup = 20, floor = 3e-4 }, clip = 1.0 },
}
