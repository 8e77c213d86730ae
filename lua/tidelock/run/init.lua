--- `./tl run`: train, show, keep, compare.
--
--   load recipe -> plan and start (driver) -> header -> step, step, ... -> summary -> compare
--                                                       |
--                            row, live line, log.jsonl, comparison with the run of the same key
--
-- A run ends at a step boundary: after the last step, at --stop-at N, or after Ctrl-C, SIGTERM or
-- SIGHUP.
-- A value that is not finite ends it as an error: the driver runs that step again with checks and
-- names the step, the first instruction and its tensor.

local checkpoint = require "tidelock.run.checkpoint"
local cluster = require "tidelock.forecast.cluster"
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local explain = require "tidelock.forecast.explain"
local flops = require "tidelock.forecast.flops"
local header = require "tidelock.run.header"
local launch = require "tidelock.run.launch"
local loads = require "tidelock.run.loads"
local log = require "tidelock.run.log"
local metrics = require "tidelock.run.metrics"
local observer = require "tidelock.run.observer"
local origin = require "tidelock.language.origin"
local profile = require "tidelock.run.profile"
local recorder = require "tidelock.run.recorder"
local requests = require "tidelock.plan.requests"
local runs = require "tidelock.run.runs"
local checkpoints = require "tidelock.run.saves"
local screen = require "tidelock.text.screen"
local vitals = require "tidelock.machine.vitals"

local run = {}

local peak_seconds = 0.05
local start_seconds = 300 -- for the first run of a section, whatever --timeout says
local poison_byte = 0xff -- four of them are a NaN, in f32 and in bf16

local function new_screen(options)
  local terminal = core.files.isatty(1) and core.files.isatty(2) and os.getenv "TERM" ~= "dumb"
  return screen.new {
    out = io.stdout, live = io.stderr, terminal = terminal, quiet = options.quiet,
    color = screen.wants_color(terminal, os.getenv "NO_COLOR"),
    width = function() return terminal and core.files.columns() or screen.columns_max end,
  }
end

---@class tidelock.Session
---@field run table # of the driver
---@field plan table
---@field screen table
---@field log table
---@field folder table # of runs.lua
---@field terms string[] # names of the extra losses
---@field work number # floating-point operations of a step
---@field peak number|nil # floating-point operations a second

--- What the log and the screen say of a step.
local function record_of(session, step, elapsed)
  local record = {
    version = log.version,
    step = step.step, loss = step.loss, loss_bits = screen.bits(step.loss_bits),
    grad_norm = step.grad_norm, grad_norm_bits = screen.bits(step.grad_norm_bits),
    lr = step.lr, tokens = step.tokens, ms = step.ms, watch = step.watch,
    losses = step.losses, losses_bits = step.losses_bits, experts = step.experts,
    exchange = step.exchange,
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

--- The checkpoint that is due after this step, if any; then what the one before has come to.
local function save(session, record, stop)
  local saves = session.saves
  if not saves then return end
  if saves:due(record.step, stop) then
    local before = saves.current
    saves:save(session.run, session.parent)
    if saves.current and saves.current ~= before then
      if session.metrics then
        session.metrics:checkpoint(record.step, session.run:weights_hash(), saves.current.bytes)
      end
      session.screen:print(("  checkpoint %s: %s MiB, copied in %.0f ms"):format(
        saves.current.folder, screen.mib(saves.current.bytes), saves.copy_ms))
    end
  end
  saves:settle(stop)
end

--- The step in the file of `--metrics`; where it cannot be written, that is said once.
local function tell_metrics(session, record, skipped, seen)
  if not session.metrics then return end
  local problem = session.metrics:step(record, {
    skipped = skipped, planned = session.plan.summary.planned_bytes, seen = seen,
    vitals = vitals.read(session.plan.spec.device),
  })
  session.observer:mark()
  if problem and not session.metrics_failed then session.screen:note(problem) end
  session.metrics_failed = problem
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
    local seen = session.observer and session.observer:step(record)
    session.stopped = step.step < session.last and core.interrupted()
    local stop = step.step >= session.last or session.stopped
    first = first or record
    last = record
    if screen.shows(step.step, stop and step.step or session.last, every, show.terminal) then
      show:print(screen.row(record, show.width()))
      local extra = screen.losses(session.terms, record)
      if extra then show:print(extra) end
      if record.experts then show:print(loads.text(record.experts)) end
    end
    evaluate(session, record)
    session.log:write(record)
    tell_metrics(session, record, step.skipped, seen)
    save(session, record, stop)
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
    version = log.version, summary = true,
    key = session.plan.key, recipe_hash = session.plan.recipe_hash,
    weights_hash = session.run:weights_hash(), peak_bytes = memory.peak_bytes,
    planned_bytes = memory.planned_bytes, beside_bytes = memory.beside_bytes,
    beside = memory.beside, steps = last.step, loss = last.loss,
    loss_bits = last.loss_bits, recipe = request.recipe,
    overrides = table.concat(request.overrides, " "), parent = session.parent,
    checkpoint = session.saves and session.saves.newest and session.saves.newest.folder,
  }
