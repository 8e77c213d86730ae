--- `./tl bench roofline [RECIPE]`: every operator and shape of a step against the ceilings of this
--- machine, measured in the same run.
--
--   of ceiling   least time / time; the least time is FLOP / speed of large products, or bytes /
--                speed of memory, whichever is longer
--   intensity    FLOP a byte: below the ridge memory is the limit, above it the products

local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local records = require "tidelock.bench.records"
local requests = require "tidelock.plan.requests"
local screen = require "tidelock.text.screen"
local suggest = require "tidelock.text.suggest"

local roofline = {}

roofline.shown = 24

--- The records of one operator.
local function only(list, op)
  local found, names, seen = {}, {}, {}
  for _, one in ipairs(list) do
    if one.op == op then found[#found + 1] = one end
    if not seen[one.op] then names[#names + 1], seen[one.op] = one.op, true end
  end
  if #found > 0 then return found end
  table.sort(names)
  error({ status = 2, message = ("tidelock: bench: --op %s: the step has no such operator; "
    .. "nearest: %s"):format(op, suggest.nearest(op, names, 3)) }, 0)
end

---@param options table # recipe, overrides, rounds, steps, threads, op: this operator only
function roofline.tables(options)
  local run <close> = requests.guarded(driver.start, requests.recipe(options.recipe,
    options.overrides), { threads = options.threads })
  run:step()
  local ceilings = records.ceilings(run.spec, options.threads)
  local list, wall = records.of(run, options.rounds)
  if options.op then list = only(list, options.op) end
  local result = {
    title = ("Roofline of a step of %s: %s, %.1f GB/s of memory, ridge at %.0f FLOP a byte"):format(
      options.recipe:match "[^/]+$", screen.flop(ceilings.peak) .. "/s", ceilings.bandwidth / 1e9,
      ceilings.peak / ceilings.bandwidth),
    columns = { "operator", "shapes", "calls", "us a call", "share", "GFLOP/s", "GB/s", "intensity",
      "limit", "of ceiling" },
    rows = {}, measures = {},
    notes = { ("%.2f ms a step, traced, rank 0; above 100 %%: its tensors were in a cache"):format(
      wall * 1000) },
  }
  local rest = 0
  for i, one in ipairs(list) do
    local least = records.least(one, ceilings)
    if i > roofline.shown then
      rest = rest + one.seconds
    elseif not core.interrupted() then
      local talks = one.talks
      table.insert(result.rows, {
        one.op, one.shape, ("%.0f"):format(one.calls),
        ("%.1f"):format(one.seconds / one.calls * 1e6), ("%.1f%%"):format(100 * one.seconds / wall),
        one.flop > 0 and ("%.1f"):format(one.flop / one.seconds / 1e9) or "-",
        ("%.1f"):format((talks and one.moved or one.bytes) / one.seconds / 1e9),
        one.flop > 0 and ("%.1f"):format(one.flop / one.bytes) or "-",
        talks and "link" or one.flop / ceilings.peak > one.bytes / ceilings.bandwidth and "products"
          or "memory",
        talks and "-" or ("%.0f%%"):format(100 * least / one.seconds),
      })
      local us = one.seconds / one.calls * 1e6
      table.insert(result.measures, { name = (one.op .. " " .. one.shape), unit = "us", value = us,
        noise = 0.1, smaller = true })
    end
  end
  if rest > 0 then
    table.insert(result.notes, ("%d more take %.1f %% of the step"):format(#list - roofline.shown,
      100 * rest / wall))
  end
  return { result }
end

return roofline
