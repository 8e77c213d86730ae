--- `./tl verify`: run one recipe in many ways and compare every bit.
--
--   key 5e1c 09af 77d2 c340, 3 steps; a cell is the hash of losses, gradients and weights
--                           host f32   host bf16   cuda f32   cuda bf16      --device host,cuda
--     as written            4b1f90c2   c07e55d1    =          =
--     again                 =          =           =          =
--     micro 1, 8            = =        = =         = =        = =
--     dp 2, 4, 8            = = 9d01   = = -       - - -      - - -
--   28 equal, 1 differ, 7 not run; 48 s
--
--     4b1f..   the head: the first cell that ran with this dtype, on whichever device
--     =        the same bits as the head        9d01   other bits: a bug
--     -        not run: the reason stands below the matrix, once for all cells that share it
--     failed   it started and did not come to its end: as bad as other bits
--
-- The first cell that differs and its head are run again, traced, and compared by what `./tl diff`
-- is made of: it names the instruction and the element.
--
-- A cell is a device, a dtype and a layout; which of them this machine can run is found by starting
-- them. A run of k steps keeps the horizon of its learning rate, so its steps are those of a long
-- run. The exit status is 0 only when no cell differs, and on every device that was asked for the
-- recipe ran as written in every dtype: a machine without a GPU proves nothing about --device cuda.

local cell = require "tidelock.verify.cell"
local core = require "tidelock.core"
local diff = require "tidelock.trace.diff"
local driver = require "tidelock.run.driver"
local log = require "tidelock.run.log"
local order = require "tidelock.verify.order"
local replays = require "tidelock.trace.replays"
local requests = require "tidelock.plan.requests"
local repeats = require "tidelock.verify.repeat"
local rows_of = require "tidelock.verify.rows"
local sample = require "tidelock.verify.sample"
local screen = require "tidelock.text.screen"
local vitals = require "tidelock.machine.vitals"

local verify = {}

verify.steps = 3

local function usage(format, ...)
  error({ status = 2, message = "tidelock: verify: " .. format:format(...) }, 0)
end

