--- places.lua - prints where the threads of a small run may be: `RANKS THREADS` as arguments.
---
---     main 0-3                  the mask of the first thread while the ranks are open
---     thread 0                  one line for each other thread, sorted
---     main 0-3                  after they are closed
package.path = "tests/?.lua;tests/?/init.lua;" .. package.path
local core = require "tidelock.core"
local models = require "support.models"

local ranks, threads = tonumber(arg[1]), tonumber(arg[2])
local process = math.tointeger(core.files.getpid())

local function mask(thread)
  local path = ("/proc/%d/task/%d/status"):format(process, thread)
  return assert(io.open(path)):read("a"):match "Cpus_allowed_list:%s*(%S+)"
end

local function others()
  local list = {}
  local pipe = assert(io.popen(("ls /proc/%d/task"):format(process)))
  for thread in pipe:lines "n" do
    if thread ~= process then list[#list + 1] = "thread " .. mask(thread) end
  end
  pipe:close()
  table.sort(list)
  return list
end

local run = models.start(models.with({}, { ["layout.dp"] = ranks }), { threads = threads })
run:step()
print("main " .. mask(process))
for _, line in ipairs(others()) do print(line) end
run:close()
print("main " .. mask(process))
