--- verify/repeat.lua - `./tl verify RECIPE --repeat-for 10m --every 30s`: one recipe again and
--- again until the time is up, to catch what shows once a day.
---
---         #     after  load    hash        clock   temp   power
---         1       0 s  idle    4b1f90c2    3194 MHz   -   -
---         2      30 s  busy    =           3194 MHz   -   -
---
--- Every second run has a load beside it: a process that multiplies on every core, or on the GPU.
local cell = require "tidelock.verify.cell"
local child = require "tidelock.machine.child"
local core = require "tidelock.core"
local vitals = require "tidelock.machine.vitals"

local repeats = {}

--- Seconds of "90", "90s", "10m", "2h"; nil when it is none of these.
function repeats.seconds(text)
  local number, unit = text:match "^([%d.]+)([smh]?)$"
  local x = tonumber(number)
  return x and x > 0 and x * ({ [""] = 1, s = 1, m = 60, h = 3600 })[unit] or nil
end

--- A process that keeps the device busy; close it.
local function load_of(device)
  local path = package.searchpath("tidelock.machine.burn", package.path)
  local pipe = assert(io.popen(("exec $(command -v setpriv >/dev/null && echo setpriv --pdeathsig "
    .. "TERM) %s lua %s %s %d & echo $!; wait"):format(
    child.quoted(core.files.realpath "/proc/self/exe"), child.quoted(path), device,
    core.files.cpu_count())))
  local id = math.tointeger(tonumber(pipe:read "l"))
  return setmetatable({}, { __close = function()
    os.execute(("kill %d 2>/dev/null"):format(id))
    pipe:close()
  end })
end

--- Sleeps until `time` of the clock that never goes back, or a signal.
local function wait_until(time)
  while core.files.seconds() < time and not core.interrupted() do
    core.files.sleep(math.min(0.2, math.max(0.001, time - core.files.seconds())))
  end
end

local function one_run(request, column, steps, busy)
  local words = { "dtype=" .. column.dtype, "device=" .. column.device }
  local load <close> = busy and load_of(column.device) or nil
  local trail, reason = cell.trail(request, words, {}, steps)
  return trail, reason, vitals.read(column.device), load
end

--- Runs until the time is up. Calls say(text) for each run and note(row) for the file of rows.
---@param request tidelock.Request
---@param columns table[] # device and dtype of each
---@param options table # seconds, every, steps
---@return boolean good
---@return integer runs
function repeats.run(request, columns, options, say, note)
  local begin, count, good, heads = core.files.seconds(), 0, true, {}
  say(("  %6s  %8s  %-11s  %-5s %-9s %9s  %6s  %6s"):format("#", "after", "column", "load",
    "hash", "clock", "temp", "power"))
  while core.files.seconds() - begin < options.seconds and not core.interrupted() do
    local start, busy = core.files.seconds(), count % 2 == 1
    for i, column in ipairs(columns) do
      local trail, reason, now = one_run(request, column, options.steps, busy)
      local head = heads[i]
      local difference = trail and head and cell.first_difference(head, trail)
      heads[i] = head or trail
      good = good and trail ~= nil and not difference
      local hash = trail and cell.hash(trail)
      local clock, temperature, power = vitals.words(now)
      say(("  %6d  %6.0f s  %-11s  %-5s %-9s %9s  %6s  %6s"):format(count + 1, start - begin,
        column.device .. " " .. column.dtype, busy and "busy" or "idle",
        not trail and "-" or head and not difference and "=" or hash, clock, temperature, power))
      if difference then say("          differs from the first run at " .. difference) end
      if reason then say("          not run: " .. reason) end
      note { ["repeat"] = count + 1, after_s = start - begin, busy = busy, device = column.device,
        dtype = column.dtype, hash = hash, clock_mhz = now.clock_mhz, celsius = now.celsius,
        watts = now.watts, first_difference = difference, reason = reason,
        status = not trail and "not run" or not head and "head" or difference and "differ"
          or "equal" }
    end
    count = count + 1
    if options.every then wait_until(start + options.every) end
  end
  return good, count
end

return repeats
