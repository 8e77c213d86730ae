-- layouts.lua - ways to spread one model over eight ranks; base=quickstart for a laptop.
local tl = require "tidelock"
local p = tl.params { base = "llama_1b" }

return tl.load("../" .. p.base .. ".lua")
  :with { ["train.steps"] = 6, ["train.lr"] = { "constant", 4e-4 }, ["train.save"] = false }
  :over("layout", {
    { dp = 8 }, { dp = 2, tp = 4 }, { dp = 2, tp = 2, pp = 2 },
    { pp = 8, schedule = "zb-h1" }, { tp = 8 }, { dp = 2, cp = 4 },
  }):same_bits()
