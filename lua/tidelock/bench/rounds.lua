--- Measurements that alternate, and what is made of them.
--
--   round 1   a b c      every entrant takes one turn a round, so that what the machine does
--   round 2   a b c      besides hits all alike; ratios are taken inside a round
--
-- A turn returns { seconds, cpu }: wall time, and processor time of all threads. On a machine that
-- others use, processor time is the steadier one.

local core = require "tidelock.core"

local rounds = {}

--- The time that work() takes.
function rounds.measure(work)
  local cpu, begin = os.clock(), core.files.seconds()
  work()
  return { seconds = core.files.seconds() - begin, cpu = os.clock() - cpu }
end

--- `count` rounds of `entrants` { turn = function, .. }. Fills entrant.turns; a turn that returns
--- nil and a reason takes its entrant out, with entrant.skip.
function rounds.run(entrants, count)
  for _, entrant in ipairs(entrants) do entrant.turns = {} end
  for round = 1, count do
    for _, entrant in ipairs(entrants) do
      if not entrant.skip then
        local turn, reason = entrant.turn()
        if turn then entrant.turns[round] = turn else entrant.skip = reason end
      end
    end
    if core.interrupted() then return end
  end
end

--- The middle one of `list`, the least and the largest.
function rounds.spread(list)
  local sorted = table.move(list, 1, #list, 1, {})
  table.sort(sorted)
  local half = #sorted // 2
  local middle = #sorted % 2 == 1 and sorted[half + 1] or (sorted[half] + sorted[half + 1]) / 2
  return middle, sorted[1], sorted[#sorted]
end

--- All values of `field` in the turns of an entrant.
local function values(entrant, field)
  local list = {}
  for i, turn in ipairs(entrant.turns) do list[i] = turn[field] end
  return list
end

--- work / time of the best turn, of the middle turn.
function rounds.rate(entrant, work)
  local middle, least = rounds.spread(values(entrant, "seconds"))
  return work / least, work / middle
end

--- work / time of all turns of an entrant as a measure for --baseline: middle, least, largest.
function rounds.measured(entrant, name, unit, work)
  local list = {}
  for i, turn in ipairs(entrant.turns) do list[i] = work / turn.seconds end
  local middle, low, high = rounds.spread(list)
  return { name = name, unit = unit, value = middle, low = low, high = high }
end

--- The middle of `field`.
function rounds.middle(entrant, field) return (rounds.spread(values(entrant, field))) end

--- time of `other` / time of `entrant`, round by round: how many times faster the entrant is.
--- Text "1.23 (1.10 to 1.31)", and the middle.
function rounds.ratio(entrant, other, field)
  local list = {}
  for i = 1, math.min(#entrant.turns, #other.turns) do
    list[i] = other.turns[i][field] / entrant.turns[i][field]
  end
  local middle, least, most = rounds.spread(list)
  return ("%.2f (%.2f to %.2f)"):format(middle, least, most), middle
end

return rounds
