-- gates.lua - 20 steps of gated.lua, looked at from a script: ./tl lua recipes/gates.lua
local tl = require "tidelock"

local run <close> = tl.load("recipes/gated.lua"):start { keep = { "layers.*.mixer.attention.out" } }
for _ = 1, arg and tonumber(arg[1]) or 20 do -- so many steps as it is told
  local s = run:step()
  print(s.step, s.loss, s.loss_bits, s.watch["layers.0.mixer.open:mean"])
end
local q = run:weight "layers.0.mixer.attention.q" -- the whole logical tensor, in any layout
print(q, q:hash(), q:narrow(1, 1, 4):to_table()[1][1])
print(run:kept("layers.3.mixer.attention.out"):norm())
