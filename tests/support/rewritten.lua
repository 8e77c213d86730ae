--- Writes one weight file again and again: ./tl lua tests/support/rewritten.lua FILE. Each time all
--- its numbers are one more than before. It is there to be killed, and ends by itself after 20 s.
local core = require "tidelock.core"
local path, rows, last = arg[1], 1 << 18, core.files.seconds() + 20
local old = core.weights.open(path)
local value = old and old:read("x"):narrow(1, 1, 1):flat()[1] or 0
if old then old:close() end

local t = core.tensor("f32", { rows })
while core.files.seconds() < last do
  value = value + 1
  t:fill(value)
  core.weights.write(path, { { name = "x", tensor = t } })
end
