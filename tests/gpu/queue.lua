--- queue.lua - runs that are queued on a GPU (runtime/ranks_queue.c): what goes in, by kernels and
--- by the copy engine, and what comes out is what a host's ranks make of it.
---
---     build/tidelock lua tests/gpu/queue.lua [cuda|host]
---
--- Two tensors lie over each other, one is written twice before a run, one is too large for a
--- kernel; a section of few instructions is queued, one of many is replayed as a graph. "host" is a
--- check of this script. Needs no Lua packages.
local folder = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = folder .. "/../?.lua;" .. package.path
local core = require "tidelock.core"
local programs = require "support.programs"

local small, part, large = 64, 8, 100000 -- elements

--- x doubled to y, the large tensor to its own end; "serve0" does it at once, "serve1" in 20 steps.
local function program()
  local b = programs.new { "all" }
  local x = b:tensor("f32", { small }, { persistent = true })
  local inside = b:tensor("f32", { part }, { offset = 64, persistent = true })
  local z = b:tensor("f32", { large }, { persistent = true })
  local y, w = b:tensor("f32", { small }), b:tensor("f32", { large })
  b:add("serve0", "scale", { x }, { y }, { factor = 2 })
  b:add("serve0", "scale", { z }, { w }, { factor = 2 })
  b:add("serve1", "scale", { z }, { w }, { factor = 2 })
  for _ = 1, 20 do b:add("serve1", "scale", { x }, { y }, { factor = 2 }) end
  return b:program(), { x = x, inside = inside, z = z, y = y, w = w }
end

local function numbers(count, seed)
  local list = {}
  for i = 1, count do list[i] = (i * 7919 + seed * 104729) % 2003 / 64 - 15 end
  return core.tensor("f32", { count }, list)
end

local function same(a, b)
  local left, right = a:bits(), b:bits()
  for i = 1, #left do
    if left[i] ~= right[i] then return false end
  end
  return #left == #right
end

--- What is written before run `step`, in this order.
local function written(at, step)
  local list = {}
  local function add(tensor, count, seed)
    table.move({ 0, tensor, numbers(count, seed) }, 1, 3, #list + 1, list)
  end
  add(at.x, small, step)
  add(at.inside, part, step + 100)
  if step % 3 == 1 then add(at.x, small, step + 200) end
  if step % 2 == 0 then add(at.z, large, step) end
  for i = 1, step * 4 do add(at.inside, part, 300 + i) end
  return list
end

local device, failed = arg[1] or "cuda", 0
local count, why = core.cuda_count()
if device == "cuda" and count == 0 then
  print("skipped: " .. why)
  os.exit(0)
end
local made, at = program()
local ranks <close> = programs.ranks(made, 1, { gpu_first = device == "cuda" and 0 or -1 })
local host <close> = programs.ranks(made, 1)
assert(ranks:queues() == (device == "cuda"))

local expected, runs = {}, 14
local function settle(step)
  local results = { ranks:await(step % 2) }
  for i, name in ipairs { "y", "w" } do
    if not same(expected[step][i], results[i]) then
      failed = failed + 1
      print(("run %d: %s differs"):format(step, name))
    end
  end
end

for step = 0, runs - 1 do
  local ins, section = written(at, step), "serve" .. step // 2 % 2
  for i = 1, #ins, 3 do host:write(0, ins[i + 1], ins[i + 2]) end
  host:run(section, { step = step })
  expected[step] = { host:read(0, at.y), host:read(0, at.w) }
  ranks:queue(step % 2, section, { step = step }, ins, { 0, at.y, 0, at.w })
  if step > 0 then settle(step - 1) end
end
settle(runs - 1)
print(("%d runs, %d differ"):format(runs, failed))
os.exit(failed == 0 and 0 or 1)
