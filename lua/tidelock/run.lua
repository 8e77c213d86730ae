--- `./tl run`: train, show, keep, compare.
--
--   load recipe -> plan and start (driver) -> header -> step, step, ... -> summary -> compare
--                                                       |
--                            row, live line, log.jsonl, comparison with the run of the same key
--
-- A run ends at a step boundary: after the last step, at --stop-at N, or when Ctrl-C was pressed.
-- A value that is not finite ends it as an error: the driver runs that step again with checks and
-- names the step, the first instruction and its tensor.

local core = require "tidelock.core"
local driver = require "tidelock.driver"
local explain = require "tidelock.explain"
local flops = require "tidelock.flops"
local header = require "tidelock.header"
local launch = require "tidelock.launch"
local log = require "tidelock.log"
local requests = require "tidelock.requests"
local runs = require "tidelock.runs"
local screen = require "tidelock.screen"

local run = {}

local peak_seconds = 0.05
local start_seconds = 300 -- for the first run of a section, whatever --timeout says
local poison_byte = 0xff -- four of them are a NaN, in f32 and in bf16

local function new_screen(options)
  local terminal = core.files.isatty(1) and core.files.isatty(2)
  return screen.new {
    out = io.stdout, live = io.stderr, terminal = terminal, quiet = options.quiet,
    color = screen.wants_color(terminal, os.getenv "NO_COLOR"),
    width = terminal and core.files.columns() or 80,
  }
end

---@class tidelock.Session
---@field run table # of the driver
---@field plan table
---@field screen table
---@field log table
---@field folder table # of runs.lua
---@field work number # floating-point operations of a step
---@field peak number|nil # floating-point operations a second

--- What the log and the screen say of a step.
local function record_of(session, step, elapsed)
  local record = {
    step = step.step, loss = step.loss, loss_bits = screen.bits(step.loss_bits),
    grad_norm = step.grad_norm, grad_norm_bits = screen.bits(step.grad_norm_bits),
    lr = step.lr, tokens = step.tokens, ms = step.ms, watch = step.watch,
    tokens_per_s = step.tokens / (step.ms / 1000),
    bytes = session.run:memory().peak_bytes,
    eta = (session.last - step.step) * elapsed / (step.step - session.first + 1),
  }
  if session.peak then record.mfu = session.work / (step.ms / 1000) / session.peak end
  return record
end

--- The evaluation that is due after this step, if any: printed, and added to the record.
local function evaluate(session, record)
  local eval = session.plan.spec.eval
  if not eval or record.step % eval.every ~= 0 and record.step ~= session.last then return end
  local result = session.run:eval()
  record.eval_loss, record.eval_loss_bits = result.loss, screen.bits(result.loss_bits)
  session.screen:print(("  eval %s (%s)"):format(screen.loss(result.loss), record.eval_loss_bits))
end

--- Run steps until the end. Returns the first and last record, or raises the fault.
local function train(session)
  local show, every = session.screen, session.plan.spec.log and session.plan.spec.log.every or 10
  local begin = core.files.seconds()
  local first, last
  repeat
    local step = session.run:step()
    if step.skipped then show:note(("step %d: skipped: %s"):format(step.step, step.skipped)) end
    local record = record_of(session, step, core.files.seconds() - begin)
    local stop = step.step >= session.last or core.interrupted()
    first = first or record
    last = record
    if screen.shows(step.step, stop and step.step or session.last, every, show.terminal) then
      show:print(screen.row(record))
    end
    evaluate(session, record)
    session.log:write(record)
    local difference = session.folder:compare(record)
    if difference then
      show:note(("differs from %s at %s"):format(session.folder.reference, difference))
    end
    show:update(record, session.last)
  until stop
  show:close()
  return first, last, core.files.seconds() - begin
end

--- The last record of the log, and of the run's folder.
local function summary_of(session, request, last)
  local memory = session.run:memory()
  return {
    summary = true, key = session.plan.key, recipe_hash = session.plan.recipe_hash,
    weights_hash = session.run:weights_hash(), peak_bytes = memory.peak_bytes,
    planned_bytes = memory.planned_bytes, steps = last.step, loss = last.loss,
    loss_bits = last.loss_bits, recipe = request.recipe,
    overrides = table.concat(request.overrides, " "),
  }
end

local function print_summary(session, first, last, seconds, summary)
  local function line(label, text) session.screen:print(screen.summary_line(label, text), true) end
  local steps = last.step - first.step + 1
  local used = screen.mib(summary.peak_bytes)
  if last.step < session.last then
    line("stopped", ("by Ctrl-C after step %d of %d"):format(last.step, session.last))
  end
  line("trained", ("%s, %s tokens in %.1f s; %s MiB used, %s"):format(screen.plural(steps, "step"),
    screen.grouped(steps * last.tokens), seconds, used,
    summary.peak_bytes == summary.planned_bytes and "as planned"
      or screen.mib(summary.planned_bytes) .. " planned"))
  line("loss", ("%s -> %s (%s)"):format(screen.loss(first.loss), screen.loss(last.loss),
    last.loss_bits))
  line("weights", session.screen:strong(summary.weights_hash))
