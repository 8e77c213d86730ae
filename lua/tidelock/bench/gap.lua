--- bench/gap.lua - why a step takes longer than this machine would need: the table below
--- `./tl bench step`.
---
---     step      101.2 ms        kernels    time of an operator over its least time (bench_records)
---     ceiling    62.4 ms        launches   inside the section, in no instruction
---     gap        38.8 ms  =     waits      for other ranks, in messages
---                               link       messages without their waits
---                               outside    of the section: Lua, data, the loss on its way
---
--- A message beside a kernel takes no time of the step: only what nothing hides counts, so the
--- parts are the gap.
local records = require "tidelock.bench.records"
local screen = require "tidelock.text.screen"

local gap = {}

gap.shown = 12

--- Parts of the gap: { what, seconds, detail }, the largest first, and the ceiling.
---@param list table[] # of records.of
function gap.parts(list, wall, inside, ceilings)
  local parts, by, busy, ceiling, waits, link = {}, {}, 0, 0, 0, 0
  for _, one in ipairs(list) do
    busy = busy + one.own
    if one.talks then
      waits, link = waits + one.wait, link + one.own - one.wait
    else
      local least = math.min(one.own, records.least(one, ceilings))
      ceiling = ceiling + least
      by[one.op] = by[one.op] or { "kernels", 0, one.op, 0, 0 }
      if by[one.op][4] == 0 then parts[#parts + 1] = by[one.op] end
      by[one.op][2] = by[one.op][2] + one.own - least
      by[one.op][4], by[one.op][5] = by[one.op][4] + one.own, by[one.op][5] + least
    end
  end
  for _, part in ipairs(parts) do
    part[6] = ("at %.0f%% of its ceiling"):format(100 * part[5] / part[4])
  end
  parts[#parts + 1] = { "launches", math.max(0, inside - busy), "between instructions" }
  parts[#parts + 1] = { "waits", waits, "for other ranks" }
  parts[#parts + 1] = { "link", link, "messages" }
  parts[#parts + 1] = { "outside", math.max(0, wall - inside), "Lua and data" }
  table.sort(parts, function(a, b)
    if a[2] ~= b[2] then return a[2] > b[2] end
    return a[3] < b[3]
  end)
  return parts, ceiling
end

---@param run tidelock.Run
---@param options table # rounds, steps, threads, recipe
function gap.table(run, options)
  local ceilings = records.ceilings(run.spec, options.threads)
  local list, wall, inside = records.of(run, options.rounds * options.steps)
  local parts, ceiling = gap.parts(list, wall, inside, ceilings)
  local missing, sums = math.max(1e-12, wall - ceiling), {}
  local result = {
    title = ("The gap between a step and its ceiling: %.2f ms, of which %.2f are needed"):format(
      wall * 1000, ceiling * 1000),
    columns = { "what", "where", "ms", "of the gap", "remark" }, rows = {},
    notes = { ("ceiling: products at %s/s, memory at %.1f GB/s, measured in this run; rank 0, "
      .. "traced"):format(screen.flop(ceilings.peak), ceilings.bandwidth / 1e9) },
  }
  for i, part in ipairs(parts) do
    sums[part[1]] = (sums[part[1]] or 0) + part[2]
    if i <= gap.shown then
      table.insert(result.rows, { part[1], part[3], ("%.3f"):format(part[2] * 1000),
        ("%.1f%%"):format(100 * part[2] / missing), part[6] or "" })
    end
  end
  local words = {}
  for _, what in ipairs { "kernels", "launches", "waits", "link", "outside" } do
    words[#words + 1] = { what, sums[what] or 0 }
  end
  table.sort(words, function(a, b) return a[2] > b[2] end)
  for i, word in ipairs(words) do
    words[i] = ("%s %.1f%%"):format(word[1], 100 * word[2] / missing)
  end
  table.insert(result.notes, 1, "of the gap: " .. table.concat(words, ", "))
  return result
end

return gap
