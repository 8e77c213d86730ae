-- eight_gpus.lua - ways to spread a dense model and one with experts over the GPUs of a host,
-- beside one GPU alone. eight_gpus.sh runs all of it; world=2 and world=4 take what fits there.
local tl = require "tidelock"
local p = tl.params {
  world = 8, base = "llama_1b", -- or "moe_1b"; "quickstart" and "moe_small" for a laptop
  promise = "layout",           -- or "batch", whose leaves cost less
  each = 32,                    -- samples of a step, for each rank
  tokens = "runs/eight_gpus/tokens.bin",
}
local small = p.base == "quickstart" or p.base == "moe_small"
local experts = p.base:find "^moe" ~= nil

-- The first is one rank alone, what efficiency is measured against.
local layouts = {
  [2] = { { dp = 1 }, { dp = 2 }, { tp = 2 }, { pp = 2 } },
  [4] = { { dp = 1 }, { dp = 4 }, { tp = 4 }, { tp = 2, pp = 2 }, { pp = 4 }, { tp = 2, dp = 2 } },
  [8] = { { dp = 1 }, { dp = 8 }, { tp = 8 }, { tp = 2, pp = 2, dp = 2 },
    small and { pp = 4, dp = 2 } or { pp = 8 }, { tp = 4, dp = 2 } },
}
local layouts_experts = {
  [2] = { { ep = 1 }, { dp = 2, ep = 1 }, { dp = 2, ep = 2 }, { tp = 2, ep = 2 } },
  [4] = { { ep = 1 }, { dp = 4, ep = 1 }, { dp = 4, ep = 4 }, { dp = 4, ep = 2 },
    { tp = 2, dp = 2, ep = 4 }, { dp = 4, ep = 4, island = 2, all_to_all = "flat" },
    { dp = 4, ep = 4, island = 2, all_to_all = "hierarchical" } },
  [8] = { { ep = 1 }, { dp = 8, ep = 1 }, { dp = 8, ep = 8 }, { dp = 8, ep = 4 },
    { tp = 2, dp = 4, ep = 8 }, { dp = 8, ep = 8, island = 4, all_to_all = "flat" },
    { dp = 8, ep = 8, island = 4, all_to_all = "hierarchical" } },
}

local policies = {
  layout = { "layout", leaves = { tp = 8, dp = 8 } },
  batch = { "batch", leaves = { dp = 8 } },
}
local wanted = (experts and layouts_experts or layouts)[p.world]
if not wanted then error("world: 2, 4 or 8 ranks, got " .. p.world, 0) end
if not policies[p.promise] then error("promise: layout or batch, got " .. p.promise, 0) end

local base = tl.load("../" .. p.base .. ".lua"):with {
  ["train.steps"] = 6, ["train.lr"] = { "constant", 4e-4 }, ["train.save"] = false,
  policy = policies[p.promise],
  ["batch.samples"] = p.world * p.each, ["batch.micro"] = math.min(p.each, 8),
}
if not small then
  base = base:with { data = tl.data.tokens { p.tokens, dtype = "uint16", eos = 2 } }
end
if not experts then return base:over("layout", wanted) end

-- Waves hide rows that travel; where none do they only compute them twice.
local points, waves = {}, small and 2 or 4
for i, point in ipairs(base:over("layout", wanted):points()) do
  local travel = wanted[i].ep > 1
  points[i] = point:with { ["blocks.moe.waves"] = travel and waves or 1 }
end
return points
