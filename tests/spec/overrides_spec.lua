local overrides = require "tidelock.language.overrides"
local problems = require "tidelock.text.problems"
local written = require "support.written"

local function parse(...)
  local found = problems.new()
  return overrides.parse({ ... }, found), found:text()
end

describe("a word of the command line", function()
  it("is a key and a Lua literal or a bare word", function()
    local list = parse("layout.tp=2", "train.lr=3e-4", "train.save=false", "layout.schedule=zb-h1",
      "layout={ dp = 8 }", "policy=\"fast\"", "train.clip=nil")
    assert.same({ key = "layout.tp", value = 2 }, list[1])
    assert.equal(3e-4, list[2].value)
    assert.is_false(list[3].value)
    assert.equal("zb-h1", list[4].value)
    assert.same({ dp = 8 }, list[5].value)
    assert.equal("fast", list[6].value)
    assert.is_true(list[7].unset)
  end)

  it("is refused when it is neither, with what to write", function()
    local _, text = parse("layout.tp", "layout.tp=", "layout={ dp = ",
      "layout={ f = function() end }", "layout.=3", "layout..tp=2")
    assert.equal([[
command line: layout: is no Lua literal: unexpected symbol near <eof>
command line: layout: is no literal: a function cannot stand here
command line: layout..tp=2: expected key=value, as layout.tp=2
command line: layout.=3: expected key=value, as layout.tp=2
command line: layout.tp: expected key=value, as layout.tp=2
command line: layout.tp: nothing stands behind =; to unset a field write layout.tp=nil
6 errors; nothing was started]], text)
  end)
end)

describe("an override", function()
  after_each(written.clean)

  local function spec(...)
    return written.spec(written.load(written.recipe { extra = "policy = 'layout'," }, { ... }))
  end

  it("sets one field and leaves its section alone", function()
    local one = assert(spec("batch.micro=4", "train.steps=3"))
    assert.same({ samples = 8, micro = 4, length = 32 }, one.batch)
    assert.equal(3, one.train.steps)
  end)

  it("replaces a section whole when the key is bare", function()
    local one = assert(spec("layout={ dp = 2 }", "layout.tp=2"))
    assert.equal(2, one.layout.dp)
    assert.equal(2, one.layout.tp)
  end)

  it("opens a name into a table that starts with it", function()
    local one = assert(spec("policy.leaves.dp=16", "policy.seed=9"))
    assert.equal("layout", one.policy.name)
    assert.equal(16, one.policy.leaves.dp)
    assert.equal(9, one.policy.seed)
    assert.equal("batch", assert(spec("policy.name=batch")).policy.name)
    assert.equal(100, assert(spec("train.lr.warmup=100")).train.lr.warmup)
    assert.equal(0.5, assert(spec("train.optimizer.beta1=0.5")).train.optimizer.beta1)
  end)

  it("is checked like the recipe, and blames the command line", function()
    local _, text = spec("layout.tp=16", "layout.pt=2", "batch.micro=12", "model.dim=3")
    local file = text:match "%((.-)%.lua:"
    assert.equal([[
command line: batch.micro: micro 12 does not divide 8, the samples of a rank (F.lua:13); ]] ..
      [[try micro = 8
command line: layout.pt: no such key; did you mean tp? layout has all_to_all, ]] ..
      [[all_to_all_threshold, cp, cp_balance, cp_map, dp, ep, experts, island, order, pp, ]] ..
      [[schedule, ]] ..
      [[sequence_parallel, stages, tp, virtual_stages, zero
command line: layout.tp: tp 16 does not divide heads 8 (F.lua:6); allowed: 1, 2, 4, 8; try tp = 4
command line: layout.tp: tp 16 does not divide leaves.tp 4 (F.lua:15); allowed: 1, 2, 4; try tp = 4
command line: model.dim: model is made in the recipe; name the number there with tl.params
5 errors; nothing was started]], (text:gsub(file:gsub("%p", "%%%0"), "F")))
  end)

  it("names the nearest section or knob for an unknown key", function()
    local _, text = spec("polcy.seed=3")
    assert.matches("^command line: polcy%.seed: no such field or knob; did you mean policy%.seed%?",
      text)
    _, text = spec("trian.steps=3", "polcy.leaves.tp=2", "polcy.sed=3")
    for _, near in ipairs { "train.steps", "policy.leaves.tp", "policy" } do
      assert.matches("no such field or knob; did you mean " .. near .. "? there are ", text, 1,
        true)
    end
    _, text = spec("tensor-parallel=2", "tensor_parallel=2", "zero_optimization.stage=1")
    local tp = "write layout.tp=.. (in a recipe: layout = { tp = .. })\n"
    assert.equal("command line: tensor-parallel=2: " .. tp
      .. "command line: tensor_parallel: no such field or knob; " .. tp
      .. "command line: zero_optimization.stage: no such field or knob; "
      .. require("tidelock.language.hints").of "zero_optimization"
      .. "\n3 errors; nothing was started", text)
  end)

  it("says where a field belongs whose section was left out", function()
    local _, text = spec("tp=2", "micro=2", "every=3")
    assert.equal("command line: every: no such field or knob; write eval.every=.. (in a recipe: "
      .. "eval = { every = .. }), or log.every=.. (in a recipe: log = { every = .. })\n"
      .. "command line: micro: no such field or knob; write batch.micro=.. (in a recipe: "
      .. "batch = { micro = .. })\n"
      .. "command line: tp: no such field or knob; write layout.tp=.. (in a recipe: "
      .. "layout = { tp = .. })\n3 errors; nothing was started", text)
  end)

  it("says what to write in the place of another program's key", function()
    local _, text = spec("tensor_model_parallel_size=2", "learning_rate=1")
    assert.matches("^command line: learning_rate: no such field or knob; write train%.lr=", text)
    assert.matches("parallel_size: no such field or knob; write layout%.tp=%.%. %(in a rec", text)
  end)

  it("holds for every point of a sweep", function()
    local text = written.recipe { tail = ":over('layout', { { dp = 2 }, { tp = 2 } })" }
    for _, point in ipairs(written.load(text, { "layout.pp=2", "train.steps=7" }):points()) do
      local one = assert(written.spec(point))
      assert.equal(7, one.train.steps)
      assert.equal(2, one.layout.pp)
    end
  end)
end)
