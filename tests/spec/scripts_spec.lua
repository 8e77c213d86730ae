-- What scripts can do with a recipe: start it, look at it; and where a warm start comes from.
local core = require "tidelock.core"
local new_folder = require "support.folder"
local tl = require "tidelock"

local text = [[
local tl = require "tidelock"
local nn = tl.nn
return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 32, layers = 1, layer = function()
    return { nn.residual { nn.rms_norm {}, nn.attention { heads = 2, %s } } }
  end },
  weights = { %s },
  data = tl.data.text { "LICENSE" },
  batch = { samples = 4, length = 32 },
  train = { steps = 4, lr = 1e-3, %s },
  log = { watch = { "layers.*.attention.out:rms" } },
}]]

describe("a script", function()
  local files, folder, file

  before_each(function()
    files = new_folder()
    folder = files.root
    file = files:path "small.lua"
  end)
  after_each(function() files:remove() end)

  local function load(rope, weights, train)
    core.files.write_atomic(file, text:format(rope or "", weights or "", train or ""))
    return tl.load(file)
  end

  it("starts a recipe, steps it and reads weights and kept values", function()
    local recipe = load()
    local run <close> = recipe:start { keep = { "layers.*.out" } }
    local step = run:step()
    local kept = run:kept "layers.0.attention.out"
    assert.same({ 4 * 32, 32 }, kept:shape())
    assert.equal(kept:rms(), step.watch["layers.0.attention.out:rms"])
    assert.same({ 32, 32 }, run:weight("layers.0.attention.q"):shape())
    assert.equal(1, run:weight("norm.gain"):max() // 1)
  end)

  it("cannot be a recipe: what loads runs nothing", function()
    core.files.write_atomic(file, text:format("", "", "") .. ":start()")
    local ok, problem = pcall(function() return tl.load(file) end)
    assert.is_false(ok)
    assert.matches("small.lua:%d+: start: a recipe only describes; a script starts it",
      tostring(problem))
  end)

  it("hears what is wrong with a warm start, at the line that asks for it", function()
    local function problem(from)
      local _, message = pcall(function()
        return load("", ('{ "embed", from = %q }'):format(from)):start()
      end)
      return message
    end
    core.files.mkdirs(folder .. "/other")
    assert.matches("small.lua:7: weights%[1%].from: there is no folder .*/nothing: run the " ..
      "recipe that makes it first; .* has other$", problem(folder .. "/nothing"))
    assert.matches("/other holds no weights.safetensors: that run did not come to its end",
      problem(folder .. "/other"))
    core.weights.write(folder .. "/other/weights.safetensors",
      { { name = "embedding", tensor = core.tensor("f32", { 256, 32 }) } }, {})
    assert.matches("other has no weight embed; nearest: embedding", problem(folder .. "/other"))
    core.weights.write(folder .. "/other/weights.safetensors",
      { { name = "embed", tensor = core.tensor("f32", { 128, 64 }) } }, {})
    assert.matches("embed is %(128, 64%) in .* and %(256, 32%) here", problem(folder .. "/other"))
  end)

  it("hears at once that a pattern matches nothing, with the nearest names", function()
    local _, problem = pcall(function() load():start { keep = { "layers.0.atention.out" } } end)
    assert.matches("scripts_spec.lua:%d+: start.keep: \"layers.0.atention.out\" matches no " ..
      "value and no gradient; nearest: layers.0.attention.out, ", problem)
    _, problem = pcall(function()
      load():with { ["log.watch"] = { "nothing:mean" } }:start()
    end)
    assert.matches("log.watch%[1%]: \"nothing\" matches no value", problem)
  end)

  it("hears at its own line of options that are not there, and what each takes", function()
    local recipe = load()
    local _, problem = pcall(function() return recipe:start { kep = {}, resume = 3 } end)
    assert.equal("tests/spec/scripts_spec.lua:86: start: no option kep; did you mean keep? it "
      .. "takes check, forks, keep, poison, resume, threads; resume: expected a string, got a "
      .. "number", problem)
    local run <close> = recipe:start { threads = 1 }
    _, problem = pcall(function() run:save(file .. "/below") end)
    assert.matches("^tests/spec/scripts_spec.lua:%d+: save: .*/small.lua: cannot make it", problem)
  end)

  it("starts from the weights of an earlier run", function()
    local known = core.tensor("f32", { 256, 32 }):fill(0.25)
    core.files.mkdirs(folder .. "/other")
    core.weights.write(folder .. "/other/weights.safetensors",
      { { name = "embed", tensor = known } }, {})
    local recipe = load("", ('{ "embed", from = "%s/other" }'):format(folder))
    local run <close> = recipe:start()
    assert.bits(known, run:weight "embed")
  end)

  it("sees every option take effect, or hears that it has none", function()
    local function attributes(rope)
      local plan = require "tidelock.plan"(load(rope))
      for _, made in ipairs(plan.programs[1].instructions) do
        if made.op == "rope_table" then
          return made.attrs, plan.programs[1].tensors[made.outputs[1]].shape
        end
      end
    end
    local attrs, shape = attributes 'rope = { dim = 8, scaling = { "llama3", factor = 2 } }'
    assert.equal(1, attrs.kind)
    assert.equal(2, attrs.factor)
    assert.same({ 32, 4, 2 }, shape)
    assert.equal(0, attributes("rope = true").kind)
    local yarn = attributes 'rope = { scaling = { "yarn", factor = 4, original = 16, mscale = 1 } }'
    assert.same({ 2, 16, 1, 32 }, { yarn.kind, yarn.original, yarn.low, yarn.high })
    assert.near(0.1 * math.log(4) + 1, yarn.magnitude, 1e-15)
    local _, problem = pcall(function()
      return load("", '{ "head", optimizer = { "adamw", beta1 = 0.5 } }'):start()
    end)
    assert.matches("weights%[1%].optimizer: all weights share train.optimizer", problem)
    for init, expected in pairs {
      ['{ "normal", 0.5, mean = 2 }'] = { "normal", 2, 0.5 }, ['"normal"'] = { "normal", 0, 0.02 },
      ['{ "normal", std = 0.5 }'] = { "normal", 0, 0.5 },
      ['{ "uniform", range = 3 }'] = { "uniform", -3, 3 },
      ['{ "constant", 4 }'] = { "constant", 4, 0 },
    } do
      local fields = require "tidelock.plan"(load("", ('{ "head", init = %s }'):format(init)),
        "expand").fields.head.init
      assert.same(expected, { fields.kind, fields.first, fields.second })
    end
  end)

  it("saves and goes on", function()
    local recipe = load ""
    local saved, hash
    do
      local run <close> = recipe:start()
      run:step()
      saved = run:save(folder .. "/saved")
      run:step()
      hash = run:weights_hash()
    end
    local again <close> = recipe:start { resume = saved }
    assert.equal(2, again:step().step)
    assert.equal(hash, again:weights_hash())
  end)
end)

describe("a number of a tensor", function()
  it("is the sum, mean or largest of its elements, with f32 bits of its own", function()
    local t = core.tensor("f32", { 2, 2 }, { 3, 4, 0, -1 })
    assert.equal(core.f32(math.sqrt(26)), t:norm())
    assert.equal(core.f32(math.sqrt(6.5)), t:rms())
    assert.equal(1.5, t:mean())
    assert.equal(4, t:max())
    assert.equal(2, core.tensor("bf16", { 3 }, { 1, 2, 3 }):mean())
    assert.has_error(function() core.tensor("i32", { 2 }):norm() end)
    assert.has_error(function() core.tensor("f32", { 0 }):mean() end)
  end)
end)
