-- layouts.lua - ways to spread one model over eight ranks.
local tl = require "tidelock"

return tl.load "../llama_1b.lua"
  :with { ["train.steps"] = 6, ["train.lr"] = { "constant", 4e-4 }, ["train.save"] = false }
  :over("layout", {
    { dp = 8 }, { dp = 2, tp = 4 }, { dp = 2, tp = 2, pp = 2 },
    { pp = 8, schedule = "zb-h1" }, { tp = 8 }, { dp = 2, cp = 4 },
  }):same_bits()
