local rates = require "tidelock.language.rates"
local recipe = require "tidelock.language.recipe"
local written = require "support.written"

--- The message that loading gives, with the file's name replaced by F.
local function message_of(text, words)
  local path = written.file(text)
  local good, result = pcall(function()
    local loaded = recipe.load(path, words)
    for _, point in ipairs(loaded:points()) do require "tidelock.plan"(point, "check") end
  end)
  assert.is_false(good)
  return (tostring(result):gsub(path:gsub("%p", "%%%0"), "F"))
end

describe("a recipe", function()
  after_each(written.clean)

  it("has defaults for what it does not say", function()
    local spec = assert(written.spec(written.load(written.recipe())))
    assert.equal("f32", spec.dtype)
    assert.same({ name = "cross_entropy", smoothing = 0, z = 0 }, spec.loss)
    assert.same({ tp = 4, dp = 8, cp = 1 }, spec.policy.leaves)
    assert.equal("fma", spec.policy.arithmetic)
    assert.same({ split = 8192 }, spec.blocks.attention)
    assert.same({ name = "adamw", beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1 },
      spec.train.optimizer)
    assert.equal("tp-cp-dp-pp", spec.layout.order)
    assert.equal(4, #spec.model.layer_modules)
  end)

  it("takes the layout's own axes as leaves under batch and fast", function()
    for _, name in ipairs { "batch", "fast" } do
      local extra = ("layout = { tp = 2, dp = 2 }, policy = '%s',"):format(name)
      local spec = assert(written.spec(written.load(written.recipe { extra = extra })))
      assert.same({ tp = 2, dp = 2, cp = 1 }, spec.policy.leaves)
    end
  end)

  it("takes all samples of a rank as a micro-batch unless it says", function()
    local recipe_of = written.load(written.recipe(), { "batch={ samples = 8, length = 32 }" })
    assert.equal(4, written.spec(recipe_of:override { "layout.dp=2" }).batch.micro)
  end)

  it("does not change", function()
    local one = written.load(written.recipe())
    assert.has_error(function() one.layout = {} end)
    one:with { layout = { tp = 2 } }
    assert.is_nil(one.values.layout)
  end)

  it("sets whole sections with a bare key, one field with a dotted one", function()
    local base = written.load(written.recipe { extra = "layout = { tp = 2, dp = 2 }," })
    local other = written.spec(base:with { layout = { pp = 2 }, ["train.steps"] = 3 })
    assert.equal(1, other.layout.tp)
    assert.equal(2, other.layout.pp)
    assert.equal(3, other.train.steps)
    assert.equal(1e-3, other.train.lr.value)
  end)

  it("sweeps in written order, the last axis fastest, sections whole", function()
    local points = written.load(written.recipe { extra = "layout = { pp = 2 },", tail = [[

  :over("layout", { { dp = 2 }, { tp = 2, dp = 2 }, { pp = 2, schedule = "zb-h1" } })
  :over("batch.micro", { 1, 2 })]] }):points()
    local labels = {}
    for i, point in ipairs(points) do labels[i] = point.label end
    assert.same({
      "dp 2, micro 1", "dp 2, micro 2", "dp 2 tp 2, micro 1", "dp 2 tp 2, micro 2",
      "pp 2 zb-h1, micro 1", "pp 2 zb-h1, micro 2",
    }, labels)
    assert.equal(1, written.spec(points[1]).layout.pp)
  end)

  it("is one point of a sweep when it is run", function()
    local sweep = written.load(written.recipe { tail = ":over('batch.micro', { 1, 2 })" })
    local _, text = written.spec(sweep)
    assert.matches("a sweep of 2 points over batch.micro; choose one with %-%-point N", text)
  end)

  it("knows the line of every field, also behind return tl.recipe", function()
    local one = written.load(written.recipe { extra = "layout = {\n  tp = 2 }," })
    local file = one.file
    assert.equal(file .. ":11", one:site "model")
    assert.equal(file .. ":11", one:site "model.layers")
    assert.equal(file .. ":13", one:site "batch.micro")
    assert.equal(file .. ":16", one:site "layout.tp")
    assert.equal(file .. ":15", one:site "layout.dp")
    assert.equal(file .. ":10", one:site "policy.leaves.tp")
  end)
end)

describe("a recipe file", function()
  after_each(written.clean)

  it("is text that gives a recipe", function()
    assert.matches("^F: a recipe ends with return tl.recipe", message_of "return 3")
    assert.matches("^F:2: unexpected symbol near '%*'", message_of "local x = 1\nlocal y = * 2")
    assert.matches("this is bytecode", message_of(string.dump(function() end)))
    local good, text = pcall(recipe.load, "no/such/recipe.lua")
    assert.is_false(good)
    assert.matches("^no/such/recipe.lua: .*No such file", tostring(text))
  end)

  it("may begin with a byte order mark, and has an end", function()
    assert.matches("^F: a recipe ends with .* this file gives 3", message_of "\xEF\xBB\xBFreturn 3")
    local _, text = pcall(recipe.load, "/dev/zero")
    assert.matches("^/dev/zero: more than 16 MiB, which no recipe has", tostring(text))
  end)

  it("that raises what is no text is told so, without an address", function()
    assert.matches("^F: raised an error that is no text: a table\n", message_of "error {}")
    assert.matches("^F: raised an error that is no text: nil\n", message_of "error()")
    local function with(layer, lr)
      return message_of(([[local tl = require "tidelock"
        return tl.recipe {
          model = tl.nn.decoder { vocab = 9, dim = 8, layers = 1, layer = function() %s end },
          data = tl.data.given { { tokens = { 1, 2 } } }, batch = { samples = 1, length = 1 },
          train = { steps = 1, lr = %s },
        }]]):format(layer, lr))
    end
    local text = with("error { message = 3 }", "function() error {} end")
    assert.matches("layer%(1, 1%): raised an error that is no text: a table\n", text)
    assert.matches("train.lr: raised an error that is no text: a table\n", text)
  end)

  it("is its own fields, not what a metatable gives for others", function()
    local text = message_of [[local tl = require "tidelock"
      return tl.recipe(setmetatable({}, { __index = function(t) return t end }))]]
    for _, name in ipairs { "model", "data", "batch", "train" } do
      assert.matches(": " .. name .. ": missing: ", text)
    end
  end)

  it("that is a script is told how to start it", function()
    assert.matches("^F:1: tl.load: .*/README.md is not there: .* is started by ./tl lua FILE",
      message_of "require('tidelock').load('README.md'):start {}")
  end)

  it("cannot change the texts of the planner", function()
    local format = string.format
    message_of "string.format = nil; getmetatable('').__index.format = nil"
    assert.equal(format, string.format)
    assert.matches("this file gives 3", message_of "assert(not string.x); return 3")
  end)

  it("requires what stands beside it first, with the same limits", function()
    local name = written.file "return { width = 128, random = pcall(function() math.random() end) }"
    local module = name:match "([^/]*)%.lua$"
    local spec = written.spec(written.load(written.recipe {
      head = ("local wide = require '%s'"):format(module), dim = "wide.random and 1 or wide.width",
    }))
    assert.equal(128, spec.model.dim)
    local text = message_of(written.recipe { head = "require 'no_such_part'" })
    assert.matches("^F:3: module 'no_such_part' not found", text)
  end)

  it("cannot catch the end of its time", function()
    local text = message_of "while true do pcall(function() while true do end end) end"
    assert.matches("^F:1: stopped after 2 million lines", text)
  end)

  it("walks pairs in order and has its own functions of numbers", function()
    local spec = written.spec(written.load(written.recipe { head = [[
local words, t = {}, { b = 1, a = 2, [3] = 3, [1] = 4, c = 5 }
for key in pairs(t) do words[#words + 1] = tostring(key) end
assert(table.concat(words, " ") == "1 3 a b c")
local numbers = require "tidelock.language.numbers"
assert(math.cos(1) == numbers.cos(1) and math.exp(1) == numbers.exp(1))
]] }))
    assert.equal(64, spec.model.dim)
  end)
end)

describe("a learning rate", function()
  after_each(written.clean)

  local function rate_of(lr, steps, more)
    local words = { "train={ lr = " .. lr .. ", steps = " .. steps .. (more or "") .. " }" }
    local spec = assert(written.spec(written.load(written.recipe(), words)))
    return function(step) return rates.at(spec.train.lr, step) end
  end

  local function near(expected, actual) assert.near(expected, actual, 1e-6 * expected) end

  it("is constant, with a warm-up when the recipe says so", function()
    local at = rate_of("3e-3", 200, ", warmup = 20")
    near(1.5e-4, at(1))
    near(3e-3, at(20))
    near(3e-3, at(200))
    near(4e-4, rate_of("{ 'constant', 4e-4 }", 6)(1))
  end)

  it("falls along half a cosine to the floor at the last step", function()
    local at = rate_of("{ 'cosine', peak = 3e-3, warmup = 20, floor = 3e-4 }", 200)
    near(1.5e-4, at(1))
    near(3e-3, at(20))
    near(1.65e-3, at(110))
    near(3e-4, at(200))
    near(3e-4, at(500))
  end)

  it("stays and falls along a line at the end", function()
    local lr = "{ 'warmup_stable_decay', peak = 4e-4, warmup = 2000, decay = 4000 }"
    local short, long = rate_of(lr, 38146), rate_of(lr, 50000)
    near(4e-4, short(34146))
    near(4e-4 * 3999 / 4000, short(34147))
    near(4e-4, long(34147))
    assert.equal(0, short(38146))
  end)

  it("does not clip a warm-up to the run", function()
    near(1e-4, rate_of("{ 'cosine', peak = 1e-3, warmup = 100 }", 10)(10))
  end)

  it("may be a function of the step, called once when the recipe is planned", function()
    local text = written.recipe():gsub("lr = 1e%-3", "lr = function(step) return step / 8 end")
    local spec = assert(written.spec(written.load(text)))
    assert.equal(0.125, rates.at(spec.train.lr, 1))
    assert.equal(1.25, rates.at(spec.train.lr, 10))
  end)

  it("is rounded to f32", function()
    local at = rate_of("0.1", 1)
    assert.equal(string.unpack("<f", string.pack("<f", 0.1)), at(1))
  end)
end)
