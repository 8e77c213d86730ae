--- `./tl bench step`: tokens a second of a training step, beside the same model in PyTorch.
--
-- Ours: the recipe as written, and with the whole batch in one micro-batch. The peer is the
-- quickstart's model (tests/peers/quickstart.py), or that of recipes/moe_1b.lua on a GPU
-- (moe_step.py), eager and compiled, cut both ways, on as many threads. Then what lies between a
-- step and this machine's ceiling (bench/gap.lua), the time of each operator, and what Lua costs.

local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local gap = require "tidelock.bench.gap"
local peers = require "tidelock.bench.peer"
local requests = require "tidelock.plan.requests"
local rounds = require "tidelock.bench.rounds"
local screen = require "tidelock.text.screen"

local step = {}

local warm_steps = 2

--- A run of the recipe that can take turns of `steps` steps.
local function entrant(options, micro, label)
  local overrides = table.move(options.overrides, 1, #options.overrides, 1, {})
  if micro then overrides[#overrides + 1] = "batch.micro=" .. micro end
  local run = requests.guarded(driver.start,
    requests.recipe(options.recipe, overrides), { threads = options.threads })
  for _ = 1, warm_steps do run:step() end
  return {
    label = label, micro = run.spec.batch.micro, run = run,
    turn = function()
      return rounds.measure(function()
        for _ = 1, options.steps do run:step() end
      end)
    end,
  }
end

--- What the peer of a mixture has to know: recipes/moe_1b.lua, with other sizes.
local function mixture_argument(run, f, dense)
  local spec, summary, router = run.spec, run.plan.summary, f.attrs.router
  if spec.device ~= "cuda" or router.name ~= "sigmoid" or not f.attrs.shared then
    return nil, "the peer has sigmoid routers and a shared expert, on a GPU"
  end
  return {
    vocab = spec.model.vocab, dim = summary.dim, layers = summary.layers, heads = summary.heads,
    kv_heads = summary.kv_heads, dense = dense, experts = f.experts, slots = f.top_k,
    hidden = f.hidden, groups = router.groups, top_groups = router.top_groups or router.groups,
    scale = router.scale, samples = spec.batch.samples, length = spec.batch.length,
  }, "moe_step.py"
end

--- What the peer has to know of the model, and its script; nil and a reason if it has another.
local function peer_argument(run, threads)
  local spec, summary = run.spec, run.plan.summary
  local texts, hidden = {}, nil
  for _, path in ipairs(core.files.glob "/usr/share/common-licenses/*") do
    if core.files.size(path) > spec.batch.length then texts[#texts + 1] = path end
  end
  for _, param in ipairs(run.plan["local"].params) do
    if param.name:find "%.down$" and not hidden then hidden = param.full_cols end
  end
  for _, node in ipairs(run.plan["local"].nodes) do
    if node.moe then return mixture_argument(run, node.moe, hidden) end
  end
  if not (summary.heads and hidden) then
    return nil, "the peer has layers of attention and SwiGLU, this recipe has others"
  end
  return {
    vocab = spec.model.vocab, dim = summary.dim, layers = summary.layers, heads = summary.heads,
    kv_heads = summary.kv_heads, hidden = hidden, samples = spec.batch.samples,
    length = spec.batch.length, threads = threads, texts = texts, weights = summary.weights,
  }, "quickstart.py"
end

--- The peer's entrants; a first turn that fails (no compiler for torch.compile) skips one.
local function peer_entrants(peer, options, micros)
  local list = {}
  for _, compile in ipairs { false, true } do
    for _, micro in ipairs(micros) do
      list[#list + 1] = {
        label = "PyTorch " .. (compile and "compiled" or "eager"), micro = micro,
        turn = function()
          return peer:ask { micro = micro, compile = compile, steps = options.steps }
        end,
      }
    end
  end
  return list
end

--- Time of each operator of rank 0 in traced steps, and of Lua around them.
local function operator_table(run, steps)
  run.ranks:trace(true)
  local inside = 0
  local all = rounds.measure(function()
    for _ = 1, steps do inside = inside + run:step().ms / 1000 end
  end)
  local by, count, order, traced = {}, {}, {}, 0
  local instructions = run.plan.programs[run.table[1].program].instructions
  for i, ns in ipairs(run.ranks:times(0)) do
    local op = instructions[i].op
    if ns > 0 then
      if not by[op] then by[op], count[op], order[#order + 1] = 0, 0, op end
      by[op], count[op], traced = by[op] + ns / 1e9, count[op] + 1, traced + ns / 1e9
    end
  end
  run.ranks:trace(false)
  table.sort(order, function(a, b) return by[a] > by[b] end)
  local result = {
    title = "Where the time of a step goes (rank 0, traced)",
    columns = { "operator", "calls", "ms", "share" }, rows = {}, notes = {},
  }
  local function add(label, calls, seconds)
    table.insert(result.rows, { label, calls, ("%.3f"):format(1000 * seconds / steps),
      ("%.2f%%"):format(100 * seconds / all.seconds) })
  end
  for _, op in ipairs(order) do add(op, count[op], by[op]) end
  add("between operators", "-", inside - traced)
  add("Lua", "-", all.seconds - inside)
  return result
end

local function speed_table(entrants, options, tokens)
  local result = {
    title = ("Training step: %s, %d threads"):format(options.recipe:match "[^/]+$",
      options.threads),
    columns = { "program", "micro", "tok/s best", "tok/s median", "cpu ms/step", "wall ratio",
      "cpu ratio" },
    rows = {}, measures = {},
    notes = { "ratio: tok/s of the first row / tok/s of this one, in the same round" },
  }
  for _, e in ipairs(entrants) do
    if #e.turns == 0 then
      table.insert(result.notes, ("%s, micro %d: not measured: %s"):format(e.label, e.micro,
        e.skip or "interrupted"))
    else
      local best, middle = rounds.rate(e, tokens * options.steps)
      if e.run then
        table.insert(result.measures, rounds.measured(e, ("%s, micro %d"):format(e.label, e.micro),
          "tok/s", tokens * options.steps))
      end
      result.rows[#result.rows + 1] = {
        e.label, e.micro, screen.short(best), screen.short(middle),
        ("%.1f"):format(1000 * rounds.middle(e, "cpu") / options.steps),
        (rounds.ratio(entrants[1], e, "seconds")), (rounds.ratio(entrants[1], e, "cpu")),
      }
    end
  end
  return result
end

--- Entrants of ours and of the peer, and why there is no peer.
local function line_up(options)
  local entrants = { entrant(options, nil, "Tidelock") }
  local first = entrants[1]
  local spec = first.run.spec
  local samples, micros = spec.batch.samples // spec.layout.dp, { first.micro }
  if first.micro ~= samples then
    entrants[2] = entrant(options, samples, "Tidelock")
    micros[2] = samples
  end
  local argument, reason = nil, "--alone"
  if not options.alone then argument, reason = peer_argument(first.run, options.threads) end
  local peer
  if argument then
    local settings = ("OMP_NUM_THREADS=%d"):format(options.threads)
    peer, reason = peers.open(reason, settings, argument)
  end
  if peer then
    for _, e in ipairs(peer_entrants(peer, options, micros)) do entrants[#entrants + 1] = e end
  end
  return entrants, peer, reason
end

---@param options table # recipe, overrides, rounds, steps, threads
function step.tables(options)
  local entrants, peer, reason = line_up(options)
  local spec = entrants[1].run.spec
  rounds.run(entrants, options.rounds)
  local speed = speed_table(entrants, options, spec.batch.samples * spec.batch.length)
  table.insert(speed.notes, peer and "peer: " .. peer.about or "no peer: " .. reason)
  if peer then peer:close() end
  local operators = operator_table(entrants[1].run, options.steps * options.rounds)
  local missing = gap.table(entrants[1].run, options)
  for _, e in ipairs(entrants) do
    if e.run then e.run:close() end
  end
  return { speed, missing, operators }
end

return step
