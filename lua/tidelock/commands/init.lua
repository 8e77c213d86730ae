--- The command line as a table: what each command is called, takes and does.
--
--   tidelock run recipes/quickstart.lua layout.tp=2 --stop-at 20 train.clip=0.5
--            |   |                      |           |            |
--            command                    override    option       another override
--                recipe
--
-- `commands.parse` (words.lua) turns the words into { command, recipe, overrides, options }; what
-- is wrong is raised as { status = 2, message }, which cli.lua prints. Nothing is read or run here.

local suggest = require "tidelock.text.suggest"
local verify_options = require "tidelock.commands.verify"
local words = require "tidelock.commands.words"

local commands = {}

commands.kinds = words.kinds

local point = { name = "point", kind = "count", about = "which point of a sweep, from 1" }
local threads = {
  name = "threads", kind = "workers", about = "workers of the pool; no bit depends on it",
}

---@class tidelock.Command
---@field name string
---@field recipe boolean|"maybe" # takes a recipe and overrides; "maybe": a recipe may be left out
---@field topics string[]? # a first word that is one of these chooses a part of the command
---@field words string[]? # what its words are, where it takes no recipe: { "CHECKPOINT", "OUT" }
---@field words_needed integer? # how many of them, when not all
---@field words_more boolean? # the last of them may stand again and again
---@field overrides boolean? # key=value may stand behind its words
---@field takes string? # what stands behind its name in help, when it is no recipe
---@field about string
---@field example string
---@field options table[] # { name, about, kind, short, choices: words that complete its value }
---@field module string? # its `command(request)` does the work and returns the exit status

