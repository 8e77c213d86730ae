-- with takes sections and fields.
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
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
}:with {
  ["train.setps"] = 5, -- error: train.setps: no such key; did you mean steps? train has clip,
                       --   loss_scale, lr, optimizer, recompute, save, steps, warmup
  lauout = { tp = 2 }, -- error: lauout: no such field or knob; did you mean layout? there are
                       --   batch, blocks, data, device, dtype, eval, layout, log, loss, model,
                       --   policy, serve, train, weights
}
