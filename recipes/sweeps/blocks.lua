-- blocks.lua - tiles of products and micro-batches: speed may move, no bit does. A plain loop.
local tl = require "tidelock"
local base = tl.load "../quickstart.lua"

local points = {}
for _, rows in ipairs { 64, 128 } do
  for _, micro in ipairs { 2, 4, 16 } do
    local one = base:with { ["blocks.gemm"] = { m = rows, n = 128 }, ["batch.micro"] = micro }
    points[#points + 1] = { ("tile %d x 128, micro %d"):format(rows, micro), one }
  end
end
return points
