--- `./tl verify`: run one recipe in many ways and compare every bit.
--
--   key 5e1c 09af 77d2 c340, 3 steps; a cell is the hash of losses, gradient norms and weights
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
--
-- A cell is a device, a dtype and a layout; which of them this machine can run is found by starting
-- them. A run of k steps keeps the horizon of its learning rate, so its steps are those of a long
-- run. The exit status is 0 only when no cell differs, and on every device that was asked for the
-- recipe ran as written in every dtype: a machine without a GPU proves nothing about --device cuda.

local core = require "tidelock.core"
local driver = require "tidelock.driver"
local requests = require "tidelock.requests"
local screen = require "tidelock.screen"
local verify_experts = require "tidelock.verify_experts"

local verify = {}

verify.steps = 3

--- The largest divisor of `n` that is at most `limit`.
local function divisor_below(n, limit)
  for d = math.min(n, limit), 1, -1 do
    if n % d == 0 then return d end
  end
end

--- Overrides for a layout of these axes, the others 1, with a micro-batch size that fits.
local function layout_overrides(spec, axes)
  local dp = axes.dp or 1
  local micro = divisor_below(spec.batch.samples // dp, spec.batch.micro)
  local overrides = { "batch.micro=" .. micro }
  for _, axis in ipairs { "tp", "pp", "dp" } do
    overrides[#overrides + 1] = ("layout.%s=%d"):format(axis, axes[axis] or 1)
  end
  if #spec.experts > 0 then
    overrides[#overrides + 1] = "layout.ep=" .. (axes.ep or axes.tp or 1)
  end
  overrides[#overrides + 1] = "layout.schedule=" .. (axes.schedule or "1f1b")
  if axes.schedule == "interleaved" then
    overrides[#overrides + 1] = "layout.virtual_stages=2"
  end
  return overrides
end

--- Powers of two from 2 to `most` that divide every one of `numbers`.
local function powers(most, numbers)
  local list, p = {}, 2
  while p <= most do
    local divides = true
    for _, n in ipairs(numbers) do divides = divides and n % p == 0 end
    if divides then list[#list + 1] = p end
    p = 2 * p
  end
  return list
end

local function micro_row(spec)
  local per_rank, others = spec.batch.samples // (spec.layout.dp or 1), {}
  for _, micro in ipairs { 1, 2, per_rank // 2, per_rank } do
    local fits = micro > 0 and per_rank % micro == 0 and micro ~= spec.batch.micro
    if fits and micro ~= others[#others] then others[#others + 1] = micro end
  end
  local row = { label = "micro " .. table.concat(others, ", ") }
  for i, micro in ipairs(others) do row[i] = { "batch.micro=" .. micro } end
  return row
end

local function axis_row(spec, axis, sizes)
  local row = { label = axis .. " " .. table.concat(sizes, ", ") }
  for i, size in ipairs(sizes) do row[i] = layout_overrides(spec, { [axis] = size }) end
  return row
end

local function pipeline_row(spec)
  local schedules = { "gpipe", "1f1b", "zb-h1" }
  if spec.model.layers >= 4 then table.insert(schedules, 3, "interleaved") end
  local row = { label = "pp 2 " .. table.concat(schedules, ", ") }
  for i, name in ipairs(schedules) do
    row[i] = layout_overrides(spec, { pp = 2, schedule = name })
  end
  return row
end

--- The rows of the matrix: a label and, for each cell, the overrides that make it.
---@param spec table # plan.spec of the recipe as written
---@param all boolean? # of experts the whole product
function verify.rows(spec, all)
  local leaves, samples = spec.policy.leaves, spec.batch.samples
  local rows = { { label = "as written", {} }, { label = "again", {} }, micro_row(spec) }
  rows[#rows + 1] = axis_row(spec, "dp", powers(8, { leaves.dp, samples }))
  rows[#rows + 1] = axis_row(spec, "tp", powers(8, { leaves.tp }))
  if spec.model.layers >= 2 then
    rows[#rows + 1] = pipeline_row(spec)
    if leaves.tp % 2 == 0 and leaves.dp % 2 == 0 and samples % 2 == 0 then
      rows[#rows + 1] = {
        label = "tp 2 pp 2 dp 2", layout_overrides(spec, { tp = 2, pp = 2, dp = 2 }),
      }
    end
  end
  table.move(verify_experts.rows(spec, all), 1, 8, #rows + 1, rows)
  local filled = {}
  for _, row in ipairs(rows) do
    if #row > 0 then filled[#filled + 1] = row end
  end
  return filled
end

local function start(request, overrides)
  return requests.guarded(driver.start, requests.of(request, overrides), {
    threads = request.options.threads,
  })
end

--- The spec and the key of the recipe as written; the key does not depend on the device.
local function as_written(request)
  local run <close> = start(request, { "device=host" })
  return run.plan.spec, run.plan.key
end

--- The devices of --device, in the order given.
---@param text string?
---@return string[]
function verify.read_devices(text)
  local list, seen = {}, {}
  for name in (text or "host"):gmatch "[^,]+" do
    if name ~= "host" and name ~= "cuda" or seen[name] then
      error({ status = 2, message = ("tidelock: verify: --device: %s %s; there are host and cuda, "
        .. "each once, e.g. --device host,cuda"):format(name, seen[name] and "is given twice"
        or "is no device") }, 0)
    end
    seen[name] = true
    list[#list + 1] = name
  end
  return list
end

--- Run the recipe with these overrides. Returns the bits of every step and of the weights, or nil
--- and the reason why it did not start.
local function bits_of(request, overrides, steps)
  local ok, run = pcall(start, request, overrides)
  if not ok and type(run) ~= "table" then error(run, 0) end
  if not ok then return nil, run.message end
  local _ <close> = run
  local trail = {}
  for _ = 1, steps do
    local step = run:step()
    trail[#trail + 1] = { "step " .. step.step .. ": loss", screen.bits(step.loss_bits) }
    trail[#trail + 1] = { "step " .. step.step .. ": grad norm", screen.bits(step.grad_norm_bits) }
  end
  trail[#trail + 1] = { "weights", run:weights_hash() }
  return trail
end

--- One hash for a trail.
local function hash_of(trail)
  local words = {}
  for i, item in ipairs(trail) do words[i] = item[2] end
  return core.hash(table.concat(words, " ")):sub(1, 8)
end

--- The first place where two trails differ, in words.
function verify.first_difference(head, trail)
  for i, item in ipairs(head) do
    local other = trail[i]
    if not other or other[2] ~= item[2] then
      return ("%s %s | %s"):format(item[1], item[2], other and other[2] or "nothing")
    end
  end
end

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
end

--- Run one cell and judge it. Returns its text.
local function judge(matrix, request, column, label, overrides)
  local dtype = column.dtype
  local all = { "dtype=" .. dtype, "device=" .. column.device }
  table.move(overrides, 1, #overrides, 3, all)
  local name = ("%s, %s %s"):format(label, column.device, dtype)
  local trail, reason = bits_of(request, all, matrix.steps)
  if not trail then
    skip(matrix, ("%s (%s)"):format(label, column.device), reason)
    return "-"
  end
  column.ran = column.ran + 1
  local head = matrix.heads[dtype]
  if not head then
    matrix.heads[dtype] = trail
    return hash_of(trail)
  end
  local difference = verify.first_difference(head, trail)
  if not difference then
    matrix.equal = matrix.equal + 1
    return "="
  end
  matrix.differ = matrix.differ + 1
  table.insert(matrix.notes, ("%s: differs from the head of its dtype at %s"):format(name,
    difference))
  return hash_of(trail)
end

local function say(text)
  io.stdout:write(text, "\n")
  io.stdout:flush()
end

--- Everything below the matrix.
local function conclude(matrix, seconds)
  for _, note in ipairs(matrix.notes) do say(note) end
  for _, reason in ipairs(matrix.order) do
    say(("not run: %s: %s"):format(table.concat(matrix.reasons[reason], "; "), reason))
  end
  say(("%d equal, %d differ, %d not run; %.0f s"):format(matrix.equal, matrix.differ,
    matrix.not_run, seconds))
end

--- Whether the matrix proves what was asked: no cell differs, every column ran as written.
local function verdict(matrix)
  local good = matrix.differ == 0
  for _, column in ipairs(matrix.columns) do good = good and column.as_written end
  return good and 0 or 1
end

local function new_matrix(request)
  local matrix = {
    steps = request.options.steps or verify.steps, heads = {}, notes = {}, reasons = {}, order = {},
    columns = {}, equal = 0, differ = 0, not_run = 0,
  }
  for _, device in ipairs(verify.read_devices(request.options.device)) do
    for _, dtype in ipairs { "f32", "bf16" } do
      table.insert(matrix.columns, { device = device, dtype = dtype, ran = 0 })
    end
  end
  return matrix
end

--- One row: the texts of its columns.
local function fill_row(matrix, request, row)
  local texts = {}
  for i, column in ipairs(matrix.columns) do
    local cells = {}
    for j, overrides in ipairs(row) do
      cells[j] = core.interrupted() and "-" or judge(matrix, request, column, row.label, overrides)
    end
    if row.label == "as written" then column.as_written = column.ran > 0 end
    texts[i] = ("%-16s"):format(table.concat(cells, " "))
  end
  return table.concat(texts)
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function verify.command(request)
  local begin, matrix, stopped = core.files.seconds(), new_matrix(request), false
  local spec, known_as = as_written(request)
  core.catch_interrupts()
  local rows, width, titles = verify.rows(spec, request.options.all), 20, {}
  for _, row in ipairs(rows) do width = math.max(width, #row.label) end
  for i, column in ipairs(matrix.columns) do
    titles[i] = ("%-16s"):format(column.device .. " " .. column.dtype)
  end
  say(("key %s, %s; a cell is the hash of losses, gradient norms and weights"):format(
    screen.spaced(known_as), screen.plural(matrix.steps, "step")))
  say((("  %s  %s"):format((" "):rep(width), table.concat(titles)):gsub("%s+$", "")))
  for _, row in ipairs(rows) do
    local cells = fill_row(matrix, request, row)
    say((("  %-" .. width .. "s  %s"):format(row.label, cells):gsub("%s+$", "")))
    if core.interrupted() then
      stopped = true
      say "stopped by a signal: the rows above are not all"
      break
    end
  end
  conclude(matrix, core.files.seconds() - begin)
  if matrix.differ > 0 or not stopped then return verdict(matrix) end
  return requests.stopped
end

return verify
