--- burn.lua - keeps a device busy until it is ended: what `./tl verify --repeat-for` runs beside
--- itself to see whether bits survive a load.
---
---     tidelock lua burn.lua host 4      products on so many threads, or `cuda`: on GPU 0
local core = require "tidelock.core"

local device, threads = arg[1], tonumber(arg[2])
local size = device == "cuda" and 4096 or 384
local dtype = device == "cuda" and "bf16" or "f32"

local function random()
  local t = core.tensor(dtype, { size, size })
  core.call("init", {}, { t }, { kind = 1, name_hash = 1, row_first = 0, col_first = 0,
    cols_full = size, first = 0, second = 1 })
  return t
end

local x, weight, y = random(), random(), core.tensor(dtype, { size, size })
local options = device == "cuda" and { device = "cuda", repeats = 50 } or { threads = threads }
core.catch_interrupts()
while not core.interrupted() do
  core.call("linear", { x, weight }, { y }, { parts = 1, biases = 0, leaves = 1 }, options)
end
