--- driver.lua - runs a planned recipe on ranks of this process.
---
---     local run <close> = driver.start(recipe, { keep = { "layers.0.*.out" } })
---     for _ = 1, 20 do local s = run:step() print(s.step, s.loss, s.loss_bits) end
---
--- A rank is a thread that executes its flat program; Lua is entered once a step. Logical tensors
--- are put together from the shards of the ranks, so their bits do not depend on the layout.
local blocks = require "tidelock.language.blocks"
local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local data = require "tidelock.language.data"
local experts = require "tidelock.plan.experts"
local gpus = require "tidelock.machine.gpus"
local grid = require "tidelock.plan.layout"
local kept = require "tidelock.run.kept"
local launch = require "tidelock.run.launch"
local loads = require "tidelock.run.loads"
local planner = require "tidelock.plan"
local problems = require "tidelock.text.problems"
local rates = require "tidelock.language.rates"
local replicas = require "tidelock.run.replicas"
local states = require "tidelock.model.states"
local suggest = require "tidelock.text.suggest"
local summary = require "tidelock.plan.summary"
local where = require "tidelock.language.where"

---@class tidelock.Run
---@field plan table # spec, key, recipe_hash, summary, and what the stages found
---@field spec table
---@field notes tidelock.Notes[] # what the sources of data said when they were opened
local Run = {}
Run.__index = Run

local driver = {}

--- The ranks with the same experts' pipeline stage that exchange rows, and those with the same
--- experts.
local function expert_groups(layout, at)
  local own_ep, own_edp = experts.coordinates(layout, at)
  local ep, edp = {}, {}
  for dp = 0, layout.dp - 1 do
    for tp = 0, layout.tp - 1 do
      local other = { tp = tp, dp = dp, pp = at.pp }
      local rank = grid.rank(layout, other)
      local other_ep, other_edp = experts.coordinates(layout, other)
      if layout.ep > 1 and other_edp == own_edp then ep[other_ep + 1] = rank end
      if layout.ep > 1 and other_ep == own_ep then edp[other_edp + 1] = rank end
    end
  end
  if layout.ep == 1 then return { grid.rank(layout, at) } end
  return ep, edp
end

