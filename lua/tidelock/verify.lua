--- `./tl verify`: run one recipe in many ways and compare every bit.
--
--   key 5e1c 09af 77d2 c340, 3 steps; a cell is the hash of losses, gradient norms and weights
--                           host f32   host bf16
--     as written            4b1f90c2   c07e55d1      the head of each column
--     again                 =          =             the same bits as the head
--     micro 1, 8            = =        = =
--     dp 2, 4, 8            = = 9d01   = = -         other bits: a bug; -: not run, with the reason
--   20 equal, 1 differ, 1 not run; 48 s
--
-- A run of k steps keeps the horizon of its learning rate, so its steps are those of a long run.
-- The exit status is 0 only when no cell differs.

local core = require "tidelock.core"
local driver = require "tidelock.driver"
local requests = require "tidelock.requests"
local screen = require "tidelock.screen"

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
function verify.rows(spec)
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

--- The spec and the key of the recipe as written.
local function as_written(request)
  local run <close> = start(request, {})
  return run.plan.spec, run.plan.key
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

--- Run one cell and judge it. Returns its text.
local function judge(matrix, request, dtype, label, overrides)
  local all = { "dtype=" .. dtype }
  table.move(overrides, 1, #overrides, 2, all)
  local trail, reason = bits_of(request, all, matrix.steps)
  if not trail then
    matrix.not_run = matrix.not_run + 1
    local first_line = reason:match "[^\n]+"
    table.insert(matrix.notes, ("%s, %s: not run: %s"):format(label, dtype, first_line))
    return "-"
  end
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
  table.insert(matrix.notes, ("%s, %s: differs from the head of its column at %s"):format(label,
    dtype, difference))
  return hash_of(trail)
end

local function say(text)
  io.stdout:write(text, "\n")
  io.stdout:flush()
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function verify.command(request)
  local begin, stopped = core.files.seconds(), false
  local spec, known_as = as_written(request)
  core.catch_interrupts()
  local matrix = {
    steps = request.options.steps or verify.steps, heads = {}, notes = {},
    equal = 0, differ = 0, not_run = 0,
  }
  local dtypes, rows, width = { "f32", "bf16" }, verify.rows(spec), 20
  for _, row in ipairs(rows) do width = math.max(width, #row.label) end
  say(("key %s, %s; a cell is the hash of losses, gradient norms and weights"):format(
    screen.spaced(known_as), screen.plural(matrix.steps, "step")))
  say(("  %s  %-16s%s"):format((" "):rep(width), "host f32", "host bf16"))
  for _, row in ipairs(rows) do
    local texts = {}
    for i, dtype in ipairs(dtypes) do
      local cells = {}
      for j, overrides in ipairs(row) do
        cells[j] = judge(matrix, request, dtype, row.label, overrides)
      end
      texts[i] = ("%-16s"):format(table.concat(cells, " "))
    end
    say((("  %-" .. width .. "s  %s"):format(row.label, table.concat(texts)):gsub("%s+$", "")))
    if core.interrupted() then
      stopped = true
      say "stopped by a signal: the rows above are not all"
      break
    end
  end
  for _, note in ipairs(matrix.notes) do say(note) end
  say(("%d equal, %d differ, %d not run; %.0f s"):format(matrix.equal, matrix.differ,
    matrix.not_run, core.files.seconds() - begin))
  if matrix.differ > 0 or not matrix.heads.f32 then return 1 end
  return stopped and requests.stopped or 0
end

return verify
