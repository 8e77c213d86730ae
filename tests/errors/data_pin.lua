-- A pin is a SHA-256.
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
  data  = tl.data.text { "README.md", sha256 = { "12ab" } },
  -- error: data.text.sha256: entry 1: expected 64 hex digits, got "12ab"
  batch = { samples = 8, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}
