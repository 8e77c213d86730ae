-- Two runs side by side: faults planted in one of them are found and named, to the element.
local compare = require "tidelock.trace.compare"
local core = require "tidelock.core"
local diff = require "tidelock.trace.diff"
local divergence = require "tidelock.trace.divergence"
local logical = require "tidelock.plan.logical"
local models = require "support.models"
local new_folder = require "support.folder"
local planted = require "support.planted"
local seal = require "tidelock.run.seal"
local support = require "support"
local traces = require "tidelock.trace.traces"

local one, grid = {}, { ["layout.tp"] = 2, ["layout.dp"] = 2 }
local dp = { ["layout.dp"] = 2 }

--- Text as a pattern that matches itself.
local function plain(text) return (text:gsub("%p", "%%%0")) end

describe("a planted fault", function()
  --- Each fault is named whether the other run has its layout or another one.
  local function named(fault, layout, expected)
    for _, left in ipairs { one, layout } do
      local text, index, site = planted.diff(left, layout, fault)
      local first = ("first    step %d, %s, instruction %d %s%s (%s), rank %d of b\n"):format(
        fault.step or 0, fault.phase, index, fault.op, fault.over or "", site, fault.rank)
      assert.matches(plain(first), text)
      assert.matches("The instruction of b is wrong", text)
      for _, pattern in ipairs(expected) do assert.matches(pattern, text) end
    end
  end

  it("of one ulp in one element of one rank's kernel", function()
    named({ op = "swiglu_grad", micro = 1, rank = 1, kind = "ulp", step = 2, element = 38,
      phase = "backward" }, grid, {
      "layers%.1%.swiglu%.linear%.grad from layers%.1%.swiglu %(f32%) %[33, 37%]: "
        .. "%-1%.5280175e%-05 %(b7802ded%) | %-1%.5280177e%-05 %(b7802dee%), 1 of 6,144 elements",
      "run again on the host: %-1%.5280175e%-05 %(b7802ded%), "
        .. "recorded: %-1%.5280177e%-05 %(b7802dee%)",
    })
  end)

  it("of one swapped reduction", function()
    local text, index = planted.diff(dp, dp,
      { op = "fold", rank = 1, kind = "swap", step = 1, nth = 2 })
    assert.matches(("step 1, finish, instruction %d fold .-, rank 1 of b"):format(index), text)
    assert.matches("inputs equal; run again on the host", text)
    assert.matches("sums     leaf 0 .*leaf 1 .*leaf 2 .*leaf 3 ", text)
    named({ op = "linear_grad_weight", nth = 3, rank = 1, kind = "swap", step = 2,
      phase = "backward" }, grid, { "sums     leaf 0 .*leaf 1 " })
  end)

  it("of one wrong rank in a collective", function()
    named({ op = "reduce_scatter", nth = 3, rank = 1, kind = "ulp", step = 1, phase = "forward",
      over = " over tp" }, grid, { "sums     rank 0 .*rank 1 " })
  end)

  it("of one stale weight", function()
    named({ op = "adamw", nth = 4, rank = 3, kind = "stale", step = 1, phase = "update" }, grid,
      { "layers%.0%.attention%.k %[8, 0%]: .-, 256 of 512 elements" })
  end)

  it("of one wrong seed", function()
    local tp = { ["layout.tp"] = 2 } -- replicas are compared before the first step already
    named({ op = "init", section = "init", nth = 5, rank = 1, kind = "seed", phase = "init" }, tp,
      { "layers%.0%.attention%.v %[8, 0%]: .-, 256 of 512 elements" })
  end)

  it("in the first run is blamed on the first run", function()
    local index = planted.instruction(grid, { op = "attention", rank = 2 })
    local faults = { { rank = 2, instruction = index, kind = "ulp", step = 1, element = 5 } }
    local a <close> = traces.open(planted.trace(grid, { faults = faults }, 1))
    local b <close> = traces.open(planted.trace(grid, nil, 1))
    local text = table.concat(diff.traces(a, b), "\n")
    assert.matches("attention .-, rank 2 of a\n", text)
    assert.matches("The instruction of a is wrong", text)
  end)

  it("is seen by hashes alone, and the way to see more is told", function()
    local text = planted.diff(one, grid, { op = "adamw", nth = 4, rank = 3, kind = "stale",
      step = 1 }, { values = false })
    assert.matches("first    step 1, update, instruction %d+ adamw", text)
    assert.matches("layers%.0%.attention%.k\n", text)
    assert.matches("run both again with %-%-trace DIR %-%-values", text)
  end)
end)

