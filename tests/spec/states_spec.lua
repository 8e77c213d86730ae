-- States: numbers that a step keeps for the next one. What they read, what they are set to, when.
local core = require "tidelock.core"
local models = require "support.models"
local summary = require "tidelock.plan.summary"
local tl = require "tidelock"
local written = require "support.written"

local nn = tl.nn

--- A model of two layers whose graph is `build`; more options as in support.models.
local function with_graph(build, options)
  local layer = function()
    return { nn.graph("g", build), nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 48 } } }
  end
  return models.with({ layer = layer }, options or {})
end

--- The loss keeps what `build(g, each)` says; each: the loss of every target.
local function with_loss(build, options)
  return models.with({ loss = function(g, logits, targets)
    local each = g.cross_entropy(logits, targets)
    return build(g, each) or each
  end }, options or {})
end

local function value(run, name) return run:weight(name):to_table()[1] end

--- Data of three steps, the second without one target.
local function gap_data(o, steps)
  local list = {}
  for _, step in ipairs(steps) do
    for i = 1, o.samples do
      local tokens, targets = models.tokens(step * 100 + i, o.length, o.vocab), {}
      for t = 1, o.length do targets[t] = step == 2 and -1 or tokens[t % o.length + 1] end
      list[#list + 1] = { tokens = tokens, targets = targets }
    end
  end
  return tl.data.given(list)
end

local function counting(g)
  local steps = g.state("steps")
  g.update(steps, steps + 1)
  return steps
end

describe("a state", function()
  it("is read as it was before the step, and set once after it", function()
    local function build(g, x)
      local steps = counting(g)
      g.named("seen", steps * 1)
      return x
    end
    local run <close> = models.start(with_graph(build), { keep = { "*.seen" } })
    for step = 1, 3 do
      run:step()
      assert.same({ step - 1 }, run:kept("layers.1.g.seen"):to_table())
      assert.equal(step, value(run, "layers.1.g.steps"))
    end
  end)

  it("starts at 0, or as init says; random ones hang on the name", function()
    local function build(g, x)
      for _, init in ipairs { "ones", "normal" } do
        local s = g.state(init, "dim", { init = init })
        g.update(s, s)
      end
      counting(g)
      return x
    end
    local run <close> = models.start(with_graph(build))
    assert.equal(0, value(run, "layers.0.g.steps"))
    assert.equal(1, value(run, "layers.1.g.ones"))
    local drawn = core.tensor("f32", { 32, 1 })
    core.call("init", {}, { drawn }, { kind = 1, name_hash = core.hash_int "layers.0.g.normal",
      row_first = 0, col_first = 0, cols_full = 1, first = 0, second = core.f32(0.02) },
      { seed = models.defaults.seed })
    assert.same(drawn:bits(), run:weight("layers.0.g.normal"):bits())
    run:step()
    assert.same(drawn:bits(), run:weight("layers.0.g.normal"):bits())
  end)

  it("stays f32 in bf16, is counted and hashed with the weights, and has no moments", function()
    local function build(g, x)
      local s = g.state("s", "dim")
      g.update(s, 0.5 * s + 0.5 * g.mean(x))
      return x
    end
    local options = with_graph(build, { dtype = "bf16" })
    local run <close> = models.start(options)
    local before = run:weights_hash()
    assert.equal("f32", run:weight("layers.0.g.s"):dtype())
    local plain = models.plan(with_graph(function(_, x) return x end, { dtype = "bf16" }))
    assert.equal(summary.of(plain).weights + 64, run.plan.summary.weights)
    assert.is_nil(run.plan.ranks[1].persistent["m layers.0.g.s"])
    local weights = run:weights()
    local loaded = core.tensor("f32", { 32 }):fill(0.125)
    for _, weight in ipairs(weights) do
      if weight.name == "layers.0.g.s" then require("tidelock.run.warm").set(run, weight.param,
        loaded) end
    end
    assert.not_equal(before, run:weights_hash())
    assert.same({ 0.125 }, { value(run, "layers.0.g.s") })
  end)

  it("exchanges with another: both read the values before the step", function()
    local function build(g, x)
      local a, b = g.state("a", "", { init = "ones" }), g.state("b")
      g.update(a, b)
      g.update(b, a)
      return x
    end
    local run <close> = models.start(with_graph(build, { ["layout.pp"] = 2 }))
    for step = 1, 3 do
      run:step()
      assert.equal(step % 2 == 1 and 0 or 1, value(run, "layers.0.g.a"))
      assert.equal(step % 2, value(run, "layers.0.g.b"))
    end
  end)

  it("is not set by an evaluation", function()
    local o = models.defaults
    local options = with_graph(function(g, x) return x + 0.01 * counting(g) end,
      { eval = { data = models.data(o, 8), samples = 8 } })
    local run <close> = models.start(options)
    run:step()
    local first = run:eval().loss_bits
    assert.equal(first, run:eval().loss_bits)
    assert.equal(1, value(run, "layers.0.g.steps"))
    run:step()
    assert.not_equal(first, run:eval().loss_bits)
  end)

  it("is left as it was by a step whose loss is not finite", function()
    local run <close> = models.start(with_loss(function(g, each)
      return each * g.exp(100 * counting(g))
    end))
    run:step()
    local before = run:weights_hash()
    local good, message = pcall(run.step, run)
    assert.is_false(good)
    assert.matches("step 2, .*is Inf", message)
    assert.equal(1, value(run, "steps"))
    assert.equal(before, run:weights_hash())
  end)

  it("moves the key by its name, its start and its update", function()
    local function key(name, init, factor)
      return summary.keys(models.plan(with_graph(function(g, x)
        local s = g.state(name, "", { init = { "constant", init } })
        g.update(s, s * factor)
        return x
      end)))
    end
    local base = key("a", 1, 2)
    assert.equal(base, key("a", 1, 2))
    for _, other in ipairs { key("b", 1, 2), key("a", 2, 2), key("a", 1, 3) } do
      assert.not_equal(base, other)
    end
  end)
end)

describe("a sum over tokens", function()
  --- The tree over runs of the tree over two dp leaves of three samples of 16 tokens.
  local function tree(x, runs)
    local halves, sum = {}, core.tensor("f32", { 32 })
    for half = 0, 1 do
      halves[half + 1] = core.tensor("f32", { runs, 32 })
      core.call("sum_tokens", { x, false, false, false }, { halves[half + 1] }, { kind = 0,
        first = half * 48, samples = 3, length = 16, runs = runs, mode = 0 })
    end
    core.call("binary", { halves[1], halves[2] }, { halves[1] }, { kind = 0, broadcast = 0 })
    core.call("fold", { halves[1] }, { sum }, {})
    return sum:bits()
  end

  for _, dtype in ipairs { "f32", "bf16" } do
    it("has the order of a bias' gradient, in runs in the trunk, " .. dtype, function()
      local function build(g, x)
        local s, t = g.state("s", "dim"), g.state("t", "dim")
        g.dim("wide", 32, "tp")
        local y = g.named("y", g.matmul(x, g.weight("up", "wide dim")))
        local seen = g.matmul(y, g.weight("down", "dim wide"))
        g.update(s, g.sum(g.named("x", x * 1)))
        g.update(t, g.mean(g.named("seen", g.square(seen))))
        local u = g.state("u", "wide")
        g.update(u, g.sum(y))
        return x + seen
      end
      local options = with_graph(build, { leaves = { tp = 4, dp = 2 }, samples = 6, micro = 1,
        dtype = dtype, ["layout.tp"] = 2 })
      local run <close> = models.start(options, { keep = { "*.x", "*.y", "*.seen" } })
      run:step()
      local function bits(name) return run:weight("layers.1.g." .. name):bits() end
      assert.same(tree(run:kept "layers.1.g.x", 4), bits "s")
      assert.same(tree(run:kept "layers.1.g.y", 1), bits "u")
      local mean = core.tensor_from_bits("f32", { 32 }, tree(run:kept "layers.1.g.seen", 4))
      core.call("scale", { mean }, { mean }, { factor = 1 / 96 })
      assert.same(mean:bits(), bits "t")
    end)
  end

  it("counts exactly, over every sample of the step", function()
    local function build(g, x)
      local s = g.state("s", "dim")
      g.update(s, s + g.sum(g.exp(x * 0)))
      return x
    end
    for _, layout in ipairs { {}, { ["layout.dp"] = 4, ["batch.micro"] = 1 },
      { ["layout.tp"] = 2, ["layout.pp"] = 2 } } do
      local run <close> = models.start(models.with(with_graph(build), layout))
      run:step()
      run:step()
      assert.equal(2 * 8 * 16, value(run, "layers.1.g.s"))
    end
  end)

  it("scales by a function of the step", function()
    local function counted(g, x)
      local s = g.state("s", "dim")
      g.update(s, g.mean(g.exp(x * 0)) * function(step) return step * 10 end)
      return x
    end
    local run <close> = models.start(with_graph(counted))
    for step = 1, 3 do
      run:step()
      assert.equal(step * 10, value(run, "layers.0.g.s"))
    end
  end)
end)

describe("functions of the step", function()
  --- What functions of two layers, made by make(layer), give in step 2.
  local function tried(make)
    local layer = 0
    local run <close> = models.start(with_graph(function(g, x)
      local s = g.state("s", "dim")
      layer = layer + 1
      g.update(s, g.mean(g.exp(x * 0)) * make(layer))
      return x
    end))
    run:step()
    run:step()
    return { value(run, "layers.0.g.s"), value(run, "layers.1.g.s") }
  end

  it("share numbers where code and what it reaches are equal, and nowhere else", function()
    assert.same({ 6, 6 }, tried(function() return function(step) return step * 3 end end))
    assert.same({ 2, 4 }, tried(function(layer)
      return function(step) return step * layer end
    end))
    assert.same({ 12, 22 }, tried(function(layer)
      local box = { layer * 10 }
      return function(step) return box[1] + step end
    end))
  end)
end)

describe("a step without targets", function()
  local o = setmetatable({}, { __index = models.defaults })

  local function after(steps, options)
    local run <close> = models.start(models.with(with_loss(function(g) counting(g) end),
      { data = gap_data(o, steps) }, options or {}))
    local skipped
    for _ in ipairs(steps) do skipped = run:step().skipped or skipped end
    return { run:weights_hash(), run:optimizer_hash(), value(run, "steps") }, skipped
  end

  it("changes no weight and no state, and is none of AdamW's steps", function()
    local whole, none = after { 1, 3 }
    local gap, skipped = after { 1, 2, 3 }
    assert.is_nil(none)
    assert.equal("0 target tokens", skipped)
    assert.equal(2, gap[3])
    assert.same(whole, gap)
    assert.same(gap, (after({ 1, 2, 3 }, { ["layout.dp"] = 2, ["layout.pp"] = 2 })))
  end)
end)

describe("an extra loss", function()
  it("is logged by name: the mean over targets, with the bits of the loss", function()
    local options = { loss = function(g, logits, targets)
      local each = g.cross_entropy(logits, targets)
      g.add_loss("same", each, 0)
      g.add_loss("double", 2 * each, 0)
      return each
    end, documents = true }
    for _, layout in ipairs { {}, { ["layout.tp"] = 2, ["layout.pp"] = 2, ["batch.micro"] = 1 } } do
      local run <close> = models.start(models.with(options, layout))
      local s = run:step()
      assert.equal(s.loss_bits, s.losses_bits.same)
      assert.equal(s.loss, s.losses.same)
      assert.equal(2 * s.loss, s.losses.double)
    end
  end)

  it("has the same bits in every layout", function()
    local layer = function()
      return { nn.graph("probe", function(g, x)
        g.add_loss("probe", g.square(g.matmul(x, g.weight("direction", "dim", { init = 0.1 }))),
          0.1)
        return x
      end), nn.residual { nn.rms_norm {}, nn.attention { heads = 4 } } }
    end
    for _, dtype in ipairs { "f32", "bf16" } do
      local known
      for _, layout in ipairs { {}, { ["layout.tp"] = 4 }, { ["layout.pp"] = 2, ["layout.dp"] = 2 },
        { ["layout.tp"] = 2, ["layout.sequence_parallel"] = false, ["batch.micro"] = 1 } } do
        local run <close> = models.start(models.with({ layer = layer, dtype = dtype }, layout))
        local s = run:step()
        known = known or s.losses_bits
        assert.same(known, s.losses_bits)
        assert.is_string(s.losses_bits["layers.1.probe.probe"])
      end
    end
  end)
end)

describe("a mistake with states", function()
  after_each(written.clean)

  --- What planning a recipe says whose layer ends with `lines` in the function of a graph.
  local function message_of(lines)
    local path = written.file(written.recipe { head = [[
      local function speed(step)
        return 1 / step
      end
      local kept = nn.graph("kept", function(g, x)
        local level = g.state("level", "dim")
        g.update(level, level + g.mean(x) * speed)
]] .. lines .. "\nreturn x end)", tail = "" }:gsub("hidden = 96 } },\n", "%0kept,\n"))
    local good, message = pcall(require "tidelock.plan", tl.load(path), "expand")
    assert.is_false(good)
    return (tostring(message):gsub(path:gsub("%p", "%%%0"), "R"))
  end

  it("is told at its line", function()
    assert.equal("R:9: the state layers.0.kept.level is already updated at R:8; a state is set "
      .. "once a step", message_of "g.update(level, g.mean(x))")
    assert.matches("^R:10: binary: a sum over the tokens of the step is known after them",
      message_of "local mean = g.mean(x)\nx = x * mean")
    assert.equal("R:9: layers.0.kept.a: nothing updates this state; g.update(state, value) does, "
      .. "or g.weight with frozen = true", (message_of 'g.state("a")':match "^[^\n]+"))
    assert.matches("^R:4: attempt to perform arithmetic on a nil value",
      (message_of "g.update(g.state('b', 'dim'), g.mean(x) * function() return speed() end)"))
  end)
end)

describe("a watched state", function()
  it("is whole where its dim is cut", function()
    local function build(g, x)
      g.dim("inner", 24, "tp")
      local s = g.state("s", "inner")
      local y = g.matmul(x, g.weight("up", "inner dim"))
      local mean = g.named("mean", g.mean(y))
      g.update(s, mean)
      return x + g.matmul(y, g.weight("down", "dim inner"))
    end
    local options = with_graph(build, { log = { watch = { "*.s:hash", "*.mean:norm" } } })
    local known
    for _, tp in ipairs { 1, 2, 4 } do
      local run <close> = models.start(models.with(options, { ["layout.tp"] = tp }))
      local watch = run:step().watch
      known = known or watch
      assert.same(known, watch)
      assert.is_string(watch["layers.0.g.s:hash"])
      assert.is_number(watch["layers.1.g.mean:norm"])
    end
  end)
end)
