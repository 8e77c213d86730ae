--- cluster_text.lua - what `./tl plan --cluster FILE` says below the plan.
---
---     cluster    8 x H200: 8 ranks, 139.8 GiB each
---       tp           720 a step   18.4 GB  over link at 367 GB/s    53.2 ms,  41.0 exposed
---       matrix products      274.8 ms   64%
---       ..
---     predicted  89,141 tokens/s, mfu 56%; bound by matrix products
local experts_plan = require "tidelock.forecast.experts_plan"
local flops = require "tidelock.forecast.flops"
local predict = require "tidelock.forecast.predict"
local screen = require "tidelock.text.screen"
local summaries = require "tidelock.plan.summary"

local text = {}

local function ms(seconds) return ("%9.1f ms"):format(seconds * 1000) end

--- One line for each axis that ranks talk over, the most bytes first.
local function axis_lines(time, facts, lines)
  table.sort(time.axes, function(a, b) return a.bytes > b.bytes end)
  for _, one in ipairs(time.axes) do
    local speed = one.link == "network" and facts.network or facts.link
    lines[#lines + 1] = ("    %-6s %6d a step %9.3f GB over %s, %g GB/s %s, %s exposed"):format(
      one.name, one.count, one.bytes / 1e9, one.link, speed, ms(one.seconds), ms(one.exposed))
  end
end

--- Lines of a plan's prediction.
---@param plan table # all stages
---@param facts table # of cluster.read
function text.of(plan, facts)
  local layout = plan.spec.layout
  local ranks = layout.tp * layout.dp * layout.pp
  local work = flops.of_step(plan.graph, plan.spec.batch)
  local guess = predict.of(plan, facts, summaries.bubble(plan), work)
  local time = guess.time
  local lines = {
    ("  cluster    %s: %d ranks%s, %g GiB each%s"):format(facts.name, facts.ranks,
      ranks > facts.ranks and (" (the layout has %d)"):format(ranks) or "", facts.memory,
      guess.fits and "" or ("; a rank of %s MiB does not fit"):format(screen.mib(guess.bytes))),
  }
  axis_lines(time, facts, lines)
  local causes = { { "exposed", time.exposed }, { "bubble", guess.bubble } }
  for i, name in ipairs(predict.causes) do table.insert(causes, i, { name, time[name] }) end
  for _, cause in ipairs(causes) do
    if cause[2] > 0 then
      lines[#lines + 1] = ("    %-22s %s %4.0f%%"):format(predict.words[cause[1]], ms(cause[2]),
        100 * cause[2] / guess.step_s)
    end
  end
  lines[#lines + 1] = ("    %-22s %s"):format("step", ms(guess.step_s))
  experts_plan.add_layers(plan, facts, lines)
  experts_plan.add_ways(plan, facts, lines)
  lines[#lines + 1] = ("  predicted  %s tokens/s, mfu %.0f%%; bound by %s"):format(
    screen.grouped(math.floor(guess.tokens_per_s)), 100 * guess.mfu, guess.bound)
  for i, line in ipairs(lines) do lines[i] = screen.folded(line) end
  return table.concat(lines, "\n")
end

return text
