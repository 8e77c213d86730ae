-- policies.lua - what the promise of bits costs: the quickstart under each policy, in two dtypes.
local tl = require "tidelock"

return tl.load "../quickstart.lua"
  :over("policy", { "fast", "batch", "layout" })
  :over("dtype", { "f32", "bf16" })
