-- A plan as a whole: programs for ranks that are alike, made on a machine that has none of them.
local models = require "support.models"
local planner = require "tidelock.plan"
local tl = require "tidelock"

describe("a micro-batch that is larger than a rank's samples", function()
  local recipes = require "tidelock.language.recipe"

  local function planned(...)
    return require "tidelock.plan"(recipes.load("recipes/quickstart.lua", { ... }):points()[1],
      "check")
  end

  it("takes all of them where only the layout comes from the command line", function()
    local plan = planned "layout.dp=8"
    assert.equal(2, plan.spec.batch.micro)
    assert.matches("it takes all 2, and no bit moves", table.concat(plan.spec.notes, "\n"), 1, true)
    assert.equal(4, planned("layout.dp=4").spec.batch.micro)
  end)

  it("is refused where it was asked for", function()
    local good, problem = pcall(planned, "layout.dp=8", "batch.micro=4")
    assert.is_false(good)
    assert.matches("micro 4 does not divide 2, the samples of a rank", tostring(problem), 1, true)
  end)
end)

describe("the plan of 1,024 ranks", function()
  local plan = planner(tl.load("recipes/quickstart.lua"):with {
    layout = { dp = 128, tp = 4, pp = 2 }, ["policy.leaves"] = { tp = 4, dp = 128 },
    ["batch.samples"] = 1024, ["batch.micro"] = 8,
  })

  it("has one program for each pair of a pipeline and a tensor parallel rank", function()
    assert.equal(8, #plan.programs)
    assert.equal(2, #plan.ranks)
    for i, program in ipairs(plan.programs) do
      assert.equal(plan.places[(i - 1) // 4 + 1].bytes, program.arena_bytes)
      assert.equal(#plan.programs[1].tensors > 0, #program.tensors > 0)
    end
    assert.equal(#plan.programs[1].instructions, #plan.programs[4].instructions)
  end)

  it("gives a rank its own samples alone", function()
    assert.equal(1, plan.micros)
    for _, made in ipairs(plan.programs[1].instructions) do
      if made.op == "load_micro" then assert.equal(8, made.attrs.samples) end
    end
  end)

  it("has the same weights on a rank as a plan of 8 ranks", function()
    local recipe = tl.load "recipes/quickstart.lua"
    local few = planner(recipe:with { layout = { tp = 4, pp = 2 } })
    local function weights(p)
      local sum = 0
      for _, buffer in ipairs(p.ranks[1].buffers) do
        sum = sum + (buffer.kind == "weights" and buffer.bytes or 0)
      end
      return sum
    end
    assert.equal(weights(few), weights(plan))
    assert.is_true(weights(plan) > 0)
  end)
end)

describe("a plan", function()
  it("is the same on every call: names, order, offsets", function()
    local function text(p)
      local lines = {}
      for _, program in ipairs(p.programs) do
        for i, made in ipairs(program.instructions) do
          lines[#lines + 1] = ("%d %s %s %s"):format(i, made.op, table.concat(made.inputs, ","),
            table.concat(made.outputs, ","))
        end
        for _, tensor in ipairs(program.tensors) do lines[#lines + 1] = tostring(tensor.offset) end
      end
      return table.concat(lines, "\n")
    end
    local options = { ["layout.tp"] = 2, ["layout.pp"] = 2, tied = true }
    assert.equal(text(models.plan(options)), text(models.plan(options)))
  end)

  it("stops after any stage, and no stage changes what another found", function()
    local recipe = models.recipe()
    for stage, field in pairs { check = "spec", expand = "graph", shard = "local",
      differentiate = "backward", pipeline = "ranks", place = "places", emit = "programs" } do
      assert.is_table(planner(recipe, stage)[field], stage)
    end
    assert.is_nil(planner(recipe, "shard").backward)
  end)
end)

describe("the key", function()
  local function key(options)
    local run <close> = models.start(options)
    return run.plan.key
  end
  local base = key {}

  it("is the same for all layouts and micro-batches", function()
    for _, options in ipairs {
      { ["layout.tp"] = 2 }, { ["layout.dp"] = 2, micro = 1 }, { ["layout.pp"] = 2 },
      { ["layout.tp"] = 4, ["layout.sequence_parallel"] = false }, { micro = 8 },
      { ["blocks.attention"] = { q = 128 } }, { log = { every = 3 } }, { ["train.steps"] = 4 },
    } do
      assert.equal(base, key(options))
    end
  end)

  it("changes with everything that can change a bit", function()
    local seen = { [base] = "as written" }
    for i, options in ipairs {
      { dtype = "bf16" }, { seed = 4 }, { leaves = { tp = 8, dp = 8 } },
      { leaves = { tp = 4, dp = 4 } },
      { window = 5 }, { hidden = 64 }, { dropout = 0.1 }, { tied = true }, { clip = 0.25 },
      { loss = { "cross_entropy", z = 0.1 } }, { weights = { { "*.o", init = 0.1 } } },
      { length = 12 }, { samples = 16 }, { ["train.lr"] = 0.01 }, { rope = { base = 100 } },
      { rope = { base = 10000, interleaved = true } }, { bias = true }, { vocab = 62 },
      { ["blocks.attention"] = { kv = 16 } }, { ["train.optimizer"] = { "adamw", beta2 = 0.99 } },
      { weights = { { "embed", frozen = true } } }, { layers = 3 }, { documents = true },
    } do
      local got = key(options)
      assert.is_nil(seen[got], ("change %d has the key of %s"):format(i, tostring(seen[got])))
      seen[got] = "change " .. i
    end
  end)
end)

describe("leaves and blocks are live:", function()
  local base = models.trace { length = 32 }
  for name, options in pairs {
    ["leaves.tp"] = { leaves = { tp = 8, dp = 8 } },
    ["leaves.dp"] = { leaves = { tp = 4, dp = 4 } },
    ["attention.kv"] = { ["blocks.attention"] = { kv = 16 } }, seed = { seed = 4 },
  } do
    it(name .. " changes bits", function()
      assert.not_equal(base, models.trace(models.with({ length = 32 }, options)))
    end)
  end

  it("policy batch takes the layout's own leaves, and promises the rest", function()
    local function bits(options)
      return models.trace(models.with({ policy = "batch", leaves = false }, options))
    end
    for _, tp in ipairs { 1, 2, 4 } do
      local own = bits { ["layout.tp"] = tp }
      assert.equal(own, bits { ["layout.tp"] = tp, micro = 1 })
      assert.equal(own, bits { ["layout.tp"] = tp, ["layout.pp"] = 2 })
      assert.equal(own, bits { ["layout.tp"] = tp, ["layout.sequence_parallel"] = false })
      local same = { policy = "layout", leaves = { tp = tp, dp = 1 } }
      assert.equal(own, models.trace(same))
    end
    assert.not_equal(bits { ["layout.tp"] = 1 }, bits { ["layout.tp"] = 2 })
    assert.not_equal(bits { ["layout.dp"] = 1 }, bits { ["layout.dp"] = 2 })
  end)
end)

describe("a layout that the policy cannot keep is refused, never run differently:", function()
  local refused = {
    { { ["layout.tp"] = 8, heads = 8 }, "tp 8 does not divide leaves.tp 4" },
    { { ["layout.tp"] = 3, heads = 6, kv_heads = 3 }, "tp 3 does not divide leaves.tp 4" },
    { { ["layout.dp"] = 16, samples = 16, micro = 1 }, "dp 16 does not divide leaves.dp 8" },
    { { ["layout.dp"] = 8, samples = 12, micro = 1 }, "dp 8 does not divide batch.samples 12" },
    { { micro = 3 }, "micro 3 does not divide 8" },
    { { ["layout.pp"] = 3 }, "but the model has 2 layers" },
    { { ["layout.tp"] = 4, length = 18 }, "length 18 is not a multiple of tp 4" },
    { { ["layout.zero"] = 1 }, "zero 1 is not available" },
    { { ["layout.cp"] = 2 }, "cp 2 is not available" },
    { { ["layout.tp"] = 4, heads = 6, kv_heads = 6, dim = 36 }, "tp 4 does not divide heads 6" },
  }
  for _, case in ipairs(refused) do
    it(case[2], function()
      local good, message = pcall(models.plan, case[1])
      assert.is_false(good)
      message = message.message or message
      assert.is_truthy(message:find(case[2], 1, true), message)
      assert.is_truthy(message:find "nothing was started")
    end)
  end
end)

describe("an evaluation", function()
  local function with_eval(options, samples)
    local o = models.with(models.defaults, options)
    return models.with(options, {
      eval = { data = models.data(o, 11), every = 1, samples = samples or 8 },
    })
  end

  it("changes no training bit, and has the same bits in every layout", function()
    local expected, scores = models.trace { dropout = 0.2 }, {}
    for _, layout in ipairs { {}, { ["layout.tp"] = 2, ["layout.dp"] = 2, micro = 2 },
      { ["layout.pp"] = 2, micro = 1 } } do
      local run <close> = models.start(with_eval(models.with({ dropout = 0.2 }, layout)),
        { poison = 255 })
      local line = {}
      for i = 1, 2 do
        scores[#scores + 1] = run:eval().loss_bits
        local s = run:step()
        line[i] = s.loss_bits .. " " .. s.grad_norm_bits
      end
      local weights, state = run:weights_hash(), run:optimizer_hash()
      line[3], line[4] = "weights " .. weights, "state " .. state
      assert.equal(expected, table.concat(line, " | "))
      scores[#scores + 1] = run:eval().loss_bits
      assert.equal(weights, run:weights_hash())
    end
    assert.same({ table.unpack(scores, 1, 3) }, { table.unpack(scores, 4, 6) })
    assert.same({ table.unpack(scores, 1, 3) }, { table.unpack(scores, 7, 9) })
    assert.not_equal(scores[1], scores[3])
  end)

  it("drops nothing out", function()
    local plain <close> = models.start(with_eval {})
    local dropping <close> = models.start(with_eval { dropout = 0.5 })
    assert.equal(plain:eval().loss_bits, dropping:eval().loss_bits)
    assert.not_equal(plain:step().loss_bits, dropping:step().loss_bits)
  end)

  it("leaves what was kept alone", function()
    local run <close> = models.start(with_eval {}, { keep = { "loss", "*.sum", "*.grad" } })
    run:step()
    local before = {}
    for _, name in ipairs(require("tidelock.run.kept").names(run)) do
      before[name] = run:kept(name):hash()
    end
    run:eval()
    for name, hash in pairs(before) do assert.equal(hash, run:kept(name):hash(), name) end
  end)
end)

describe("kept values", function()
  it("are the whole tensors, with the same bits in every layout", function()
    local function kept(options)
      local run <close> = models.start(options, { keep = { "*" }, poison = 255 })
      run:step()
      local list = {}
      for _, name in ipairs(require("tidelock.run.kept").names(run)) do
        local t = run:kept(name)
        list[name] = table.concat(t:shape(), " x ") .. " " .. t:hash()
      end
      return list
    end
    local base = { heads = 8, kv_heads = 2, tied = true, bias = true, dropout = 0.1 }
    local expected = kept(base)
    assert.matches("^128 x 32 ", expected["layers.0.attention.sum"])
    assert.matches("^61 x 32 ", expected["embed.grad"])
    assert.matches("^128 ", expected.loss)
    for _, layout in ipairs {
      { ["layout.tp"] = 2 }, { ["layout.tp"] = 4 }, { ["layout.pp"] = 2, micro = 1 },
      { ["layout.dp"] = 2 }, { ["layout.tp"] = 4, ["layout.sequence_parallel"] = false },
      { ["layout.tp"] = 2, ["layout.dp"] = 2, ["layout.pp"] = 2 },
    } do
      assert.same(expected, kept(models.with(base, layout)))
    end
  end)

  it("that nobody asked for are an error that names keep", function()
    local run <close> = models.start {}
    run:step()
    assert.matches("keep", select(2, pcall(run.kept, run, "loss")))
  end)
end)

describe("the bubble of a plan", function()
  local summary = require "tidelock.plan.summary"

  --- A user's schedule that does one micro-batch after the other: pp stages, one at work.
  local function one_by_one(_, _, micros)
    local order = {}
    for micro = 0, micros - 1 do
      order[#order + 1] = { phase = "forward", micro = micro }
      order[#order + 1] = { phase = "backward", micro = micro }
    end
    return order
  end

  it("is that of its own schedule", function()
    local m, p = 4, 2 -- a forward pass costs 1, a backward pass 2
    for _, case in ipairs {
      { {}, 0 }, { { ["layout.pp"] = 2 }, (p - 1) / (m + p - 1) },
      { { ["layout.pp"] = 2, ["layout.schedule"] = "gpipe" }, (p - 1) / (m + p - 1) },
      { { ["layout.pp"] = 2, ["layout.schedule"] = "zb-h1" }, 1 / (3 * m + 1) },
      { { ["layout.pp"] = 2, ["layout.schedule"] = "interleaved", ["layout.virtual_stages"] = 2 },
        0.5 / (m + 0.5) },
      { { ["layout.pp"] = 2, ["layout.schedule"] = one_by_one }, 1 / 2 },
    } do
      local plan = models.plan(models.with({ layers = 4 }, case[1]))
      assert.near(case[2], summary.of(plan).bubble, 1e-9, tostring(case[1]["layout.schedule"]))
    end
  end)
end)