end

local function print_summary(session, first, last, seconds, summary)
  local function line(label, text) session.screen:print(screen.summary_line(label, text), true) end
  local steps = last.step - first.step + 1
  local used = screen.mib(summary.peak_bytes)
  if session.stopped then
    line("stopped", ("by %s after step %d of %d"):format(session.stopped == "SIGINT" and "Ctrl-C"
      or session.stopped, last.step, session.last))
  end
  line("trained", ("%s, %s tokens in %.1f s"):format(screen.plural(steps, "step"),
    screen.grouped(steps * last.tokens), seconds))
  line("memory", ("%s MiB of arenas used, %s; beside them %s"):format(used,
    summary.peak_bytes == summary.planned_bytes and "as planned"
      or screen.mib(summary.planned_bytes) .. " planned",
    screen.memory_text(summary.beside_bytes, screen.kinds(summary.beside))))
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
  if session.saves then session.saves:close() end
  local known = session.folder.reference_summary
  if not known or summary.steps > known.steps then
    local path = session.folder:path "weights.safetensors"
    runs.write_weights(path, tensors_of(session.run), summary)
  end
  local verdict = session.folder:finish(summary)
  if verdict.saved then
    show:print(screen.summary_line("saved", verdict.saved .. ": recipe, log.jsonl, weights"
      .. (summary.checkpoint and ", checkpoints" or "")), true)
  end
  if verdict.text then show:print(screen.summary_line("bits", verdict.text), true) end
  if not verdict.text and not request.options.quiet then
    for i, text in ipairs(header.next_commands(session.plan, request, verdict.saved)) do
      show:print(screen.summary_line(i == 1 and "next" or "", text))
    end
  end
  if verdict.equal == false or session.saves and session.saves.failed then return 1 end
  return session.stopped and requests.stopped or 0
end

--- Everything between the start of the driver and its end.
local function drive(session, request)
  local show = session.screen
  local data, held = session.run.notes[1], session.run.notes[2]
  show:print(header.text(session.plan, request.recipe, data.summary, session.ready_seconds,
    show.width(), session.run.launched, held and held.summary))
  if session.run.places then
    local coordinates = {}
    for i, rank in ipairs(session.run.table) do coordinates[i] = rank.coordinates end
    show:print(launch.table(session.run.places, coordinates))
  end
  if session.folder.in_use then
    show:note(("%s is in use by another run; this one writes %s"):format(session.folder.in_use,
      session.folder.folder))
  end
  for _, notes in ipairs(session.run.notes) do
    for _, warning in ipairs(notes.warnings) do show:note("note: " .. warning) end
  end
  local plan = session.plan
  for _, notes in ipairs { plan.spec.notes or {}, plan.doubts or {},
    checkpoints.notes(session.saves, plan, session.first, session.last, session.folder.folder) } do
    for _, note in ipairs(notes) do show:note("note: " .. note) end
  end
  local wanted, steps = request.options.stop_at or 0, session.plan.spec.train.steps
  if wanted > steps then
    show:note(("note: --stop-at %d is behind the last step: train.steps is %d"):format(wanted,
      steps))
  end
  if session.found then
    for _, note in ipairs(session.found.notes) do show:note(note) end
    show:print(screen.summary_line("resumed", ("%s: step %d; %s MiB read in %.2f s"):format(
      session.found.folder, session.found.state.step, screen.mib(session.run.loaded_bytes),
      session.run.loaded_seconds)))
  elseif session.run.loaded_bytes then
    show:print(screen.summary_line("loaded", ("%s: %s MiB read in %.2f s"):format(
      session.plan.spec.model.hf.folder, screen.mib(session.run.loaded_bytes),
      session.run.loaded_seconds)))
  end
  if session.metrics and session.metrics.address then
    show:print(screen.summary_line("metrics", session.metrics.address))
  end
  if session.run.profile then
    for _, text in ipairs(profile.lines(session.run.profile, header.words(request)
      .. " --profile " .. request.options.profile)) do show:print(text) end
  end
  show:print("\n" .. screen.titles(show.width()))
  local first, last, seconds = train(session)
  show:print ""
  local summary = summary_of(session, request, last)
  print_summary(session, first, last, seconds, summary)
  local status = conclude(session, summary, request)
  if session.metrics then
    local state = status == 1 and "failed" or session.stopped and "stopped" or "finished"
    session.metrics:finish(state, { step = summary.steps, hash = summary.weights_hash })
  end
  return status