end

--- All weights, as the writer of safetensors files takes them.
local function tensors_of(trained)
  local list = {}
  for i, weight in ipairs(trained:weights()) do
    list[i] = { name = weight.name, tensor = trained:weight(weight.name) }
  end
  return list
end

--- Save, compare and say so. Returns the exit status.
local function conclude(session, summary, request)
  local show = session.screen
  session.log:write(summary)
  session.log:close()
  local known = session.folder.reference_summary
  if not known or summary.steps > known.steps then
    core.weights.write(session.folder:path "weights.safetensors", tensors_of(session.run), {
      key = summary.key, step = tostring(summary.steps), weights_hash = summary.weights_hash,
    })
  end
  local verdict = session.folder:finish(summary)
  if verdict.saved then
    show:print(screen.summary_line("saved", verdict.saved .. ": recipe, log.jsonl, weights"), true)
  end
  if verdict.text then show:print(screen.summary_line("bits", verdict.text), true) end
  if not verdict.text and not request.options.quiet then
    for i, text in ipairs(header.next_commands(session.plan, request)) do
      show:print(screen.summary_line(i == 1 and "next" or "", text))
    end
  end
  return verdict.equal == false and 1 or 0
end

--- Everything between the start of the driver and its end.
local function drive(session, request)
  local show = session.screen
  local data = session.run.notes[1]
  show:print(header.text(session.plan, request.recipe, data.summary, session.ready_seconds,
    session.run.launched))
  if session.run.places then
    local coordinates = {}
    for i, rank in ipairs(session.run.table) do coordinates[i] = rank.coordinates end
    show:print(launch.table(session.run.places, coordinates))
  end
  for _, notes in ipairs(session.run.notes) do
    for _, warning in ipairs(notes.warnings) do show:note(warning) end
  end
  for _, note in ipairs(session.plan.spec.notes or {}) do show:note(note) end
  show:print("\n" .. screen.titles())
  local first, last, seconds = train(session)
  show:print ""
  local summary = summary_of(session, request, last)
  print_summary(session, first, last, seconds, summary)
  return conclude(session, summary, request)
end

--- The session of a started run: folder, log, screen, and what the machine can do.
local function new_session(trained, request, begin)
  local options, plan = request.options, trained.plan
  local records = log.open { options.jsonl } -- first: a wrong name leaves no folder behind
  local folder = runs.open(options.runs or "runs", plan.spec.name, plan.key)
  folder:describe(plan.recipe.files, explain.text(plan, "check"))
  records:add(folder:path "log.jsonl")
  return {
    run = trained, plan = plan, screen = new_screen(options), folder = folder, first = 1,
    last = math.min(plan.spec.train.steps, options.stop_at or math.huge),
    log = records,
    work = flops.of_step(plan.graph, plan.spec.batch),
    peak = flops.measure_peak(plan.spec.dtype, peak_seconds, options.threads),
    ready_seconds = core.files.seconds() - begin,
  }
end

--- What the driver is told.
local function start_options(options, launched)
  local timeout = options.timeout
  return {
    threads = options.threads, check = options.check, launched = launched, timeout = timeout,
    start = timeout and math.max(timeout, start_seconds),
    poison = options.poison and poison_byte or nil,
  }
end

--- The run of the one process, or of rank 0.
local function lead(request, launched)
  local options, begin = request.options, core.files.seconds()
  local trained <close> = requests.guarded(driver.start, requests.of(request),
    start_options(options, launched))
  local session = new_session(trained, request, begin)
  local ok, result = pcall(drive, session, request)
  if ok then return result end
  session.screen:close()
  session.log:close()
  session.folder:abandon()
  error(result, 0)
end

local function message_of(problem)
  return type(problem) == "table" and problem.message or tostring(problem)
end

local function status_of(problem) return type(problem) == "table" and problem.status or 1 end

--- What the other ranks do. Rank 0 prints what goes wrong; if that is lost, rank 1 does.
local function follow(request, launched)
  local job = launched.job
  local ok, problem = pcall(function()
    requests.guarded(driver.start, requests.of(request), start_options(request.options, launched))
  end)
  if not ok then
    local text = message_of(problem)
    job:fail(("rank %d: %s"):format(launched.rank, text))
    if job:headless() and launched.rank == 1 then io.stderr:write(text, "\n") end
  end
  if not ok then job:leave(status_of(problem)) end
  job:close(true)
  return 0
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function run.command(request)
  local launched = launch.open(request.options.timeout)
  if not launched then return lead(request) end
  if launched.rank > 0 then return follow(request, launched) end
  local ok, result = pcall(lead, request, launched)
  if not ok then -- said before the others may end: then the launcher ends this one too
    io.stdout:flush()
    io.stderr:write(message_of(result), "\n")
  end
  if not ok then launched.job:leave(status_of(result)) end
  launched.job:close(true)
  return result
end

return run
