--- `./tl bench ranks`: what it costs to train as eight thread ranks instead of one.
--
-- All layouts use the same cores: one rank with a team of helpers, or eight ranks that share them.
-- They compute the same bits, so the loss in speed is the cost of the layout alone.

local driver = require "tidelock.run.driver"
local requests = require "tidelock.plan.requests"
local rounds = require "tidelock.bench.rounds"
local screen = require "tidelock.text.screen"

local ranks = {}

local layouts = {
  { "1 rank", dp = 1 },
  { "dp 8", "layout.dp=8", dp = 8 },
  { "tp 2 pp 2 dp 2", "layout.tp=2", "layout.pp=2", "layout.dp=2", dp = 2 },
}

local function common_divisor(a, b) return b == 0 and a or common_divisor(b, a % b) end

--- A run of the recipe in a layout. `batch` is that of the recipe: a rank with fewer samples than
--- its micro-batch has smaller micro-batches.
local function entrant(options, layout, batch)
  local words = table.move(options.overrides, 1, #options.overrides, 1, {})
  table.move(layout, 2, #layout, #words + 1, words)
  if batch then
    words[#words + 1] = "batch.micro=" .. common_divisor(batch.samples // layout.dp, batch.micro)
  end
  local run = requests.guarded(driver.start, requests.recipe(options.recipe, words), {
    threads = options.threads,
  })
  run:step()
  return {
    label = layout[1], run = run,
    turn = function()
      return rounds.measure(function()
        for _ = 1, options.steps do run:step() end
      end)
    end,
  }
end

---@param options table # recipe, overrides, rounds, steps, threads
function ranks.tables(options)
  local entrants = {}
  local batch
  for i, layout in ipairs(layouts) do
    entrants[i] = entrant(options, layout, batch)
    batch = batch or entrants[i].run.spec.batch
  end
  rounds.run(entrants, options.rounds)
  local result = {
    title = ("Thread ranks on %d threads: %s"):format(options.threads,
      options.recipe:match "[^/]+$"),
    columns = { "layout", "tok/s best", "tok/s median", "cpu ms/step", "wall ratio", "cpu ratio" },
    rows = {}, measures = {},
    notes = { "ratio: tok/s of this layout / tok/s of 1 rank, in the same round" },
  }
  for _, e in ipairs(entrants) do
    local best, middle = rounds.rate(e, options.steps * batch.samples * batch.length)
    table.insert(result.rows, {
      e.label, screen.short(best), screen.short(middle),
      ("%.1f"):format(1000 * rounds.middle(e, "cpu") / options.steps),
      (rounds.ratio(e, entrants[1], "seconds")), (rounds.ratio(e, entrants[1], "cpu")),
    })
    table.insert(result.measures, rounds.measured(e, "step, " .. e.label, "tok/s",
      options.steps * batch.samples * batch.length))
    e.run:close()
  end
  return { result }
end

return ranks