end

--- The steps that the run of a checkpoint had logged before it; none after a fork, whose steps are
--- another run's.
local function records_before(found, forks)
  local path = found.run_folder and not forks and found.run_folder .. "/log.jsonl"
  local list = {}
  for _, record in ipairs(path and log.read(path) or {}) do
    if record.step and record.step <= found.state.step then list[#list + 1] = record end
  end
  return list
end

--- `--resume DIR`, with the steps that it leaves to do.
local function find_checkpoint(options)
  if not options.resume then
    if options.fork then
      error({ status = 2, message = "tidelock: --fork goes with --resume DIR" }, 0)
    end
    return nil
  end
  local forks = {}
  for path in (options.fork or ""):gmatch "[^,%s]+" do forks[#forks + 1] = path end
  return checkpoint.find(options.resume), forks
end

--- A checkpoint that leaves nothing to do, and a profiler's window without a step, are told before
--- anything starts.
local function check_steps(found, trained, options)
  local window, done = trained.profile, found and found.state.step or 0
  if not found and not window then return end
  local steps = trained.spec.train.steps
  local last = math.min(steps, options.stop_at or math.huge)
  if window and (window[1] > steps or window[2] <= done) then
    error({ status = 2, message = ("tidelock: run: --profile %s: this run has the steps %d to %d")
      :format(options.profile, done + 1, steps) }, 0)
  end
  if not found then return end
  if found.state.step >= last then
    error({
      status = 2, message = ("tidelock: --resume: %s is the state after step %d; the run ends "
        .. "after step %d: nothing is left to do"):format(found.folder, found.state.step, last),
    }, 0)
  end
end

--- The run's folder with what is known before the first step, and its log.
local function open_folder(plan, options, append, origin_text, kept)
  local records = log.open({ options.jsonl }, append) -- first: a wrong name leaves no folder behind
  local beside = kept and kept.folder:match "^(.*)/[^/]+$" -- a repeated run is compared with itself
  local root = options.runs or beside or "runs"
  local made, folder = pcall(runs.open, root, plan.spec.name, plan.key)
  local good, message = made, folder
  if made then
    good, message = pcall(function()
      folder:describe(plan.recipe.files, explain.text(plan, "check"), origin_text)
      records:add(folder:path "log.jsonl")
    end)
    if not good then folder:discard() end
  end
  if good then return folder, records end
  records:close()
  if type(message) == "table" then message = message.message end
  error({ status = 2, message = ("tidelock: no folder for this run in %s: %s; --runs DIR keeps it "
    .. "elsewhere"):format(root, message:gsub("^tidelock: ", "")) }, 0)
end

--- The labels that tell this run's metrics from another's.
local function about(plan, request)
  local layout = screen.layout_text(plan.spec.layout)
  return { "recipe", request.recipe, "key", plan.key, "recipe_hash", plan.recipe_hash, "dtype",
    plan.spec.dtype, "device", plan.spec.device, "layout", layout == "" and "one rank" or layout,
    "version", core.build().version }
end

--- The session of a started run: folder, log, screen, and what the machine can do.
local function new_session(trained, request, begin, found, peak, facts, known)
  local options, plan = request.options, trained.plan
  local show, earlier = new_screen(options), found and records_before(found, trained.forks) or {}
  local last = math.min(plan.spec.train.steps, options.stop_at or math.huge)
  local told = options.metrics and metrics.open(options.metrics, about(plan, request), last)
  local made, folder, records = pcall(open_folder, plan, options, found ~= nil,
    origin.text(trained, request, known), known)
  if not made then
    if told then told:finish "failed" end
    error(folder, 0)
  end
  local saves = checkpoints.open(plan.spec, folder.folder, plan.key, show)
  for _, record in ipairs(earlier) do
    records:write(record, #records.files)
    folder:inherit(record, found.run_folder)
  end
  local parent, terms = trained.forks and { key = found.state.key, step = found.state.step }, {}
  for i, term in ipairs(plan["local"].terms) do terms[i] = term.name end
  return {
    run = trained, plan = plan, screen = show, folder = folder, terms = terms,
    first = found and found.state.step + 1 or 1,
    last = last, saves = saves, metrics = told or nil,
    observer = told and observer.new(trained, facts),
    parent = parent or found and found.state.parent, log = records,
    work = flops.of_step(plan.graph, plan.spec.batch),
    peak = peak, ready_seconds = core.files.seconds() - begin,
  }
end

--- What --trace and the options that go with it ask for; nil without it.
local function recorder_of(request)
  local options = request.options
  local function usage(text) error({ status = 2, message = "tidelock: run: " .. text }, 0) end
  if not options.trace then
    for _, name in ipairs { "trace_steps", "full", "values" } do
      if options[name] then usage("--" .. name:gsub("_", "-") .. " goes with --trace DIR") end
    end
    return nil
  end
  local first, last = 0, nil
  if options.trace_steps then
    first, last = recorder.window(options.trace_steps)
    if not first then
      usage(("--trace-steps: %s: steps are written 3, 3:5 or 3:"):format(options.trace_steps))
    end
  end
  return recorder.new {
    dir = options.trace, first = first, last = last, full = options.full, values = options.values,
    recipe = request.recipe, overrides = request.overrides, point = options.point,
  }
end

--- What the driver is told.
local function start_options(options, launched, found, forks)
  local timeout = options.timeout
  local cores = launched and math.max(1, core.files.cpu_count() // launched.here_world)
  return {
    threads = options.threads or cores, check = options.check, launched = launched,
    timeout = timeout, eager = options.eager, profile = profile.window(options.profile),
    start = timeout and math.max(timeout, start_seconds), resume = found, forks = forks,
    poison = options.poison and poison_byte or nil,
    links = options.cluster and cluster.read(options.cluster),
  }
end

local function newest_of(session) return session.saves and session.saves.newest end

--- After the loss of a rank.
local function how_to_go_on(session)
  local newest = newest_of(session)
  if newest then return "all ranks have ended; go on with --resume " .. newest.folder end
  return "all ranks have ended, and no checkpoint was saved: start again; train.save.every=N "
    .. "saves them"
end

--- The run of the one process, or of rank 0.
local function lead(request, launched)
  local options, begin, peak = request.options, core.files.seconds(), nil
  local found, forks = find_checkpoint(options)
  local start = start_options(options, launched, found, forks)
  local facts = start.links
  start.recorder = recorder_of(request)
  function start.planned(plan) -- before the arena takes the memory
    peak = flops.measure_peak(plan.spec.dtype, peak_seconds, options.threads, plan.spec.device)
  end
  local trained <close> = requests.guarded(driver.start, requests.of(request), start)
  check_steps(found, trained, options)
  core.catch_interrupts()
  local known = origin.read(request.recipe)
  local note = origin.check(known, trained.plan, #request.overrides > 0)
  local session = new_session(trained, request, begin, found, peak, facts, known)
  if note then session.screen:note(note) end
  session.found = found
  local ok, result = pcall(drive, session, request)
  if ok then return result end
  local lost = requests.failed(result) == requests.stopped
  session.screen:close()
  session.log:close()
  if session.metrics then session.metrics:finish("failed", nil, result) end
  if session.saves then session.saves:close() end
  session.folder:abandon(newest_of(session), lost)
  if lost then
    error({ status = requests.stopped, message = result .. "\n" .. how_to_go_on(session) }, 0)
  end
  local not_finite = type(result) == "string" and result:find ": element %b[] of .* is [%-NaIinf]+$"
  error(not_finite and ("%s\nits operands: ./tl replay %s"):format(result, session.folder.folder)
    or result, 0)
end

local function message_of(problem)
  return type(problem) == "table" and problem.message or tostring(problem)
end

local function status_of(problem)
  return type(problem) == "table" and problem.status or requests.failed(problem)
end

--- What the other ranks do. Rank 0 prints what goes wrong; if that is lost, rank 1 does.
local function follow(request, launched)
  local job = launched.job
  core.catch_interrupts() -- rank 0 ends the run at a step, or is lost
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
