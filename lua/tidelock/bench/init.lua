--- `./tl bench`: measurements of this machine, as tables.
--
--   ./tl bench                 all of them
--   ./tl bench matmul          matrix products beside OpenBLAS
--   ./tl bench gemm            matrix products on a GPU beside PyTorch
--   ./tl bench attention       attention on a GPU beside PyTorch
--   ./tl bench moe             mixtures of experts on a GPU beside PyTorch
--   ./tl bench rowwise         kernels that move bytes, on a GPU, beside a copy
--   ./tl bench step            the quickstart's training step beside PyTorch; where its time goes
--   ./tl bench roofline        every operator of a step against this machine's ceilings
--   ./tl bench collectives     sums and gathers of ranks, in the columns of nccl-tests
--   ./tl bench plan            planning 1,024 ranks
--   ./tl bench ranks           eight thread ranks against one
--   ./tl bench serve           generation: speed, and steadiness under load
--   ./tl bench trace           a traced step against one that is not
--   ./tl bench capture         on a GPU: a step replayed as a graph against one queued eagerly
--
-- Peers (tests/peers/*.py) take turns with Tidelock, round by round; where numpy or PyTorch is not
-- installed the tables say so. A kind of measurement is a module with tables(options), which
-- returns { title, columns, rows, notes } for each table, and measures for --baseline where it has
-- rounds (bench/baseline.lua).

local baseline = require "tidelock.bench.baseline"
local core = require "tidelock.core"
local forms = require "tidelock.bench.forms"
local header = require "tidelock.run.header"
local requests = require "tidelock.plan.requests"
local vitals = require "tidelock.machine.vitals"

local bench = {}

--- In the order in which all of them run.
local kinds = {
  { "plan", require "tidelock.bench.plan" },
  { "matmul", require "tidelock.bench.matmul" },
  { "gemm", require "tidelock.bench.gemm" },
  { "attention", require "tidelock.bench.attention" },
  { "moe", require "tidelock.bench.moe" },
  { "rowwise", require "tidelock.bench.rowwise" },
  { "step", require "tidelock.bench.step" },
  { "roofline", require "tidelock.bench.roofline" },
  { "collectives", require "tidelock.bench.collectives" },
  { "ranks", require "tidelock.bench.ranks" },
  { "serve", require "tidelock.bench.serve" },
  { "trace", require "tidelock.bench.trace" },
  { "capture", require "tidelock.bench.capture" },
}

bench.markdown = forms.markdown

--- The processor and what runs it.
function bench.machine()
  local model, load = "unknown processor", "?"
  for _, source in ipairs { { "/proc/cpuinfo", "model name%s*:%s*([^\n]+)" },
    { "/proc/loadavg", "^(%S+)" } } do
    local file = io.open(source[1])
    local found = file and file:read("a"):match(source[2])
    if file then file:close() end
    if source[1] == "/proc/loadavg" then load = found or load else model = found or model end
  end
  return ("%s, %d cores, load %s at start"):format(model, core.files.cpu_count(), load)
end

--- What was measured on, with what: lines "name: value", in this order.
---@return table[] # { name, value } each
function bench.header(options, words)
  local list = { { "machine", bench.machine() }, { "build", header.build_text():gsub("\n.*", "") } }
  local gpus = core.cuda_count()
  for ordinal = 0, gpus - 1 do
    local facts = core.cuda_device(ordinal)
    local clock, temperature, power = vitals.words(core.cuda_vitals(ordinal) or {})
    list[#list + 1] = { "gpu " .. ordinal, ("%s, %.1f GiB, %s, %s, %s"):format(facts.name,
      facts.memory / 2 ^ 30, clock, temperature, power) }
  end
  list[#list + 1] = { "flags", ("%s, threads %d, rounds %d, steps %d"):format(words,
    options.threads, options.rounds, options.steps) }
  return list
end

local function options_of(request)
  local given = request.options
  return {
    recipe = request.recipe or "recipes/quickstart.lua", overrides = request.overrides,
    rounds = given.rounds or 7, steps = given.steps or 2, size = given.size,
    threads = given.threads or core.files.cpu_count(), alone = given.alone,
    count = given.count, rate = given.rate, requests = given.requests, ranks = given.ranks,
    device = given.device or "host", from = given.from, to = given.to, factor = given.factor,
    op = given.op,
  }
end

--- Options that decide what is measured, in the order of the header; threads, rounds and steps
--- stand there in any case.
local deciding = { "op", "size", "device", "ranks", "from", "to", "factor", "count", "rate",
  "requests" }

--- What was asked for, for the header.
local function words_of(request)
  local words = { request.topic or "all", request.recipe }
  table.move(request.overrides, 1, #request.overrides, #words + 1, words)
  if request.options.alone then words[#words + 1] = "--alone" end
  for _, name in ipairs(deciding) do
    local value = request.options[name]
    if value then words[#words + 1] = ("--%s %s"):format(name, value) end
  end
  return table.concat(words, " ")
end

--- Writes a table at once, in the forms that have tables one by one.
local function show(result, form)
  local write = ({ md = forms.markdown, csv = forms.csv, jsonl = forms.jsonl })[form]
  if not write then return end
  io.stdout:write(write(result), form == "md" and "\n" or "")
  io.stdout:flush()
end

local function show_header(facts, form)
  for _, fact in ipairs(facts) do
    if form == "md" then io.stdout:write(fact[1], ": ", fact[2], "\n") end
    if form == "csv" then io.stdout:write(forms.csv_comment(fact[1], fact[2])) end
  end
  local object = { header = true }
  for _, fact in ipairs(facts) do object[fact[1]] = fact[2] end
  if form == "md" then io.stdout:write "\n" end
  if form == "jsonl" then io.stdout:write(core.json.encode(object), "\n") end
  return object
end

--- What `--baseline` finds; whether all is well. A file that has nothing in common with what was
--- measured is none: it would always be well.
local function compare(before, path, all)
  local slower, others = baseline.compare(before.tables, all)
  local compared = #slower + #others
  if compared == 0 then
    error({ status = 2, message = ("tidelock: bench: --baseline %s: it has no measure of what was "
      .. "measured now; take one of the same topic and options"):format(path) }, 0)
  end
  for _, line in ipairs(slower) do io.stderr:write(line, "\n") end
  for _, line in ipairs(others) do io.stderr:write(line, "\n") end
  io.stderr:write(("%d of %d measures are slower than in %s, beyond the noise\n"):format(#slower,
    compared, path))
  return #slower == 0
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function bench.command(request)
  local options, form = options_of(request), request.options.output or "md"
  local path = request.options.baseline
  local before, all, good = path and baseline.load(path), {}, true
  if request.recipe then -- what is wrong with it is said before anything is printed
    local words = table.move(options.overrides, 1, #options.overrides, 1, {})
    requests.plan(requests.recipe(options.recipe, words), "check")
  end
  local facts = bench.header(options, words_of(request))
  core.catch_interrupts()
  local head = show_header(facts, form)
  for _, kind in ipairs(kinds) do
    local wanted = not core.interrupted() and (request.topic or kind[1]) == kind[1]
    for _, result in ipairs(wanted and kind[2].tables(options) or {}) do
      all[#all + 1] = result
      good = good and not result.differs
      show(result, form)
    end
  end
  if form == "json" then
    head.header = nil
    io.stdout:write(core.json.encode { machine = facts[1][2], header = head, tables = all }, "\n")
  end
  if before then good = compare(before, path, all) and good end
  if not good then return 1 end
  return core.interrupted() and requests.stopped or 0
end

return bench