---@type tidelock.Command[]
commands.list = {
  {
    name = "run", recipe = true, module = "tidelock.run", about = "train a model",
    example = "run recipes/quickstart.lua layout.tp=2 layout.pp=2",
    options = {
      { name = "jsonl", kind = "file", about = "write one record a step, and a summary, to FILE" },
      { name = "metrics", kind = "file", about = "for Prometheus: a file, or :PORT to serve it" },
      { name = "cluster", kind = "file", about = "machine facts: a planned step, a way for rows" },
      { name = "resume", kind = "folder", about = "go on from a checkpoint, a run, or its newest" },
      { name = "fork", kind = "text", value = "FIELD,..",
        about = "fields that may differ from the checkpoint's run" },
      { name = "stop-at", kind = "count", about = "end after step N; lr keeps its horizon" },
      { name = "runs", kind = "folder", about = "where run folders are kept; default runs/" },
      { name = "quiet", about = "no header, no table: the summary only" },
      { name = "check", about = "look for NaN and Inf after every instruction" },
      { name = "eager", about = "GPU: queue instructions one by one, no graph; same bits" },
      { name = "poison", about = "fill memory with NaN before its first use" },
      { name = "trace", kind = "folder", about = "record hashes, times and messages into DIR" },
      { name = "trace-steps", kind = "text", value = "A:B",
        about = "these steps only: 3:5; 0 is the start" },
      { name = "full", about = "hash every element; else one run of 64 in 4,096" },
      { name = "values", about = "keep the tensors, too" },
      { name = "profile", kind = "text", value = "A:B",
        about = "ranges for a profiler in these steps: 10:12" },
      { name = "timeout", kind = "count",
        about = "seconds that a silent rank is waited for; default 10" },
      threads, point,
    },
  },
  {
    name = "plan", recipe = true, module = "tidelock.forecast",
    about = "memory, schedule and work of a step; no device, nothing runs",
    example = "plan recipes/quickstart.lua layout.dp=128 policy.leaves.dp=128 batch.samples=1024",
    options = {
      { name = "cluster", kind = "file", about = "machine facts (YAML); predicts the step" },
      { name = "program", kind = "file", about = "the program of its one rank, for C" },
      { name = "search", about = "with --cluster: every layout, estimated; the best ten" },
      { name = "ranks", kind = "count",
        about = "with --search: so many; default: those of the cluster" },
      { name = "memory", kind = "file", about = "the arena: FILE.svg or FILE.pickle" },
      { name = "rank", kind = "index",
        about = "whose arena, from 0; default: of the fullest stage" },
      point,
    },
  },
  {
    name = "explain", recipe = true, module = "tidelock.forecast.explain",
    about = "any stage of the planner, as text",
    example = "explain recipes/quickstart.lua --stage shard --rank 3",
    options = {
      {
        name = "stage", kind = "text", value = "STAGE",
        choices = { "check", "expand", "shard", "differentiate", "pipeline", "place", "emit" },
        about = "check, expand, shard, differentiate, pipeline, place or emit; default emit",
      },
      { name = "rank", kind = "index", about = "which rank, from 0" },
      { name = "weights", about = "the table of weights: shape, values, decay, and why" },
      point,
    },
  },
  {
    name = "verify", recipe = true, module = "tidelock.verify",
    about = "run repeats, micro-batches and layouts; print a matrix of hashes",
    example = "verify recipes/quickstart.lua",
    options = verify_options(threads, point),
  },
  {
    name = "sweep", recipe = true, module = "tidelock.sweep",
    about = "measure every point of a recipe with :over, or of a list of recipes",
    example = "sweep recipes/sweeps/policies.lua --steps 4",
    options = {
      { name = "jsonl", kind = "file", about = "a row a point; default runs/sweep-NAME.jsonl" },
      { name = "steps", kind = "index", about = "steps of a run, 0: plan only; default 6" },
      { name = "repeat", kind = "count", about = "runs of a point, which must agree; default 1" },
      { name = "timeout", kind = "amount", about = "seconds a point may take; default 600" },
      { name = "budget", kind = "amount", about = "minutes after which no point starts" },
      { name = "retry", about = "run those again that failed or took too long" },
      { name = "assert-same-bits", about = "end with 1 at the first point whose bits differ" },
      { name = "row", kind = "count", about = "measure point N in this process; print its row" },
      threads,
    },
  },
  {
    name = "report", recipe = false, module = "tidelock.report", words = { "FILE" },
    words_more = true, about = "sweeps, runs and measurements as one HTML page, or as text",
    example = "report runs/sweep-policies.jsonl --text",
    options = {
      { name = "html", kind = "file", about = "the page; default report.html" },
      { name = "text", about = "tables in the terminal instead" },
      { name = "baseline", kind = "file", about = "an earlier file: changes in per cent" },
      { name = "title", kind = "text", about = "of the page" },
    },
  },
  {
    name = "trace", recipe = false, words = { "DIR" }, module = "tidelock.trace",
    about = "where the time of a traced run went", example = "trace runs/trace --chrome steps.json",
    options = {
      { name = "chrome", kind = "file", about = "its timeline, for ui.perfetto.dev" },
      { name = "memory", kind = "file", about = "its arena: FILE.svg or FILE.pickle" },
      { name = "rank", kind = "index", about = "whose arena, from 0; default 0" },
    },
  },
  {
    name = "diff", recipe = false, words = { "A", "B" }, module = "tidelock.trace.diff",
    about = "the first bit that two traces or runs do not share, and why",
    example = "diff runs/a runs/b", options = {},
  },
  {
    name = "replay", recipe = false, words = { "RUN" }, overrides = true,
    module = "tidelock.trace.replay",
    about = "a step of a run again, on this CPU, with the run's bits",
    example = "replay runs/quickstart-eaf6 --step 12",
    options = {
      { name = "step", kind = "count",
        about = "which step; default: that which failed, or the last" },
      { name = "trace", kind = "folder", about = "record the step, with values, into DIR" },
      { name = "repl", about = "look at its tensors: inputs[1]:to_table()" },
      threads,
    },
  },
  {
    name = "export", recipe = false, words = { "CHECKPOINT", "OUT" },
    module = "tidelock.run.export", about = "the weights of a checkpoint, for inference elsewhere",
    example = "export runs/quickstart-eaf6 quickstart-bf16 --dtype bf16",
    options = {
      {
        name = "dtype", kind = "text", value = "f32|bf16|f16",
        about = "f32, bf16 or f16; default: as trained",
        choices = { "f32", "bf16", "f16" },
      },
      {
        name = "format", kind = "text", value = "hf", choices = { "hf" },
        about = "hf: a folder that transformers loads",
      },
    },
  },
  {
    name = "generate", recipe = false, words = { "MODEL", "PROMPT" }, overrides = true,
    module = "tidelock.serve.generate",
    about = "text after a prompt, by a run or a Hugging Face folder",
    example = "generate runs/quickstart-eaf6 \"You may copy\" --tokens 200 --temperature 0.8",
    options = {
      { name = "tokens", kind = "count", about = "most tokens to make; default 100" },
      { name = "temperature", kind = "number", about = "default 0: always the likeliest token" },
      { name = "top-p", kind = "share", about = "only the likeliest tokens of this share" },
      { name = "top-k", kind = "index", about = "only so many of the likeliest tokens" },
      { name = "seed", kind = "index", about = "another one gives another text; default 0" },
      { name = "ids", about = "the prompt is ids, as 1,15043, and so is what is printed" },
      { name = "tokenizer", kind = "file",
        about = "tokenizer.json, its folder or bytes; default: the model's, of a run bytes" },
      { name = "quiet", about = "neither the prompt nor the speed" },
      threads,
    },
  },
  require "tidelock.commands.serve",
  {
    name = "tokenize", recipe = false, words = { "TOKENIZER", "TEXT" }, words_needed = 1,
    module = "tidelock.serve.tokenize", about = "a text as token ids, or ids as text",
    example = "tokenize bytes \"Tide\"",
    options = {
      { name = "ids", kind = "text", value = "ID,..", about = "the text of these ids: 1,15043" },
      { name = "bare", about = "without what the tokenizer puts around a text, such as <s>" },
      { name = "count", about = "how many tokens, and nothing else" },
    },
  },
  {
    name = "bench", recipe = "maybe", module = "tidelock.bench",
    topics = {
      "plan", "matmul", "gemm", "attention", "moe", "rowwise", "step", "roofline", "collectives",
      "ranks", "serve", "trace", "capture",
    },
    about = "speed of products, a step, planning, ranks, generation",
    example = "bench step --rounds 5",
    options = {
      { name = "output", short = "o", kind = "form", about = "default md, Markdown" },
      { name = "baseline", kind = "file", about = "an earlier -o json: 1 on a drop beyond noise" },
      { name = "rounds", kind = "count", about = "turns that everything measured gets; default 7" },
      { name = "steps", kind = "count", about = "training steps of a turn; default 2" },
      { name = "size", kind = "count", about = "matmul: this size only" },
      { name = "alone", about = "without peers" },
      { name = "op", kind = "text", value = "NAME", about = "roofline: this operator only" },
      { name = "peers", about = "beside NumPy, PyTorch where installed; the default" },
      {
        name = "device", kind = "text", value = "host|cuda",
        about = "collectives: host or cuda; default host",
        choices = { "host", "cuda" },
      },
      { name = "ranks", kind = "count", about = "collectives: thread ranks; default 4" },
      { name = "from", short = "b", kind = "text", value = "SIZE",
        about = "collectives: least size; default 4K" },
      { name = "to", short = "e", kind = "text", value = "SIZE",
        about = "collectives: largest size; default 4M" },
      { name = "factor", short = "f", kind = "count",
        about = "collectives: from size to size; default 4" },
      { name = "count", kind = "count", about = "serve: requests of the load; default 64" },
      { name = "rate", kind = "amount",
        about = "serve: requests a second; default 0.7 of the most" },
      { name = "requests", kind = "file", about = "serve: a load of its own, a JSON line each" },
      threads,
    },
  },
  {
    name = "doctor", recipe = false, module = "tidelock.machine.doctor",
    about = "what this machine has, what it lacks, and what to do",
    example = "doctor --selftest",
    options = {
      { name = "selftest", about = "prove exp2 and the tensor core's step on what is here" },
      { name = "cluster", kind = "file", about = "machine facts: which way experts' rows take" },
      threads,
    },
  },
  {
    name = "manifest", recipe = false, module = "tidelock.machine.manifest", words = { "OLD" },
    words_needed = 0,
    about = "the machine code of the GPU's kernels against kernels/manifest.yaml",
    example = "manifest --diff row_max_rows build-old/cubins",
    options = {
      { name = "update", about = "write kernels/manifest.yaml from this build" },
      { name = "diff", kind = "text", value = "KERNEL",
        about = "a kernel's code against OLD, a cubin or folder" },
      { name = "scan", about = "only look for forbidden instructions in the machine code" },
    },
  },
  {
    name = "bundle", recipe = false, module = "tidelock.machine.bundle", words = { "DIR" },
    about = "a folder that runs on a machine without packages and network",
    example = "bundle /tmp/tidelock-bundle", options = {},
  },
  {
    name = "help", recipe = false, takes = "[COMMAND | FIELD] [options]",
    about = "this list, a command, a field of a recipe, or a function", example = "help run",
    options = {
      { name = "man", about = "all of it as a manual page" },
      { name = "completion", kind = "shell", about = "a script that completes words" },
    },
  },
  {
    name = "version", recipe = false, about = "what this build is: version, compiler, processor",
    example = "version", options = {},
  },
}

