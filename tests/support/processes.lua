--- processes.lua - ranks as processes against ranks as threads, bit for bit.
---
---     mpirun -np 4 build/tidelock lua tests/support/processes.lua          every collective
---     mpirun -np 4 build/tidelock lua tests/support/processes.lua fail     rank 1 fails, or stall
---
--- Rank 0 prints "N equal", or what was wrong. Needs no Lua packages.
local core = require "tidelock.core"

package.path = (arg[0]:match "^(.*)/[^/]*$" or ".") .. "/../?.lua;" .. package.path
local launch = require "tidelock.run.launch"
local programs = require "support.programs"

local found = assert(launch.open(arg[1] and 2), "start it with mpirun")
local n, job = found.world, found.job
local cases, filled = require "support.comm_programs" (n, 250000)

--- What every rank has after each of three steps; nil on another rank than 0.
local function run(case, settings)
  local b = programs.new { "all" }
  local x, y = case.make(b, case.size, case.dtype)
  local program <close> = b:program()
  local ranks <close> = programs.ranks(program, n, settings)
  if settings.job and found.rank > 0 then return ranks:serve() end
  for rank = 0, n - 1 do ranks:write(rank, x, filled(case.dtype, case.size, rank + 1)) end
  local list = {}
  for step = 0, 2 do
    ranks:run("step", { step = step })
    for rank = 0, n - 1 do list[#list + 1] = ranks:read(rank, y) end
  end
  return list
end

local function compare_all()
  local equal = 0
  for _, case in ipairs(cases) do
    local here = run(case, { job = job, timeout_s = 20 })
    if found.rank == 0 then
      local threads = run(case, {})
      for i = 1, #threads do
        if not core.equal(threads[i], here[i]) then error(case.name .. " differs", 0) end
      end
      equal = equal + 1
    end
  end
  if found.rank == 0 then print(equal .. " equal") end
end

local good, message = pcall(function()
  if not arg[1] then return compare_all() end
  run(cases[#cases], {
    job = job, timeout_s = 2, faults = { { rank = 1, instruction = 2, kind = arg[1] } },
  })
end)
local status = good and 0 or core.lost(message) and 75 or 1 -- before anything else can fail
if not good and found.rank == 0 then print(message) io.stdout:flush() end
job:close(good)
os.exit(status)
