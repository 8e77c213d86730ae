-- The command line, and what the commands do with a driver that only pretends to train.

local commands = require "tidelock.commands"
local core = require "tidelock.core"
local support = require "support"

local recipe = "recipes/quickstart.lua"

local function raised(fn, ...)
  local ok, problem = pcall(fn, ...)
  assert.is_false(ok)
  return problem
end

local function has(text, part)
  assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
end

describe("the command line", function()
  it("takes overrides and options anywhere after the recipe, in order", function()
    local request = commands.parse {
      "run", recipe, "layout.tp=2", "--stop-at", "20", "train.clip=0.5", "--jsonl=out.jsonl",
      "--quiet",
    }
    assert.equal("run", request.command.name)
    assert.equal(recipe, request.recipe)
    assert.same({ "layout.tp=2", "train.clip=0.5" }, request.overrides)
    assert.same({ stop_at = 20, jsonl = "out.jsonl", quiet = true }, request.options)
  end)

  it("suggests the nearest command and option, and lists what there is", function()
    local problem = raised(commands.parse, { "rnu", recipe })
    assert.equal(2, problem.status)
    has(problem.message, "rnu: no such command; did you mean run?")
    has(raised(commands.parse, { "run", recipe, "--stopat", "3" }).message,
      "no option --stopat; did you mean --stop-at? run has --check, --cluster, --eager, --fork")
    has(raised(commands.parse, { "run", recipe, "--tensor-model-parallel-size", "2" }).message,
      "no option --tensor-model-parallel-size; write layout.tp=.. (in a recipe: layout = {")
  end)

  it("says what a value has to be", function()
    has(raised(commands.parse, { "run", recipe, "--stop-at", "soon" }).message,
      '--stop-at: expected a positive integer, got "soon"')
    has(raised(commands.parse, { "doctor", "--threads", "1e8" }).message,
      '--threads: expected an integer from 1 to 1024, got "1e8"')
    has(raised(commands.parse, { "explain", recipe, "--rank", "-1" }).message,
      '--rank: expected an integer from 0, got "-1"')
    has(raised(commands.parse, { "run", recipe, "--jsonl" }).message,
      "expected a file name, got nothing")
    has(raised(commands.parse, { "run", recipe, "--quiet=1" }).message, "--quiet takes no value")
    has(raised(commands.parse, { "run", recipe, "--quiet", "--quiet" }).message, "given twice")
  end)

  it("says all that is wrong with its words at once", function()
    local text = raised(commands.parse, {
      "run", recipe, "--stp", "3", "--threads", "0", "other.lua", "layout.tp", "=", "2",
      "--quiet=1",
    }).message
    assert.equal(([[
tidelock: run: no option --stp; run has ..
tidelock: run: --threads: expected an integer from 1 to 1024, got "0"
tidelock: run: other.lua is neither an option nor an override, as layout.tp=2; the recipe is %s
tidelock: run: layout.tp =: write layout.tp=2, without blanks
tidelock: run: --quiet takes no value]]):format(recipe), (text:gsub("%-%-check[^\n]*", "..")))
    local problem = raised(commands.parse, {
      "export", "--dtype", "f8", "--format", "--threads=2", "runs/a",
    })
    assert.equal(2, problem.status)
    assert.equal([[
tidelock: export: --dtype: expected f32, bf16 or f16, got "f8"
tidelock: export: --format: expected hf, got nothing
tidelock: export: no option --threads=2; export has --dtype, --format
tidelock: export: OUT is missing; e.g. ..]], (problem.message:gsub("e%.g%. .*", "e.g. ..")))
  end)

  it("knows what blanks around = and a folder with its slash mean", function()
    has(raised(commands.parse, { "run", recipe, "layout.tp", "=", "2" }).message,
      "run: layout.tp =: write layout.tp=2, without blanks")
    has(raised(commands.parse, { "run", recipe, "layout.tp", "=2" }).message,
      "write layout.tp=2, without blanks")
    assert.equal("runs/a-5e1c", commands.parse({ "run", "runs/a-5e1c//" }).recipe)
  end)

  it("knows what other programs call a command", function()
    has(raised(commands.parse, { "train", recipe }).message, "did you mean run? there are")
  end)

  it("asks for what is missing and refuses what is too much", function()
    has(raised(commands.parse, { "run" }).message, "a recipe is missing; e.g. ./tl run recipes/")
    has(raised(commands.parse, { "run", "layout.tp=2" }).message,
      "the recipe comes before layout.tp=2")
    has(raised(commands.parse, { "run", recipe, "other.lua" }).message, "neither an option nor an")
    has(raised(commands.parse, { "test" }).message, "test is a command of ./tl")
    has(raised(commands.parse, { "lua" }).message, "lua: a file is missing; e.g. ./tl lua recipes/")
    has(raised(commands.parse, { "repl", "1" }).message, "repl: it takes nothing")
    has(raised(commands.parse, { "bench", "foo" }).message,
      "bench: foo is neither a recipe file nor one of plan, matmul, gemm, attention, "
        .. "moe, rowwise, step, roofline, collectives, ranks, serve, trace, capture")
    has(raised(commands.parse, { recipe }).message, "no such command; did you mean run " .. recipe)
    has(raised(commands.parse, { "run", recipe, "layout.tp" }).message,
      "layout.tp is neither an option nor an override, as layout.tp=2; the recipe is ")
  end)

  it("reads what --cluster names before it prints a plan", function()
    local forecast = require "tidelock.forecast"
    local request = commands.parse { "plan", recipe, "--cluster", "no.yaml" }
    local problem = raised(forecast.command, request)
    has(type(problem) == "table" and problem.message or problem, "no.yaml")
  end)

  it("helps", function()
    has(commands.help(), "verify    run repeats")
    has(commands.help "run", "--stop-at N")
    has(commands.help "lua", "e.g. ./tl lua recipes/gates.lua")
    assert.equal("repl", commands.parse({ "help", "repl" }).topic)
    assert.equal("explain", commands.parse({ "explain", "--help" }).topic)
    assert.equal("help", commands.parse({}).command.name)
    assert.equal("repl", commands.parse({ "repl", "-h" }).topic)
    assert.is_nil(commands.parse({ "help", "--help" }).topic)
    assert.equal("version", commands.parse({ "--version" }).command.name)
    for _, list in ipairs { commands.list, commands.outside } do
      for _, command in ipairs(list) do has(commands.help(command.name), "e.g. ./tl ") end
    end
  end)

  it("ends with the status of the outcome", function()
    local program = os.getenv "TIDELOCK"
    if not program then return pending "TIDELOCK is not set; ./tl test sets it" end
    local function status(words)
      return select(3, os.execute(program .. " " .. words .. " >/dev/null 2>&1"))
    end
    assert.equal(0, status "help")
    assert.equal(2, status "rnu")
    assert.equal(2, status("plan " .. recipe .. " layout.tp=3"))
    assert.equal(2, status "plan recipes/absent.lua")
    assert.equal(0, status("plan " .. recipe))
  end)
end)

