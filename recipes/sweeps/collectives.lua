-- collectives.lua - ways that rows take to experts and back, in waves or at once, and who sums over
-- what: speed may move, no bit does.
local tl = require "tidelock"

return tl.load "../moe_small.lua"
  :with { ["train.steps"] = 6, ["batch.micro"] = 4 }
  :over("layout", {
    { dp = 4, ep = 4, all_to_all = "flat" },
    { dp = 4, ep = 4, all_to_all = "ring" },
    { dp = 4, ep = 4, all_to_all = "hierarchical", island = 2 },
    { dp = 4, ep = 2 }, { dp = 4, ep = 1 }, { tp = 2, dp = 2, ep = 4 },
  })
  :over("blocks.moe.waves", { 1, 2 })
  :same_bits()
