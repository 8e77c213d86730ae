-- attention.lua - what blocks of keys, longer samples and fewer heads of keys cost. kv is part of
-- the order of sums, so the key moves with it; the rows of queries are speed only.
local tl = require "tidelock"

return tl.load "../quickstart.lua"
  :with { ["train.steps"] = 6 }
  :over("blocks.attention", { { kv = 128 }, { kv = 64 }, { kv = 32 }, { kv = 128, q = 64 } })
  :over("batch", {
    { samples = 16, micro = 4, length = 256 }, { samples = 8, micro = 2, length = 512 },
    { samples = 4, micro = 1, length = 1024 },
  })
