--- `./tl bench plan`: time and memory that planning 1,024 ranks takes.
--
-- Memory is the most that the process had resident while it planned, with Lua, binary and all.

local requests = require "tidelock.plan.requests"
local rounds = require "tidelock.bench.rounds"
local screen = require "tidelock.text.screen"

local plan = {}

local overrides = {
  "layout.dp=128", "layout.tp=4", "layout.pp=2", "policy.leaves.dp=128", "batch.samples=1024",
  "batch.micro=8",
}

--- Lets the kernel count the peak of resident memory anew; false where it cannot.
local function reset_peak()
  local file = io.open("/proc/self/clear_refs", "w")
  if not file then return false end
  local ok = file:write "5"
  return file:close() and ok ~= nil
end

--- The peak of resident memory in bytes; nil where the kernel does not say.
local function peak()
  local file = io.open "/proc/self/status"
  local text = file and file:read "a" or ""
  if file then file:close() end
  local kib = text:match "VmHWM:%s*(%d+) kB"
  return kib and tonumber(kib) * 1024
end

---@param options table # recipe, overrides, rounds
function plan.tables(options)
  local words = table.move(overrides, 1, #overrides, 1, {})
  table.move(options.overrides, 1, #options.overrides, #words + 1, words)
  local ranks, counted
  local ours = {
    turn = function()
      collectgarbage()
      counted = reset_peak()
      return rounds.measure(function()
        local made = requests.plan(requests.recipe(options.recipe, words))
        local layout = made.spec.layout
        ranks = layout.tp * layout.pp * layout.dp
      end)
    end,
  }
  rounds.run({ ours }, options.rounds)
  local bytes = counted and peak()
  return { {
    title = "Planning: " .. options.recipe:match "[^/]+$",
    columns = { "ranks", "best s", "median s", "cpu s", "peak MiB" },
    rows = { {
      ranks, ("%.3f"):format(1 / rounds.rate(ours, 1)),
      ("%.3f"):format(rounds.middle(ours, "seconds")), ("%.3f"):format(rounds.middle(ours, "cpu")),
      bytes and screen.mib(bytes) or "-",
    } },
    notes = { table.concat(words, " ") },
  } }
end

return plan
