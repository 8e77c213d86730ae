--- `./tl bench trace`: what it costs to record a step: hashes of a sample, and of every element.
--
-- The runs take turns, so what the machine does besides hits all alike; on a machine that others
-- use, the ratio of processor times is the steadier one. With device=cuda wall time is what counts.

local driver = require "tidelock.run.driver"
local recorder = require "tidelock.run.recorder"
local replays = require "tidelock.trace.replays"
local requests = require "tidelock.plan.requests"
local rounds = require "tidelock.bench.rounds"

local trace = {}

local warm_steps = 3 -- on a GPU the second makes the graph, also of a traced step

local function entrant(options, label, recording)
  local run = requests.guarded(driver.start, requests.recipe(options.recipe, options.overrides), {
    threads = options.threads, recorder = recording and recorder.new(recording),
  })
  for _ = 1, warm_steps do run:step() end
  return {
    label = label, run = run,
    turn = function()
      return rounds.measure(function()
        for _ = 1, options.steps do run:step() end
      end)
    end,
  }
end

---@param options table # recipe, overrides, rounds, steps, threads
function trace.tables(options)
  local folder <close> = replays.folder()
  local entrants = {
    entrant(options, "as it is"),
    entrant(options, "traced", { dir = folder.path .. "/1" }),
    entrant(options, "traced, --full", { dir = folder.path .. "/2", full = true }),
  }
  rounds.run(entrants, options.rounds)
  local result = {
    title = "A traced step: " .. options.recipe:match "[^/]+$",
    columns = { "step", "ms/step", "cpu ms/step", "wall ratio", "cpu ratio" }, rows = {},
    notes = { "ratio: time of this step / time of the step as it is, in the same round" },
  }
  for _, e in ipairs(entrants) do
    table.insert(result.rows, {
      e.label, ("%.2f"):format(1000 * rounds.middle(e, "seconds") / options.steps),
      ("%.2f"):format(1000 * rounds.middle(e, "cpu") / options.steps),
      (rounds.ratio(entrants[1], e, "seconds")), (rounds.ratio(entrants[1], e, "cpu")),
    })
    e.run:close()
  end
  return { result }
end

return trace