--- Names of a list, each once, of those that there are.
local function read_names(text, option, known, noun)
  local list, seen = {}, {}
  for name in text:gmatch "[^,]+" do
    local there = false
    for _, other in ipairs(known) do there = there or other == name end
    if not there or seen[name] then
      usage("%s: %s %s; there are %s, each once, e.g. %s %s", option, name, seen[name]
        and "is given twice" or "is no " .. noun, table.concat(known, " and "), option,
        table.concat(known, ","))
    end
    seen[name] = true
    list[#list + 1] = name
  end
  return list
end

--- The devices of --device, in the order given.
---@param text string?
---@return string[]
function verify.read_devices(text)
  return read_names(text or "host", "--device", { "host", "cuda" }, "device")
end

verify.first_difference = cell.first_difference

--- A cell that did not run: its reason is kept once, with the cells that share it.
local function skip(matrix, name, reason)
  reason = reason:match "[^\n]+":gsub("^command line: ", "")
  matrix.not_run = matrix.not_run + 1
  local cells = matrix.reasons[reason]
  if not cells then
    cells = {}
    matrix.reasons[reason] = cells
    table.insert(matrix.order, reason)
  end
  if not cells[name] then cells[#cells + 1] = name end
  cells[name] = true
  return reason
end

--- What a head or the first cell that differs has to be run again from.
local function place(request, words, one, trail)
  local overrides = table.move(request.overrides, 1, #request.overrides, 1, {})
  table.move(words, 1, #words, #overrides + 1, overrides)
  return { words = words, one = one, trail = trail, side = { folder = "the cell", key = trail.key,
    recipe = request.recipe, overrides = overrides, point = request.options.point,
    records = {}, start = one.start } }
end

--- Runs a cell of a column and judges it. Returns its text.
local function judge(matrix, request, column, row, one)
  local words = { "dtype=" .. column.dtype, "device=" .. column.device }
  table.move(one, 1, #one, #words + 1, words)
  local name = ("%s, %s %s"):format(row.label, column.device, column.dtype)
  local begin = core.files.seconds()
  local trail, reason, failed = cell.trail(request, words, one, matrix.steps)
  local record = { row = row.label, device = column.device, dtype = column.dtype,
    overrides = table.concat(one, " "), seconds = core.files.seconds() - begin }
  local now = vitals.read(column.device)
  record.clock_mhz, record.celsius, record.watts = now.clock_mhz, now.celsius, now.watts
  if failed then
    matrix.failed = matrix.failed + 1
    record.status, record.reason = "failed", reason
    matrix:note(record)
    table.insert(matrix.notes, ("%s: failed: %s"):format(name, reason:match "[^\n]*"))
    return "failed"
  elseif not trail then
    record.status, record.reason = "not run", skip(matrix, ("%s (%s)"):format(row.label,
      column.device), reason)
    matrix:note(record)
    return "-"
  end
  column.ran = column.ran + 1
  local hash, family = cell.hash(trail), (row.family or "") .. " " .. column.dtype
  local head = matrix.heads[family]
  local difference = head and cell.first_difference(head.trail, trail)
  record.hash, record.first_difference = hash, difference
  record.status = not head and "head" or difference and "differ" or "equal"
  matrix:note(record)
  if not head then
    matrix.heads[family] = place(request, words, one, trail)
    return hash
  elseif not difference then
    matrix.equal = matrix.equal + 1
    return "="
  end
  matrix.differ = matrix.differ + 1
  table.insert(matrix.notes, ("%s: differs from the head of its %s at %s"):format(name,
    row.family and "kind" or "dtype", difference))
  matrix.first = matrix.first or { head = head, cell = place(request, words, one, trail) }
  return hash
end

local function say(text)
  io.stdout:write(text, "\n")
  io.stdout:flush()
end

--- Cells whose data is made here: how many elements have other bits, and how far they are.
local function explain_made(matrix, request, first)
  local a = cell.tensors(request, first.head.words, first.head.one, matrix.steps)
  local b = cell.tensors(request, first.cell.words, first.cell.one, matrix.steps)
  local differ, total, norm = sample.distance(a, b)
  say(("  %s of %s elements of its %sgradients differ; norm of the difference %.3g of "
    .. "the whole"):format(screen.grouped(differ), screen.grouped(total),
    first.cell.one.sample and "logits and " or "", norm))
end

--- Both sides of the first cell that differs once more, traced.
local function explain(matrix, request)
  local first = matrix.first
  say("the first cell that differs, and its head, run again:")
  if first.cell.one.sample or first.cell.one.order then
    return explain_made(matrix, request, first)
  end
  if first.cell.one.outside or first.head.one.outside then
    return say "  ran in other processes: ./tl run both with --trace DIR, then ./tl diff"
  end
  local good, problem = pcall(function()
    local temporary <close> = replays.folder()
    local left, right = first.head.side, first.cell.side
    local last = cell.first_step(first.head.trail, first.cell.trail) or matrix.steps
    local a, b = replays.both(left, right, last, temporary)
    local lines = diff.traces(a, b, function(step)
      return replays.values(left, right, step, temporary)
    end)
    for _, line in ipairs(lines) do say("  " .. line) end
    a:close()
    b:close()
  end)
  if not good then
    say("  not explained: " .. tostring(type(problem) == "table" and problem.message or problem))
  end
end

--- Everything below the matrix.
local function conclude(matrix, request, seconds)
  for _, note in ipairs(matrix.notes) do say(note) end
  if matrix.first then explain(matrix, request) end
  for _, reason in ipairs(matrix.order) do
    say(screen.folded(("not run:  %s: %s"):format(table.concat(matrix.reasons[reason], "; "),
      reason)))
  end
  local failed = matrix.failed > 0 and matrix.failed .. " failed, " or ""
  say(("%d equal, %d differ, %s%d not run; %.0f s"):format(matrix.equal, matrix.differ, failed,
    matrix.not_run, seconds))
end

--- Whether the matrix proves what was asked: no cell differs, every column ran as written.
local function verdict(matrix)
  local good = matrix.differ + matrix.failed == 0
  for _, column in ipairs(matrix.columns) do good = good and column.as_written end
  return good and 0 or 1
end

local function new_matrix(request)
  local options = request.options
  local matrix = {
    steps = options.steps or verify.steps, heads = {}, notes = {}, reasons = {}, order = {},
    columns = {}, equal = 0, differ = 0, failed = 0, not_run = 0, file = options.jsonl
      and log.open { options.jsonl },
  }
  local dtypes = read_names(options.dtype or "f32,bf16", "--dtype", { "f32", "bf16" }, "dtype")
  for _, device in ipairs(verify.read_devices(options.device)) do
    for _, dtype in ipairs(dtypes) do
      table.insert(matrix.columns, { device = device, dtype = dtype, ran = 0 })
    end
  end
  function matrix:note(record)
    if not self.file then return end
    record.version = 1 -- docs/records.schema.json
    self.file:write(record)
  end
  return matrix
end

--- One row: the texts of its columns.
local function fill_row(matrix, request, row)
  local texts = {}
  for i, column in ipairs(matrix.columns) do
    local cells = {}
    for j, one in ipairs(row) do
      cells[j] = core.interrupted() and "-" or judge(matrix, request, column, row, one)
    end
    if row.label == "as written" then column.as_written = column.ran > 0 end
    texts[i] = ("%-18s"):format(table.concat(cells, " "))
  end
  return table.concat(texts)
end

--- The matrix, row by row. Returns whether a signal ended it.
local function fill(matrix, request, rows)
  local width, titles = 20, {}
  for _, row in ipairs(rows) do width = math.max(width, #row.label) end
  for i, column in ipairs(matrix.columns) do
    titles[i] = ("%-18s"):format(column.device .. " " .. column.dtype)
  end
  say((("  %s  %s"):format((" "):rep(width), table.concat(titles)):gsub("%s+$", "")))
  for _, row in ipairs(rows) do
    local cells = fill_row(matrix, request, row)
    say((("  %-" .. width .. "s  %s"):format(row.label, cells):gsub("%s+$", "")))
    for i, name in ipairs(row.names or {}) do say(("    %d  %s"):format(i, name)) end
    if core.interrupted() then
      say "stopped by a signal: the rows above are not all"
      return true
    end
  end
end

--- `--repeat-for`: the recipe as written until the time is up.
local function command_repeat(matrix, request, key)
  local given, options = request.options, { steps = matrix.steps }
  options.seconds = repeats.seconds(given.repeat_for)
  options.every = given.every and repeats.seconds(given.every)
  if not options.seconds then usage("--repeat-for: %q; write 90s, 10m or 2h", given.repeat_for) end
  if given.every and not options.every then usage("--every: %q; write 30s or 5m", given.every) end
  core.catch_interrupts()
  say(("key %s, %s; the recipe as written for %s"):format(screen.spaced(key),
    screen.plural(matrix.steps, "step"), given.repeat_for))
  local good, count = repeats.run(request, matrix.columns, options, say, function(record)
    matrix:note(record)
  end)
  say(("%s, %s"):format(screen.plural(count, "run"), good and "all with the same bits"
    or "not all with the same bits"))
  if not good then return 1 end
  return core.interrupted() and requests.stopped or 0
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function verify.command(request)
  local begin, matrix, options = core.files.seconds(), new_matrix(request), request.options
  if options.every and not options.repeat_for then usage "--every goes with --repeat-for" end
  local run <close> = requests.guarded(driver.start, requests.of(request, { "device=host" }), {
    threads = options.threads,
  })
  local key, spec = run.plan.key, run.plan.spec
  if options.repeat_for then return command_repeat(matrix, request, key) end
  core.catch_interrupts()
  local sample_rows, sample_note = sample.rows(run)
  local order_rows, order_note = order.rows(run)
  table.move(sample_rows, 1, #sample_rows, #order_rows + 1, order_rows)
  local rows = rows_of.of(spec, options, order_rows)
  say(("key %s, %s; a cell is the hash of losses, gradients and weights"):format(
    screen.spaced(key), screen.plural(matrix.steps, "step")))
  local stopped = fill(matrix, request, rows)
  if order_note then say(order_note) end
  if sample_note then say(sample_note) end
  conclude(matrix, request, core.files.seconds() - begin)
  if matrix.file then matrix.file:close() end
  if matrix.differ + matrix.failed > 0 or not stopped then return verdict(matrix) end
  return requests.stopped
end

return verify
