-- quickstart.lua - a small language model, trained on text that every Debian machine has.
local tl = require "tidelock"
local nn = tl.nn

local function layer(i, n) -- i from 1 to n
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 384 } },
  }
end

-- The 14 licence texts of Debian 12 and Ubuntu 24.04, pinned: other bytes are another key.
local texts, sha256 = {}, {}
for i, pin in ipairs {
  { "Apache-2.0", "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30" },
  { "Artistic", "b7fd9b73ea99602016a326e0b62e6646060d18febdd065ceca8bb482208c3d88" },
  { "BSD", "5d588eb3b157d52112afea935c88a7ff9efddc1e2d95a42c25d3b96ad9055008" },
  { "CC0-1.0", "a2010f343487d3f7618affe54f789f5487602331c0a8d03f49e9a7c547cf0499" },
  { "GFDL-1.2", "d8e94ae5fdb5433fcae2961aeb1a8cf17174d6f4a0465d24bf37dd8a038bd439" },
  { "GFDL-1.3", "110535522396708cea37c72a802c5e7e81391139f5f7985631c93ef242b206a4" },
  { "GPL-1", "d77d235e41d54594865151f4751e835c5a82322b0e87ace266567c3391a4b912" },
  { "GPL-2", "8177f97513213526df2cf6184d8ff986c675afb514d4e68a404010521b880643" },
  { "GPL-3", "3972dc9744f6499f0f9b2dbf76696f2ae7ad8af9b23dde66d6af86c9dfb36986" },
  { "LGPL-2", "681e386e44a19d7d0674b4320272c90e66b6610b741e7e6305f8219c42e85366" },
  { "LGPL-2.1", "dc626520dcd53a22f727af3ee42c770e56c97a64fe3adb063799d8ab032fe551" },
  { "LGPL-3", "e3a994d82e644b03a792a930f574002658412f62407f5fee083f2555c5f23118" },
  { "MPL-1.1", "f849fc26a7a99981611a3a370e83078deb617d12a45776d6c4cada4d338be469" },
  { "MPL-2.0", "fab3dd6bdab226f1c08630b1dd917e11fcb4ec5e1e020e2c16f83a0a13863e85" },
} do
  texts[i], sha256[i] = "/usr/share/common-licenses/" .. pin[1], pin[2]
end
texts.sha256 = sha256

return tl.recipe {
  model  = nn.decoder { vocab = 256, dim = 128, layers = 4, layer = layer },
  data   = tl.data.text(texts),
  batch  = { samples = 16, micro = 4, length = 256 },
  policy = "layout",
  train  = { steps = 200, lr = { "cosine", peak = 3e-3, warmup = 20, floor = 3e-4 }, clip = 1.0 },
}
