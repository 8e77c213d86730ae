--- Whether this machine has room for the arenas of a plan: told before anything is allocated.
--
--     memory: 8 ranks fill 340149.6 MiB, this machine has 24105.6; at the peak of a rank,
--       instruction 1175 cross_entropy_grad (recipes/llama_1b.lua:18), logits 2000.0, logits.grad
--       1000.0, m embed 250.0; a smaller batch.micro needs less, more tp or pp less for each rank
--
-- Without it the system would end the process without a word, once the arenas are written.
local forecast = require "tidelock.forecast"
local problems = require "tidelock.text.problems"
local screen = require "tidelock.text.screen"

local room = {}

local function number_in(path, pattern)
  local file = io.open(path)
  if not file then return nil end
  local text = file:read "a"
  file:close()
  return tonumber(text:match(pattern))
end

--- Bytes of memory that this process may fill: the machine's, or its control group's. Nil where
--- neither is known.
function room.bytes()
  local kib = number_in("/proc/meminfo", "MemTotal:%s+(%d+) kB")
  local limit = number_in("/sys/fs/cgroup/memory.max", "^(%d+)") -- "max": no limit
  return limit and kib and math.min(limit, kib * 1024) or limit or kib and kib * 1024
end

--- Raises, with status 2, when the plan's arenas need more than `bytes`.
---@param plan table # all stages, and its summary
---@param bytes? integer
---@param owner? string # whose memory it is; unset: "this machine"
function room.check(plan, bytes, owner)
  local summary = plan.summary
  if not bytes or summary.planned_bytes <= bytes then return end
  local peak, largest = forecast.peak(plan), {}
  for i = 1, math.min(3, #peak.largest) do
    largest[i] = peak.largest[i].name .. " " .. screen.mib(peak.largest[i].bytes)
  end
  local found = problems.new()
  found:add(nil, "memory", ("%s fill %s MiB, %s has %s; at the peak of a rank, "
    .. "instruction %d %s (%s), %s; a smaller batch.micro needs less, more tp or pp less for "
    .. "each rank"):format(screen.plural(summary.ranks, "rank"),
    screen.mib(summary.planned_bytes), owner or "this machine", screen.mib(bytes), peak.at,
    peak.op, peak.site, table.concat(largest, ", ")))
  found:raise()
end

return room
