-- The recipes with experts, made small: they run, and their bits agree.
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local models = require "support.models"
local planner = require "tidelock.plan"
local recipes = require "tidelock.language.recipe"
local tl = require "tidelock"

--- A point of a recipe on tokens that are written out.
local function small(path, overrides)
  local data = tl.data.given { { tokens = models.tokens(1, 32, 100) },
    { tokens = models.tokens(2, 32, 100) } }
  local recipe = recipes.load(path, overrides)
  return recipe:with { data = data, ["batch.samples"] = 8, ["batch.micro"] = 1,
    ["batch.length"] = 32, ["train.steps"] = 2 }
end

local function bits(recipe)
  local run <close> = driver.start(recipe)
  local words = {}
  for i = 1, 2 do words[i] = run:step().loss_bits end
  words[3] = run:weights_hash()
  return table.concat(words, " ")
end

describe("recipes/moe_1b.lua, made small,", function()
  local tiny = { "layers=2", "dim=64", "hidden=16", "dense=48" }

  local function with(...)
    local list = { table.unpack(tiny) }
    for _, word in ipairs { ... } do list[#list + 1] = word end
    return small("recipes/moe_1b.lua", list)
  end

  it("runs on eight ranks as on one", function()
    local head = bits(with("layout.dp=1", "layout.ep=1", "blocks.moe.waves=1"))
    assert.equal(head, bits(with()))
    assert.equal(head, bits(with("layout.dp=2", "layout.ep=2", "blocks.moe.waves=8")))
  end)

  it("moves the bias of each expert against its load", function()
    local run <close> = driver.start(with("layout.dp=2", "layout.ep=2"))
    local load, total = run:step().experts[1].load, 0
    for _, n in ipairs(load) do total = total + n end
    assert.equal(6 * 8 * 32, total)
    for e, value in ipairs(run:weight("layers.1.moe.bias"):flat()) do
      local rest = total - #load * load[e]
      local expected = rest > 0 and 1e-3 or rest < 0 and -1e-3 or 0
      assert.equal(core.f32(expected), value)
    end
  end)
end)

describe("recipes/moe_128.lua", function()
  it("is planned for eight ranks and 1 to 64 samples", function()
    for _, samples in ipairs { 1, 64 } do
      local recipe = recipes.load("recipes/moe_128.lua", { "samples=" .. samples, "dim=64",
        "hidden=16" })
      local plan = planner(recipe)
      assert.equal(8, #plan.programs)
      assert.equal(math.min(8, samples), plan.spec.batch.micro)
    end
  end)
end)