--- Groups of every rank by axis, and "kv2", "kv4", ..: tp ranks that share a KV head.
--- Layers may share in different ways.
local function rank_table(plan)
  local spec, layout = plan.spec, plan.spec.layout
  local ranks = {}
  local names = plan.programs[1].groups
  local world = layout.tp * layout.dp * layout.pp
  local by_axis = {}
  for _, axis in ipairs { "tp", "dp", "pp" } do by_axis[axis] = grid.groups(layout, { axis }) end
  for rank = 0, world - 1 do
    local at = grid.coordinates(layout, rank)
    local groups = {}
    for axis, list in pairs(by_axis) do
      for _, group in ipairs(list) do
        for _, member in ipairs(group) do
          if member == rank then groups[axis] = group end
        end
      end
    end
    local ep, edp = expert_groups(layout, at)
    for _, name in ipairs(names) do
      if name == "ep" then groups.ep = ep elseif name == "edp" then groups.edp = edp end
      local count = tonumber(name:match "^kv(%d+)$")
      local first = count and at.tp // count * count
      if count then groups[name] = { table.unpack(groups.tp, first + 1, first + count) } end
    end
    ranks[rank + 1] = {
      program = experts.program_index(layout, at), groups = groups, coordinates = at,
      sample_base = at.dp * (spec.batch.samples // layout.dp),
    }
  end
  return ranks
end

local function open_data(spec)
  local sources, counts, notes, found = {}, {}, {}, problems.new()
  local function add(source, samples)
    local good, opened, note = pcall(data.open, source, {
      length = spec.batch.length, vocab = spec.model.vocab, seed = spec.policy.seed,
      vocab_site = spec.site "model.vocab",
    })
    if not good then
      for line in opened:gmatch "[^\n]+" do found:add(nil, nil, line) end
      return
    end
    sources[#sources + 1], notes[#notes + 1], counts[#counts + 1] = opened, note, samples
  end
  add(spec.data, spec.batch.samples)
  if spec.eval then add(spec.eval.data, spec.eval.samples) end
  found:raise()
  return sources, counts, notes
end

--- log.watch = { "PATTERN:mean" } taken apart.
local function watches_of(spec)
  local list = {}
  for i, text in ipairs(spec.log.watch or {}) do
    local pattern, what = text:match "^(.*):(%w+)$"
    list[i] = { pattern = pattern, what = what, text = text }
  end
  return list
end

--- Patterns of keep and log.watch that match nothing are mistakes, told before anything runs.
local function check_patterns(self, keep)
  local found, all, plan = problems.new(), {}, self.plan
  for _, value in ipairs(plan.graph.names) do all[#all + 1] = value.name end
  for _, weight in ipairs(plan.graph.weights) do
    all[#all + 1] = weight.kind == "state" and weight.name or weight.name .. ".grad"
  end
  local function check(place, path, pattern)
    if #kept.names(self, pattern) > 0 then return end
    found:add(place, path, ("%q matches no value and no gradient; nearest: %s"):format(pattern,
      suggest.patterns(pattern, all, 3)))
  end
  for i, watch in ipairs(self.watches) do
    local path = ("log.watch[%d]"):format(i)
    check(self.spec.site(path), path, watch.pattern)
  end
  for _, pattern in ipairs(keep or {}) do check(where.here(), "start.keep", pattern) end
  found:raise()
end

--- Calls a function of the C half. What it raises names rank, instruction and recipe line already,
--- so it goes on without a place in this file.
local function call(fn, ...)
  local ok, result = pcall(fn, ...)
  if not ok then error(result, 0) end
  return result
end

--- Every rank's place, told before the first step where ranks are not all alike.
local function places_of(self, launched)
  local count = #self.table
  if launched then return launch.agree(launched, self.plan) end
  if self.spec.device == "cuda" and count > 1 and core.cuda_count() >= count then
    return launch.of_threads(self.plan, count)
  end
end

--- In a process whose rank is not 0 this returns when rank 0 has closed its run, without a run.
---@param recipe table
---@param options? table # keep: string[], threads, poison: a byte, check and eager: boolean,
---  timeout: s, start: s, launched: tidelock.Launch,
---  planned: called with the plan before anything is allocated,
---  resume: a folder or a checkpoint, forks: fields that may differ from its run's,
---  recorder: of recorder.lua, faults: for tests (runtime/fault.h),
---  delay_us: every instruction waits up to so long, each rank for other times,
---  shuffle: a number from 1: threads take tasks in another order,
---  profile: { first, last }: steps with ranges for a profiler, run one by one on a GPU
---@return tidelock.Run
function driver.start(recipe, options)
  options = options or {}
  local launched = options.launched
  local plan = planner(recipe, nil, { keep = options.keep, world = launched and launched.world,
    links = options.links })
  local spec = plan.spec
  plan.summary = summary.of(plan)
  local self = setmetatable({ plan = plan, spec = spec, watches = watches_of(spec), done = 0 }, Run)
  check_patterns(self, options.keep)
  gpus.check(plan, launched)
  if options.planned then options.planned(plan) end
  self.table = rank_table(plan)
  local sources, samples, notes = open_data(spec)
  self.sources, self.notes = sources, notes
  self.check, self.eager, self.profile = options.check, options.eager, options.profile
  local texts = {}
  for i, source in ipairs(sources) do texts[i] = source:fingerprint() end
  plan.key, plan.recipe_hash, plan.key_parts = summary.keys(plan, texts[1])
  plan.fields_text = require("tidelock.forecast.explain").text(plan, "check")
  local found = options.resume
  if type(found) == "string" then found = checkpoint.find(found, "start.resume") end
  self.forks = found and checkpoint.check(found, plan, options.forks or {})
  self.launched = launched ~= nil
  self.places = places_of(self, launched)
  local programs = {}
  for i, program in ipairs(plan.programs) do programs[i] = call(core.program, program) end
  self.ranks = call(core.ranks, {
    programs = programs, ranks = self.table, seed = spec.policy.seed, data = sources,
    samples = samples[1], eval_samples = samples[2] and { samples[2] },
    gpu_first = spec.device == "cuda" and (launched and launched.here or 0) or -1,
    gemm_rows = spec.blocks.gemm.m, gemm_columns = spec.blocks.gemm.n,
    attention_rows = spec.blocks.attention.q,
    gemm_provider = blocks.gemm_providers[spec.blocks.gemm.provider],
    threads = options.threads, poison = options.poison, timeout_s = options.timeout,
    start_s = options.start, job = launched and launched.job, faults = options.faults,
    delay_us = options.delay_us, shuffle = options.shuffle,
  })
  if launched and launched.rank > 0 then
    local ok, problem = pcall(self.ranks.serve, self.ranks)
    self:close()
    -- as cli.lua has it
    if not ok then error({ status = core.lost(problem) and 75 or 1, message = problem }, 0) end
    return self
  end
  self.recorder = options.recorder
  if self.recorder then self.recorder:attach(self) end
  self:begin(found)
  return self
end

--- Runs a section on all ranks.
local function execute(self, section, options)
  return call(self.ranks.run, self.ranks, section, options)
end

--- beta1 and beta2 to the power of one more update, by repeated multiplication.
local function advance_powers(self)
  self.power1, self.power2 = self.power1 * self.beta1, self.power2 * self.beta2
  self.updates = self.updates + 1
end

--- Initial weights, moments and tables; then what rules take from functions and earlier runs, or
--- everything from a checkpoint.
function Run:begin(found)
  if self.recorder then self.recorder:before(self, 0) end
  local made = execute(self, "init", { step = 0, scalars = {} })
  if self.recorder then self.recorder:after(self, 0, made, {}) end
  if found then
    self.loaded_bytes, self.loaded_seconds = checkpoint.load(self, found)
    self.done = found.state.step
  else
    self.loaded_bytes, self.loaded_seconds = require("tidelock.run.warm").start(self)
  end
  local optimizer = self.spec.train.optimizer
  replicas.check(self, 0)
  self.power1, self.power2 = 1, 1
  self.beta1, self.beta2 = core.f32(optimizer.beta1), core.f32(optimizer.beta2)
  self.updates = 0 -- steps that were applied
  for _ = 1, found and found.state.updates or 0 do advance_powers(self) end
end

--- Learning rate, bias corrections of the next update, and functions of the step.
local function scalars_of(self, step)
  local power1, power2 = self.power1 * self.beta1, self.power2 * self.beta2
  local list = { rates.at(self.spec.train.lr, step), core.f32(1 / (1 - power1)),
    core.f32(1 / (1 - power2)) }
  return states.scalars(self.plan.graph, step, list)
end

--- What was planned for a rank with these coordinates.
function Run:planned(at)
  return self.plan.ranks[experts.plan_index(self.spec.layout, at)]
end

--- Means of extra losses by name, and their bits; nil where the model has none.
local function terms_of(self)
  local values, bits = {}, {}
  for _, term in ipairs(self.plan["local"].terms) do
    for index, rank in ipairs(self.table) do
      local v = self:planned(rank.coordinates).persistent["term " .. term.name]
      if v and v.tensor and not values[term.name] then
        local t <close> = self.ranks:read(index - 1, v.tensor)
        values[term.name] = t:to_table()[1]
        bits[term.name] = ("%08x"):format(t:bits()[1])
      end
    end
  end
  if next(values) then return values, bits end
end

--- What a profiler is told about a step: 1 ranges, 2 begin, 4 end (runtime/execute.h).
local function profile_of(self, step)
  local window = self.profile
  if not window or step < window[1] or step > window[2] then return 0 end
  return 1 | (step == window[1] and 2 or 0) | (step == window[2] and 4 or 0)
end

--- Runs the next step. Raises when a value is not finite, naming its first instruction.
function Run:step()
  local step = self.done + 1
  local scalars = scalars_of(self, step)
  if self.recorder then self.recorder:before(self, step) end
  local exchanged = loads.exchanged(self)
  local profile, clock = profile_of(self, step), core.files.seconds()
  local result = execute(self, "step", { step = step - 1, scalars = scalars, check = self.check,
    eager = self.eager or profile ~= 0, profile = profile })
  result.ms = (core.files.seconds() - clock) * 1000
  result.exchange = exchanged and loads.exchanged(self, exchanged)
  if self.recorder then self.recorder:after(self, step, result, scalars) end
  result.step, result.lr = step, scalars[1]
  result.tokens = self.spec.batch.samples * self.spec.batch.length
  -- a step that is skipped is none of the optimizer's: its bias corrections count updates
  if result.control[2] ~= 0 then self:explain_skip(step, scalars, result)
  else advance_powers(self) end
  self.done = step
  result.losses, result.losses_bits = terms_of(self)
  result.experts = loads.read(self)
  if replicas.due(self, step) then replicas.check(self, step) end
  if #self.watches > 0 then result.watch = self:watched() end
  return result
end

--- Runs the step once more, looking at every output, and raises what it finds.
function Run:explain_skip(step, scalars, result)
  if result.count == 0 then
    result.skipped = "0 target tokens"
    return
  end
  execute(self, "step", { step = step - 1, scalars = scalars, check = true })
  error(string.format("step %d: the loss is %s and the gradient norm %s, but every output is "
    .. "finite alone",
    step, result.loss, result.grad_norm), 0)
end

--- Loss of the evaluation set, in the state after the last step.
function Run:eval()
  assert(self.spec.eval, "the recipe has no eval")
  return execute(self, "eval", { step = 0, scalars = {} })
end

require "tidelock.run.run_tensors" (Run)

--- Bytes of the arenas as counted by their allocator, beside the bytes that were planned; and the
--- peaks of what is no arena: slots of messages, tables of the data, scratch of the workers, copies
--- on their way to a GPU, and what a trace keeps.
function Run:memory()
  local counted = self.ranks:memory()
  local peak = counted.peak
  counted.peak_bytes, counted.planned_bytes = peak.arena, self.plan.summary.planned_bytes
  counted.beside = {
    messages = peak.comm, data = peak.data, scratch = peak.scratch, staging = peak.staging,
    trace = peak.trace,
  }
  counted.beside_bytes = peak.comm + peak.data + peak.scratch + peak.staging + peak.trace
  return counted
end

--- Writes a checkpoint of the state after the last step to a new folder in `dir`, and waits for it.
--- `./tl run` does this by itself where the recipe has train.save; a script says when.
---@param dir string
---@return string folder # for start { resume = folder } and --resume
function Run:save(dir)
  local good, message = pcall(core.files.mkdirs, dir)
  if not good then error("save: " .. message:gsub("^[^\n]-%.lua:%d+: ", ""), 2) end
  local written = checkpoint.start(self, dir)
  written.saver:wait()
  written.saver:close()
  return written.folder
end

function Run:close()
  if self.recorder then self.recorder:close() end
  if self.ranks then self.ranks:close() end
  self.ranks, self.recorder = nil, nil
end
Run.__close, Run.__gc = Run.close, Run.close

return driver