describe("two runs without a fault", function()
  it("have equal logical tensors in every layout, bf16 too", function()
    local other = { micro = 1, ["layout.tp"] = 2, ["layout.dp"] = 2, ["layout.pp"] = 2 }
    for _, options in ipairs { { dropout = 0.2, kv_heads = 1, bias = true }, { dtype = "bf16" },
      { layer_norm = true, gelu = true, positions = 19, tied = true, rope = false } } do
      local a <close> = traces.open(planted.trace(options, { recorder = { values = false } }, 1))
      local b <close> = traces.open(planted.trace(models.with(options, other),
        { recorder = { values = false } }, 1))
      assert.is_nil(divergence.find(a, b))
      local groups, keys = compare.groups(a, 1)
      local others, missing = compare.groups(b, 1), {}
      for _, key in ipairs(keys) do
        if not others[key] then missing[#missing + 1] = key end
      end
      assert.same({}, missing)
      assert.is_true(#keys > 100 and groups["head"] ~= nil or groups["embed"] ~= nil)
    end
  end)

  it("are equal in what was compared, and what was not is counted", function()
    local usual = logical.sampled_above
    local function told(left, right, sampled_above, full)
      local a <close> = traces.open(planted.trace(left, { recorder = { values = false } }, 1))
      logical.sampled_above = sampled_above
      local b <close> = traces.open(planted.trace(right,
        { recorder = { full = full, values = false } }, 1))
      local lines, equal = diff.traces(a, b)
      logical.sampled_above = usual
      return table.concat(lines, "\n"):match "traces   (.*)", equal
    end
    local text, equal = told(one, one, usual, true)
    assert.matches("^steps 0 to 1 %(0: initial values%): all [%d,]+ outputs equal$", text)
    assert.is_true(equal)
    text, equal = told(one, one, 64, false)
    assert.matches("all [%d,]+ logical tensors equal\n +by a sample, of those above 64 elements\n",
      text)
    assert.matches("not compared: [%d,]+ tensors of another shape, or hashed whole in one", text)
    assert.is_true(equal)
    text = told(one, grid, usual, true)
    assert.matches("all [%d,]+ logical tensors equal\n +not compared: [%d,]+ outputs of one", text)
    text, equal = told(one, one, 0, false)
    assert.equal("no tensor in both that was hashed alike: nothing was compared", text)
    assert.is_false(equal)
  end)

  it("hash weights to what a run calls its weights' hash", function()
    local dir = new_folder().root
    local recorder = require("tidelock.run.recorder").new { dir = dir, full = true }
    local run <close> = models.start(grid, { recorder = recorder })
    run:step()
    local t <close> = traces.open(dir)
    local groups, sum = compare.groups(t, 1), 0
    for _, param in ipairs(run.plan["local"].params) do
      sum = sum + (compare.sum_of(groups[param.name]))
    end
    assert.equal(run:weights_hash(), ("%016x"):format(sum))
  end)

  it("that start from other numbers are told which", function()
    local a <close> = traces.open(planted.trace(one, nil, 1))
    local b <close> = traces.open(planted.trace({ ["train.lr"] = 0.03 }, nil, 1))
    local text = table.concat(diff.traces(a, b), "\n")
    assert.matches("recipe   keys .- | .-; what can change bits:\n +train%.lr%.value: ", text)
    assert.matches("first    step 1, update, instruction %d+ adamw", text)
    assert.matches("its numbers differ: learning rate 0%.0199999996 | 0%.0299999993", text)
  end)

  it("of other shapes are told these, not numbers that the instruction never reads", function()
    local a <close> = traces.open(planted.trace({ ["train.lr"] = 0.03 }, nil, 1))
    local b <close> = traces.open(planted.trace({ heads = 2 }, nil, 1))
    local text = table.concat(diff.traces(a, b), "\n")
    assert.matches("first    step 1, forward, instruction %d+ rope ", text)
    assert.matches("its numbers differ: shape of input 1 %(32, 4, 8%) | %(32, 2, 16%)", text)
    assert.is_nil(text:find("learning rate", 1, true))
  end)

  it("of 1,000 instructions are compared within a second", function()
    local options = { layers = 5, micro = 1 }
    local a <close> = traces.open(planted.trace(options, { recorder = { values = false } }))
    local b <close> = traces.open(planted.trace(models.with(options, { ["layout.pp"] = 2 }),
      { recorder = { values = false } }))
    local first, last = a:section(0, 1)
    assert.is_true(last - first + 1 >= 1000)
    local clock = os.clock()
    assert.is_true(select(2, diff.traces(a, b)))
    assert.is_true(os.clock() - clock < 1)
  end)
end)

describe("./tl diff", function()
  local recipe_text = [[
local tl = require "tidelock"
local nn = tl.nn
local function layer()
  return { nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 24 } } }
end
return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 16, layers = 1, layer = layer },
  data = tl.data.text { "%s" },
  batch = { samples = 8, micro = 4, length = 16 },
  train = { steps = 4, lr = 0.01, save = { every = 2 } },
}
]]

  --- A folder, a recipe in it, and what runs it: run(words, name) returns the saved folder.
  local function setting()
    local folder = new_folder()
    local words = folder:write("text.txt", ("the quick brown fox jumps over it; "):rep(20))
    local recipe = folder:write("small.lua", recipe_text:format(words))
    return folder, recipe, function(more, name)
      return support.run(("run %s --quiet --runs %s %s"):format(recipe, folder:path(name), more))
        :match "saved +(%S+): "
    end
  end

  it("finds the first step and field of two untraced runs, then the instruction", function()
    local folder, recipe = setting()
    local run = ("run %s --quiet --runs %s "):format(recipe, folder:path "runs")
    local left = support.run(run):match "saved +(%S+): "
    local right = support.run(run .. "train.clip=0.1"):match "saved +(%S+): "
    local report, status = support.run(("diff %s %s"):format(left, right))
    assert.equal(1, status)
    assert.matches("train%.clip: .- | 0%.1\n", report)
    assert.matches("\nlosses   step 1 equal; step 2: [^\n]+\nboth are run again to step 2", report)
    assert.matches("first    step 1, norm, instruction %d+ grad_norm ", report)
    assert.matches("its numbers differ: clip ", report)
    report, status = support.run(("diff %s %s"):format(left, left))
    assert.equal(0, status)
    assert.matches("weights  %x+ in both", report)
    local short = support.run(("run %s --quiet --runs %s --stop-at 3"):format(recipe,
      folder:path "short")):match "saved +(%S+): "
    report, status = support.run(("diff %s %s"):format(left, short))
    assert.equal(0, status)
    assert.matches("losses   steps 1 to 3 equal\nweights  equal after step 2, the optimizer's "
      .. "state too in 1 checkpoint\n +not compared: step 4 of a alone; step 3 of b alone\n$",
      report)
    folder:remove()
  end)

  it("compares what runs of unequal length kept at the same steps", function()
    local folder, _, run = setting()
    local left, short = run("", "long"), run("--stop-at 2", "short")
    local function report() return support.run(("diff %s %s"):format(left, short)) end
    local function state_of(dir, change)
      local path = dir .. "/checkpoints/step-00000002/state.json"
      local state = core.json.decode(core.files.read_all(path))
      state.xxh64 = nil
      change(state)
      core.files.write_atomic(path, seal.encode(state) .. "\n")
    end
    local text, status = report()
    assert.equal(0, status, text)
    assert.matches("weights  equal after step 2, the optimizer's state too in 1 checkpoint\n"
      .. " +not compared: step 4 of a alone\n$", text)
    state_of(short, function(state) state.optimizer_hash = ("0"):rep(16) end)
    text, status = report()
    assert.equal(1, status)
    assert.matches("weights  step 2: weights equal, optimizer %x+ | 0+\nboth are run again to step "
      .. "2", text)
    for name in pairs { ["state.json"] = 1, ["weights.safetensors"] = 1,
      ["optimizer.safetensors"] = 1 } do
      os.remove(short .. "/checkpoints/step-00000002/" .. name)
    end
    text, status = report() -- the end of the short run is step 2 of the other
    assert.equal(0, status)
    assert.matches("weights  equal after step 2\n +not compared: step 4 of a alone\n$", text)
    state_of(left, function(state) state.weights_hash = ("0"):rep(16) end)
    text, status = report()
    assert.equal(1, status)
    assert.matches("weights  step 2: weights 0+ | %x+\n", text)
    folder:remove()
  end)

  it("says that nothing was kept by both, and where checkpoints are one folder", function()
    local folder, _, run = setting()
    local left, short = run("train.save=nil", "long"), run("train.save=nil --stop-at 3", "short")
    local text, status = support.run(("diff %s %s"):format(left, short))
    assert.equal(0, status)
    assert.matches("weights  no step that both have kept\n +not compared: step 4 of a alone; step "
      .. "3 of b alone\n$", text)
    local dir = "train.save.dir=" .. folder:path "shared"
    left, short = run(dir, "long2"), run(dir .. " --stop-at 3", "short2")
    text, status = support.run(("diff %s %s"):format(left, short))
    assert.equal(0, status)
    assert.matches("weights  equal after steps 2, 3.-\n +not compared: step 4 of a alone\n +both "
      .. "have their checkpoints in [^\n]+: those are compared with themselves\n$", text)
    folder:remove()
  end)

  it("compares nothing that a damaged trace hides", function()
    local folder, recipe = setting()
    local trace = folder:path "trace"
    support.run(("run %s --quiet --runs %s --stop-at 2 --trace %s"):format(recipe,
      folder:path "runs", trace))
    local steps = assert(core.files.read_all(trace .. "/steps.jsonl"))
    local function report_of(text)
      folder:write("trace/steps.jsonl", text)
      return support.run(("diff %s %s"):format(trace, trace))
    end
    local report, status = report_of((steps:gsub("{", "[", 1)))
    assert.equal(2, status, report)
    assert.matches("steps%.jsonl: line 1 is damaged", report)
    report, status = report_of(steps .. '{"step"') -- a run that was killed while it wrote
    assert.equal(0, status, report)
    report, status = report_of ""
    assert.equal(1, status, report)
    assert.matches("traces +no step in both: nothing was compared", report)
    folder:write("trace/trace.json", '{"version":3}')
    assert.matches("trace%.json is damaged: it does not end with its checksum", (report_of(steps)))
    folder:write("trace/trace.json", '{"version":1}')
    assert.matches("a trace of version 1; this program reads version 2", (report_of(steps)))
    folder:remove()
  end)

  it("finds one bit that was flipped in any file of a trace, and names the file", function()
    local folder, recipe = setting()
    local trace, other = folder:path "trace", folder:path "other"
    for _, dir in ipairs { trace, other } do
      support.run(("run %s --quiet --runs %s --stop-at 1 --trace %s --values%s"):format(recipe,
        folder:path "runs", dir, dir == other and " train.lr=0.02" or ""))
    end
    for _, name in ipairs { "trace.json", "steps.jsonl", "rank-0000.bin", "values-1-0000.bin" } do
      local whole = assert(core.files.read_all(trace .. "/" .. name))
      for i = 1, 3 do
        local at = 1 + i * 2654435761 % #whole
        local flipped = string.char(whole:byte(at) ~ (1 << i % 8))
        folder:write("trace/" .. name, whole:sub(1, at - 1), flipped, whole:sub(at + 1))
        local report, status = support.run(("diff %s %s"):format(trace, other))
        assert.equal(2, status, ("byte %d of %s: %s"):format(at, name, report))
        assert.matches(plain("trace/" .. name), report)
        assert.matches("damaged", report)
      end
      folder:write("trace/" .. name, whole)
    end
    local report, status = support.run(("diff %s %s"):format(trace, other))
    assert.equal(1, status, report)
    assert.matches("its numbers differ: learning rate", report)
    folder:remove()
  end)

  it("says what is no trace and no run", function()
    local text, status = support.run "diff /usr /usr"
    assert.equal(2, status)
    assert.matches("/usr is neither a trace nor a finished run", text)
    text, status = support.run "diff /no/such /usr"
    assert.equal(2, status)
    assert.matches("there is no folder /no/such; %-%-trace DIR of ./tl run makes one", text)
  end)
end)
