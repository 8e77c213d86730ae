--- `./tl report`: sweeps, runs and measurements as one HTML page, or as text.
--
--   sweep.jsonl  runs/quickstart-eaf6  bench.json  --read-->  points, tables  --> report.html
--                                     --baseline old.jsonl -->  per cent       --> --text
--
-- The page works without a network and without this program.

local bench = require "tidelock.bench"
local compare = require "tidelock.report.compare"
local core = require "tidelock.core"
local page = require "tidelock.report.page"
local read = require "tidelock.report.read"
local screen = require "tidelock.text.screen"
local sweep_table = require "tidelock.sweep.table"

local report = {}

local curves_most = 20 -- lines about losses in the terminal

local function change(x) return x and ("%+.1f%%"):format(100 * x) or "-" end

--- The lines of a comparison: "dp 8   tokens/s +4.2%   ms -4.0%   MiB +0.0%   bits equal".
local function comparison(points)
  local lines, width = {}, 5
  for _, point in ipairs(points) do width = math.max(width, math.min(40, #point.label)) end
  for _, point in ipairs(points) do
    local found = point.change
    if found then
      local bits = found.other_key and "another key" or found.bits == nil and "-"
        or found.bits and "equal" or "differ"
      lines[#lines + 1] = ("  %-" .. width .. "s  tokens/s %7s  ms %7s  MiB %7s  bits %s"):format(
        point.label, change(found.tokens_per_s), change(found.ms), change(found.peak_bytes), bits)
    end
  end
  return lines
end

--- Terminal tables.
function report.text(all)
  local parts = {}
  if #all.points > 0 then parts[1] = sweep_table.text(all.points) end
  local losses = {}
  for _, point in ipairs(all.points) do
    local curve = point.curve
    if curve and #curve > 1 and #losses < curves_most then
      losses[#losses + 1] = ("loss %s -> %s, steps %d to %d: %s\n"):format(
        screen.loss(curve[1][2]), screen.loss(curve[#curve][2]), curve[1][1], curve[#curve][1],
        point.label)
    end
  end
  if #losses > 0 then parts[#parts + 1] = table.concat(losses) end
  if all.compared then
    parts[#parts + 1] = ("against %s:\n"):format(all.baseline)
    local lines = comparison(all.points)
    if #lines > 0 then parts[#parts + 1] = table.concat(lines, "\n") .. "\n" end
  end
  for _, one in ipairs(all.tables) do parts[#parts + 1] = bench.markdown(one) end
  return table.concat(parts, "\n")
end

--- "5 points, 2 tables, 1 trace"
local function contents(all)
  local parts = {}
  if #all.points > 0 then parts[1] = screen.plural(#all.points, "point") end
  if #all.tables > 0 then parts[#parts + 1] = screen.plural(#all.tables, "table") end
  if #all.arenas > 0 then parts[#parts + 1] = screen.plural(#all.arenas, "trace") end
  return table.concat(parts, ", ")
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function report.command(request)
  local options, paths = request.options, request.words
  local all = read.all(paths)
  if options.baseline then
    all.baseline = options.baseline
    all.compared = compare.all(all, read.all { options.baseline })
    if all.compared == 0 then
      error({ status = 2, message = ("tidelock: --baseline %s: nothing in it has the label or the "
        .. "title of anything in %s"):format(options.baseline, table.concat(paths, ", ")) }, 0)
    end
  end
  if options.text then
    io.stdout:write(report.text(all))
    return 0
  end
  local path = options.html or "report.html"
  local title = options.title or "Tidelock: " .. table.concat(paths, ", ")
  core.files.write_atomic(path, page.html(all, title))
  io.stdout:write(("%s: %s\n"):format(path, contents(all)))
  return 0
end

return report