-- a driver that pretends ------------------------------------------------------------------------

--- Losses that fall, and bits that follow from the step alone; `fault` changes those of one step.
local function pretend_driver(world)
  local planner, summary = require "tidelock.plan", require "tidelock.plan.summary"
  local Run = {}
  Run.__index = Run
  Run.__close = function() world.closed = (world.closed or 0) + 1 end
  function Run:step()
    self.done = self.done + 1
    local step = self.done
    if world.stop_after == step then world.interrupted = world.signal or "SIGINT" end
    if world.raise_at == step then error("step " .. step .. ": the loss is nan", 0) end
    local bits = 0x40000000 - step + (world.fault == step and 1 or 0)
    return {
      step = step, loss = 6 / step, loss_bits = bits, grad_norm = 1 / step, grad_norm_bits = step,
      lr = 1e-3, tokens = 4096, ms = 10,
    }
  end
  function Run.eval() return { loss = 2.4310, loss_bits = 0x401b9581 } end
  function Run:weights_hash() return ("%016x"):format(world.weights or self.done) end
  function Run.memory()
    return {
      peak_bytes = 41628467, planned_bytes = 41628467, beside_bytes = 9 << 20,
      beside = { scratch = 8 << 20, messages = 1 << 20, data = 64, staging = 0 },
    }
  end
  function Run.weights() return { { name = "w" } } end
  function Run.weight() return core.tensor("f32", { 2 }, { 1, 2 }) end
  return {
    start = function(given, options)
      local plan = planner(given, world.last_stage)
      plan.summary = not world.last_stage and summary.of(plan) or nil
      plan.key, plan.recipe_hash = "5e1c09af77d2c340", "7d2041be0c1192aa"
      plan.spec.eval = world.eval
      world.options = options
      local notes = { summary = "2 texts, 46,506 bytes", warnings = { "a text is not as pinned" } }
      return setmetatable({ plan = plan, done = 0, notes = { notes } }, Run)
    end,
  }
end

local modules = { "tidelock.run.driver", "tidelock.run" }
local folder_number = 0