--- Handled before the Lua side is asked, listed so that `help` and suggestions know them.
commands.outside = {
  {
    name = "lua", takes = "FILE [ARGUMENTS]", about = "run a Lua file with tidelock loaded",
    example = "lua recipes/gates.lua",
  },
  {
    name = "repl", about = "read expressions and statements; tl is there, results are printed",
    example = "repl", session = "tl.tensor(\"f32\", { 2, 2 }, { 1, 2, 3, 4 }):norm()",
  },
  {
    name = "test", takes = "[FILES] [OPTIONS OF BUSTED]", about = "the suite",
    example = "test tests/spec/key_spec.lua",
  },
  { name = "lint", about = "luacheck and clang-format", example = "lint" },
}

local find, fail, names_of = words.find, words.fail, words.names_of

--- What other programs call it.
local foreign = {
  train = "run", pretrain = "run", finetune = "run", resume = "run --resume", compare = "diff",
  sample = "generate", infer = "generate", benchmark = "bench", profile = "trace", info = "doctor",
}

--- The command of that name; raises with the nearest one.
function commands.find(name)
  local command = find(commands.list, name)
  if command then return command end
  if not name:find "%S" then fail "the first word is empty; ./tl help lists the commands" end
  local outside = find(commands.outside, name)
  if name == "lua" then fail("lua: a file is missing; e.g. ./tl %s", outside.example) end
  if name == "repl" then fail("repl: it takes nothing; e.g. ./tl repl") end
  if outside then fail("%s is a command of ./tl: ./tl %s", name, name) end
  local known = names_of(commands.list, "")
  table.move(names_of(commands.outside, ""), 1, #commands.outside, #known + 1, known)
  table.sort(known)
  local near = foreign[name] or suggest.nearest(name, known)
  if name:find "%.lua$" then near = "run " .. name end
  fail("%s: no such command; %sthere are %s", name, words.did_you_mean(near),
    table.concat(known, ", "))
end

---@class tidelock.Request
---@field command tidelock.Command
---@field recipe string?
---@field overrides string[] # "layout.tp=2", as written, in order
---@field options table # by name, "-" as "_"
---@field topic string? # of help and bench
---@field words string[] # of commands that take them

--- Understand the words after the program's name.
---@param list string[]
---@return tidelock.Request
function commands.parse(list) return words.parse(commands, list) end

--- What `help` is asked about: the name of a command, or of a field, section, module or function of
--- a recipe.
function commands.topic(name)
  if not name:find "%S" then fail "help: the topic is empty; ./tl help lists the commands" end
  if find(commands.list, name) or find(commands.outside, name) then return name end
  local field_pages = require "tidelock.commands.field_pages"
  if field_pages.find(name) then return name end
  local near = suggest.nearest(name, field_pages.names())
  local as_command = foreign[name] or suggest.nearest(name, names_of(commands.list, ""))
  if near and not as_command then
    fail("help: %s: no such command, field or function; did you mean %s?", name, near)
  elseif not as_command then
    fail("help: %s: no such command, field or function; ./tl help, ./tl help recipe, nn, g and tl "
      .. "list them", name)
  end
  return commands.find(name).name
end

--- The text of `help` or, with a command's name, of `help NAME`.
function commands.help(topic)
  return require("tidelock.commands.manual").page(topic) -- it reads this table
end

return commands
