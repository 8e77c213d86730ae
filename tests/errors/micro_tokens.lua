-- R12: a micro-batch has no more tokens than an i32 can count.
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
  batch = { samples = 1024, micro = 1024, length = 2097152 },
  -- error: batch.micro: micro 1024 makes micro-batches of 2147483648 tokens with batch.length
  --   2097152, above 2147483647; try micro = 1023
  train = { steps = 10, lr = 1e-3 },
}
