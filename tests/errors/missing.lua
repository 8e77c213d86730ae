-- What a recipe cannot do without.
local tl = require "tidelock"
local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end

return tl.recipe { -- error: data: missing: where samples come from: tl.data.text, tl.data.tokens,
                   --   tl.data.mix; write data = tl.data.text { "text/*.txt" }
  model = nn.decoder { vocab = 256, dim = 64, layers = 4, layer = layer },
  batch = { samples = 8 }, -- error: batch.length: missing: tokens of a sample; write length = ..
  train = { lr = { "cosine", warmup = 5 } },
  -- error: train.lr.peak: missing: highest learning rate; write peak = ..
  -- error: train.steps: missing: steps of the run; write steps = ..
}
