--- What a run says before its first step, and what to type after its last.
--
--   quickstart.lua   key 5e1c 09af 77d2 c340   recipe 7d20 41be 0c11 92aa
--     model    853,120 weights in 39 tensors: 4 layers, dim 128, 8 heads over 4 kv heads, vocab 256
--     data     12 texts, 231,870 bytes; a step is 16 samples of 256 tokens
--     ranks    8 thread ranks on 2 cores: tp 2, dp 2, pp 2 (1f1b, 4 micro-batches, bubble 20%); ..
--     memory   39.7 MiB: weights 3.3, gradients 13.0, optimizer 6.5, activations 16.9
--     build    tidelock 0.1.0, gcc 12.2.0, avx512
--     ready    in 0.4 s; an untrained model scores 5.545 (ln 256)

local core = require "tidelock.core"
local forecast = require "tidelock.forecast"
local screen = require "tidelock.text.screen"

local header = {}

local function data_text(plan, data)
  local batch = plan.spec.batch
  return ("%s; a step is %s of %s"):format(data, screen.plural(batch.samples, "sample"),
    screen.plural(batch.length, "token"))
end

--- What is held out, or nil. Documents are dealt by a hash: a split of few is seldom as wished.
local function eval_text(plan, eval)
  local of = plan.spec.eval
  if not of or not eval then return nil end
  return ("%s; %s every %s"):format(eval, screen.plural(of.samples, "sample"),
    screen.plural(of.every, "step"))
end

--- "39.7 MiB: weights 3.3, .." of one rank; of several, their sum and the fullest of them.
local function memory_text(summary)
  local kinds, leaves = {}, summary.leaf_buffers
  for name, bytes in pairs(summary.memory_kinds) do
    if name == "gradients" and leaves and leaves > 1 then
      kinds[#kinds + 1] = { name, bytes, (" (%d leaf buffers)"):format(leaves) }
    else
      kinds[#kinds + 1] = { name, bytes }
    end
  end
  local one = screen.memory_text(summary.rank_bytes, kinds)
  if summary.ranks == 1 then return one end
  return ("%s MiB, the fullest rank %s"):format(screen.mib(summary.planned_bytes), one)
end

--- Ranks, processor, layout, arithmetic and policy.
local function ranks_text(plan, processes)
  local spec, summary = plan.spec, plan.summary
  local layout = screen.layout_text(spec.layout, forecast.pipeline_text(plan))
  local count = processes and summary.ranks .. " processes"
    or screen.plural(summary.ranks, "thread rank")
  return ("%s on %s%s; %s, %s (%s), %s"):format(count,
    screen.plural(core.files.cpu_count(), "core"), layout ~= "" and ": " .. layout or "",
    spec.device or "host", spec.dtype, spec.policy.arithmetic, screen.policy_text(spec.policy))
end

--- "tidelock 0.1.0, gcc 12.2.0, avx512"
function header.build_text()
  local build = core.build()
  return ("tidelock %s, %s, %s"):format(build.version, build.compiler, build.simd)
end

local function ready_text(plan, seconds)
  local vocab = plan.summary.vocab
  return ("in %.1f s; an untrained model scores %.3f (ln %d)"):format(seconds,
    core.math.log(vocab), vocab)
end

--- The header of a run.
---@param plan table # spec, summary, key, recipe_hash
---@param file string # the recipe's path
---@param data string # what the data is
---@param seconds number # from the command to the first step
---@param width integer? # of the terminal
---@param processes? boolean # ranks are processes
---@param eval string? # what the held-out data is
function header.text(plan, file, data, seconds, width, processes, eval)
  local title = ("%s   key %s   recipe %s"):format(file:match "[^/]+$", screen.spaced(plan.key),
    screen.spaced(plan.recipe_hash))
  local summary, held = plan.summary, eval_text(plan, eval)
  local lines = {
    { "model", screen.model_text(summary) },
    { "data", data_text(plan, data) },
    { "ranks", ranks_text(plan, processes) },
    { "memory", memory_text(summary) },
    { "build", header.build_text() },
    { "ready", ready_text(plan, seconds) },
  }
  if held then table.insert(lines, 3, { "eval", held }) end
  return screen.header(title, lines, width)
end

--- A layout of eight ranks that this recipe surely takes, or nil.
local function eight_ranks(plan)
  local spec, summary = plan.spec, plan.summary
  local function even(n) return n and n % 2 == 0 end
  local leaves = spec.policy.leaves
  local fits = summary.ranks == 1 and even(leaves.tp) and even(leaves.dp) and even(summary.heads)
    and even(summary.kv_heads) and even(spec.batch.length) and summary.layers >= 2
    and spec.batch.samples % (2 * spec.batch.micro) == 0
  return fits and "layout.tp=2 layout.pp=2 layout.dp=2" or nil
end

--- A word as a shell has to read it.
local function quoted(word)
  if not word:find "[^%w_./=,:+-]" then return word end
  return "'" .. word:gsub("'", "'\\''") .. "'"
end

--- The command of a run as it was typed, options aside.
---@param request tidelock.Request
---@return string
function header.words(request)
  local words = { "run", quoted(request.recipe) }
  for _, word in ipairs(request.overrides) do words[#words + 1] = quoted(word) end
  return table.concat(words, " ")
end

--- Whether a model of these data speaks in bytes: then it needs no tokenizer to go on from a text.
local function is_text(source)
  local all = source.kind == "text" or source.sources ~= nil
  for _, child in ipairs(source.sources or {}) do all = all and is_text(child) end
  return all
end

--- What to type next: the same recipe with the same overrides, so that the key is the same; and
--- what the model in `folder` has learned to write.
---@param request tidelock.Request
---@param folder string?
---@return string[]
function header.next_commands(plan, request, folder)
  local words, runs = { quoted(request.recipe) }, ""
  for _, word in ipairs(request.overrides) do
    if word ~= "device=cuda" then words[#words + 1] = quoted(word) end -- what follows: on the host
  end
  if request.options.point then words[#words + 1] = "--point " .. request.options.point end
  if request.options.runs then runs = " --runs " .. quoted(request.options.runs) end
  local recipe, layout = table.concat(words, " "), eight_ranks(plan)
  local program = screen.program()
  local commands = { program .. " verify " .. recipe }
  if layout then
    table.insert(commands, 1, ("%s run %s %s%s"):format(program, recipe, layout, runs))
  end
  if folder and is_text(plan.spec.data) then
    commands[#commands + 1] = ("%s generate %s The"):format(program, quoted(folder))
  end
  return commands
end

return header
