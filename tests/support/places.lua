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

local function read(thread, file)
  return assert(io.open(("/proc/%d/task/%d/%s"):format(process, thread, file))):read "a"
end

local function mask(thread) return read(thread, "status"):match "Cpus_allowed_list:%s*(%S+)" end

--- The runtime's own threads, which have names; a sanitizer may have one too.
local function others()
  local list = {}
  local pipe = assert(io.popen(("ls /proc/%d/task"):format(process)))
  for thread in pipe:lines "n" do
    local name = read(thread, "comm")
    if name:find "^rank" or name:find "^helper" then list[#list + 1] = "thread " .. mask(thread) end
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