describe("with a driver that pretends", function()
  local world, saved, folder, stdout, stderr, interrupted, catch_interrupts

  local function redirect(out, err)
    rawset(io, "stdout", out)
    rawset(io, "stderr", err)
  end

  local function memory_file()
    local file = { text = "" }
    function file:write(...) self.text = self.text .. table.concat { ... } end
    function file.flush() end
    return file
  end

  before_each(function()
    world, saved = {}, { stdout = io.stdout, stderr = io.stderr }
    for _, name in ipairs(modules) do
      saved[name], package.loaded[name] = package.loaded[name], nil
    end
    package.loaded["tidelock.run.driver"] = pretend_driver(world)
    interrupted, catch_interrupts = core.interrupted, core.catch_interrupts
    core.interrupted = function() return world.interrupted or false end
    core.catch_interrupts = function() end
    folder_number = folder_number + 1
    folder = ("/tmp/tidelock-cli-%d-%d"):format(core.files.getpid(), folder_number)
  end)

  after_each(function()
    for _, name in ipairs(modules) do package.loaded[name] = saved[name] end
    core.interrupted, core.catch_interrupts = interrupted, catch_interrupts
    redirect(saved.stdout, saved.stderr)
    os.execute("rm -r -f " .. folder)
  end)

  --- Runs a command and returns its status (or what it raised) and both outputs.
  local function call(...)
    local request = commands.parse { ... }
    local module = require(request.command.module)
    stdout, stderr = memory_file(), memory_file()
    redirect(stdout, stderr)
    local ok, status = pcall(module.command, request)
    redirect(saved.stdout, saved.stderr)
    world.interrupted = nil
    return ok and status or { problem = status }, stdout.text, stderr.text
  end

  local function run(...) return call("run", recipe, "--runs", folder, ...) end

  local function records(path)
    return require("tidelock.run.log").read(path or folder .. "/quickstart-5e1c/log.jsonl")
  end

  it("run prints header, rows and summary, and keeps a folder", function()
    local status, text, messages = run("train.steps=20", "--jsonl", folder .. ".jsonl")
    assert.equal(0, status)
    has(text, "quickstart.lua   key 5e1c 09af 77d2 c340   recipe 7d20 41be 0c11 92aa\n")
    has(text, "\n  model    853,120 weights in 39 tensors: 4 layers, dim 128, ")
    has(text, "  data     2 texts, 46,506 bytes; a step is 16 samples of 256 tokens\n")
    has(messages, "a text is not as pinned\n")
    has(text, "  ranks    1 thread rank on ")
    has(text, "    10  0.6000  3ffffff6      0.100  1.0e-03  409.6k ")
    has(text, "trained    20 steps, 81,920 tokens in ")
    has(text, "memory     39.7 MiB of arenas used, as planned; beside them 9.0 MiB: messages 1.0, "
      .. "scratch 8.0\nloss       6.0000 -> 0.3000 (3fffffec)\n")
    has(text, "weights    0000000000000014\n")
    has(text, "saved      " .. folder .. "/quickstart-5e1c: recipe, log.jsonl, weights\n")
    assert.is_nil(text:find "\27")
    for line in text:gmatch "[^\n]+" do -- a command to type has the length that it has
      assert.is_true(#line < 100 or line:find("./tl ", 1, true) ~= nil, line)
    end
    local list = records()
    assert.equal(21, #list)
    assert.same(list, records(folder .. ".jsonl"))
    os.remove(folder .. ".jsonl")
    for _, field in ipairs {
      "step", "loss", "loss_bits", "grad_norm", "grad_norm_bits", "lr", "tokens", "tokens_per_s",
      "ms",
    } do assert.is_truthy(list[1][field], field) end
    for field, value in pairs {
      summary = true, key = "5e1c09af77d2c340", recipe_hash = "7d2041be0c1192aa", steps = 20,
      weights_hash = "0000000000000014", peak_bytes = 41628467, planned_bytes = 41628467,
    } do assert.equal(value, list[21][field]) end
    for _, name in ipairs { "recipe.lua", "resolved.txt", "summary.json", "weights.safetensors" } do
      assert.is_true(core.files.exists(folder .. "/quickstart-5e1c/" .. name), name)
    end
  end)

  it("run ends after --stop-at, and at a step boundary after Ctrl-C", function()
    local _, text = run("--stop-at", "7")
    has(text, "     7  0.8571")
    has(text, "trained    7 steps")
    world.stop_after = 9
    local status
    status, text = run()
    assert.equal(75, status)
    has(text, "stopped    by Ctrl-C after step 9 of ")
    has(text, "trained    9 steps")
    has(text, ": 7 losses, 7 gradient norms\n           (weights not compared: it has 7 steps)\n")
    world.stop_after, world.signal = 200, "SIGTERM"
    status, text = run()
    assert.equal(0, status) -- it was the last step anyway
    assert.is_nil(text:find "stopped")
  end)

  it("a second run compares itself and leaves the reference alone", function()
    run "train.steps=20"
    local status, text = run("train.steps=20", "layout.tp=2")
    assert.equal(0, status)
    has(text, ("bits       equal to %s/quickstart-5e1c: 20 losses, 20 gradient norms, weights 0000")
      :format(folder))
    assert.same({ "quickstart-5e1c" }, core.files.list(folder))
  end)

  it("run leaves no folder behind when --jsonl cannot be written", function()
    local raise = run("--jsonl", "no/such/folder/steps.jsonl")
    assert.equal(2, raise.problem.status)
    assert.is_false(core.files.exists(folder))
  end)

  it("run says what to type next with the overrides that it had", function()
    local _, text = run("train.lr={ 'constant', 1e-3 }")
    has(text, recipe .. " 'train.lr={ '\\''constant'\\'', 1e-3 }'")
  end)

  it("run says how to let the model write, where it speaks in bytes", function()
    local _, text = run("--stop-at", "2")
    has(text, " generate " .. folder .. "/quickstart-5e1c The\n")
    local header = require "tidelock.run.header"
    local words = { kind = "text" }
    local function told(data)
      local spec = { data = data, policy = { leaves = {} }, batch = {} }
      return table.concat(header.next_commands({ spec = spec, summary = { ranks = 2 } },
        { recipe = "x.lua", overrides = {}, options = {} }, "runs/x"), "\n")
    end
    has(told { kind = "mix", sources = { words, words } }, "generate runs/x The")
    for _, data in ipairs { { kind = "tokens" }, { kind = "mix", sources = { words,
      { kind = "tokens" } } } } do
      assert.is_nil(told(data):find("generate", 1, true))
    end
  end)

  it("a longer run takes the place of the reference", function()
    run("--stop-at", "3")
    assert.equal(4, #records())
    local status, text = run("--stop-at", "5")
    assert.equal(0, status)
    has(text, "saved      " .. folder .. "/quickstart-5e1c:")
    assert.equal(6, #records())
    assert.same({ "quickstart-5e1c" }, core.files.list(folder))
  end)

  it("a run whose bits differ says where, fails and is kept", function()
    run "train.steps=20"
    world.fault = 13
    local status, text, messages = run "train.steps=20"
    assert.equal(1, status)
    has(messages, "differs from " .. folder .. "/quickstart-5e1c at step 13: loss 0.4615")
    has(text, "at step 13: loss 0.4615 (3ffffff3) | 0.4615 (3ffffff4)")
    assert.same({ "quickstart-5e1c", "quickstart-5e1c-2" }, core.files.list(folder))
  end)

  it("weights that differ after equal steps are a difference too", function()
    run "train.steps=20"
    world.weights = 99
    local status, text = run "train.steps=20"
    assert.equal(1, status)
    has(text, "the weights after step 20: 0000000000000014 | 0000000000000063")
  end)

  it("run prints evaluations and keeps them in the record of their step", function()
    world.eval = { every = 5 }
    local _, text = run("--stop-at", "6")
    has(text, "  eval 2.4310 (401b9581)\n")
    assert.equal("401b9581", records()[5].eval_loss_bits)
    assert.is_nil(records()[4].eval_loss_bits)
  end)

  it("a run that fails raises, closes its ranks and does not become a reference", function()
    world.raise_at = 3
    local status = run()
    has(status.problem, "step 3: the loss is nan")
    assert.equal(1, world.closed)
    world.raise_at = nil
    local _, text = run "--quiet"
    has(text, "saved      ")
    assert.is_nil(text:find "grad norm")
  end)

  it("run hands its options to the driver", function()
    run("--stop-at", "1", "--threads", "2", "--poison", "--check")
    assert.equal("function", type(world.options.planned))
    world.options.planned = nil
    assert.same({ threads = 2, poison = 255, check = true }, world.options)
  end)
end)

describe("plan and explain", function()
  local requests = require "tidelock.plan.requests"

  local function request_of(...) return commands.parse { ... } end

  it("count the work of a step by the formula that they name", function()
    local plan = requests.plan(requests.of(request_of("plan", recipe)), "expand")
    local matrices = 4 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 384 * 128) + 256 * 128
    local tokens, length = 16 * 256, 256
    assert.equal(6 * matrices * tokens + 12 * 4 * 8 * 16 * 16 * length * length / 2,
      require("tidelock.forecast.flops").of_step(plan.graph, plan.spec.batch))
  end)

  it("print the same text every time, for every stage and rank", function()
    local explain = require "tidelock.forecast.explain"
    local function texts()
      local request = request_of("explain", recipe, "layout.tp=2", "layout.pp=2")
      local plan, list = requests.plan(requests.of(request)), {}
      for _, stage in ipairs(explain.stages) do
        for rank = 0, 3 do list[#list + 1] = explain.text(plan, stage, rank) end
      end
      list[#list + 1] = explain.weights(plan)
      return list
    end
    local first = texts()
    assert.same(first, texts())
    assert.equal(29, #first)
    has(first[#first], "layers.0.attention.q ")
    has(first[17], "pipeline rank 0 of 2: F0 F1 B0 F2 B1 F3 B2 B3")
    has(first[3], "batch = { length = 256, micro = 4, samples = 16 }")
  end)

  it("refuse a stage that is not there", function()
    local explain = require "tidelock.forecast.explain"
    local problem = raised(explain.command, request_of("explain", recipe, "--stage", "shrad"))
    assert.equal(2, problem.status)
    has(problem.message, "--stage shrad: no such stage; did you mean shard?; there are check, ex")
  end)

  it("show a rank beyond the layout as the one that runs the same program, and say so", function()
    local explain = require "tidelock.forecast.explain"
    local function shown(rank, tp, dp, pp)
      local layout = { order = "tp-cp-dp-pp", tp = tp, cp = 1, dp = dp, pp = pp }
      return explain.shown_rank(layout, rank)
    end
    local rank, note = shown(3, 1, 1, 1)
    assert.equal(0, rank)
    assert.equal("the layout has 1 rank; ranks with the same tp and pp coordinates run the same "
      .. "program: showing rank 0", note)
    rank, note = shown(5, 2, 2, 1)
    assert.equal(1, rank)
    has(note, "the layout has 4 ranks;")
    assert.same({ 3 }, { shown(3, 2, 1, 2) })
  end)

  it("take a schedule that is a function, and refuse one that would change bits", function()
    local file = ("/tmp/tidelock-schedule-%d.lua"):format(core.files.getpid())
    local function orders(first, last, step)
      local text = core.files.read_all(recipe):gsub('policy = "layout",', ([[
        layout = { pp = 2, schedule = function(_, _, micros)
          local list = {}
          for m = 0, micros - 1 do list[m + 1] = { phase = "forward", micro = m } end
          for m = %s, %s, %s do list[#list + 1] = { phase = "backward", micro = m } end
          return list
        end },]]):format(first, last, step))
      core.files.write_atomic(file, text)
      return requests.plan(requests.of(request_of("plan", file)), "pipeline").orders
    end
    local named = requests.of(request_of("plan", recipe, "layout.pp=2", "layout.schedule=gpipe"))
    assert.same(requests.plan(named, "pipeline").orders, orders("0", "micros - 1", "1"))
    local problem = raised(orders, "micros - 1", "0", "-1")
    os.remove(file)
    assert.equal(2, problem.status)
    has(problem.message, "layout.schedule: rank 0, operation 6: backward of micro-batch 2: its")
    has(problem.message, "6 errors; nothing was started")
  end)

  it("list the points of a sweep and ask for one", function()
    local request = request_of("plan", "recipes/gpt_ablation.lua")
    local problem = raised(requests.of, request)
    assert.equal(2, problem.status)
    has(problem.message, "has 6 points; choose one with --point N:\n  1  depth 6, width 384\n")
    request.options.point = 7
    has(raised(requests.of, request).message,
      "--point 7: recipes/gpt_ablation.lua has points 1 to 6")
  end)

  it("say what ended them where no handler was asked, as at the end of memory", function()
    if core.build().sanitizer ~= "none" then pending "a sanitizer needs more room" end
    local folder = require "support.folder" ()
    local path = folder:write("ended.lua", [[
      package.loaded["tidelock.commands"] = { parse = function()
        local list = {}
        while true do list = { list, {} } end
      end }
      io.stdout:write("status ", tostring(dofile(os.getenv "TIDELOCK_LUA" .. "/tidelock/cli.lua")))
    ]])
    local out, status = support.run("lua " .. path, nil, "ulimit -v 400000; TIDELOCK_LUA=lua ")
    folder:remove()
    assert.equal(0, status, out)
    assert.equal("not enough memory\nstatus 1", out)
  end)
end)
