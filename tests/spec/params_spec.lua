local written = require "support.written"

describe("tl.params", function()
  after_each(written.clean)

  local head = "local p = tl.params { depth = 4, width = 64, rate = 1.0, name = 'a' }"

  local function load(words, tail)
    return written.load(written.recipe {
      head = head, dim = "p.width", layers = "p.depth", tail = tail,
      extra = "weights = { { '*', lr_scale = p.rate } }, policy = { 'layout', seed = #p.name },",
    }, words)
  end

  it("gives the usual values, or those of the command line", function()
    assert.equal(4, written.spec(load()).model.layers)
    local spec = assert(written.spec(load { "depth=2", "width=128", "rate=2", "name=abc" }))
    assert.equal(2, spec.model.layers)
    assert.equal(2, #spec.model.layer_modules)
    assert.equal(128, spec.model.dim)
    assert.equal(2.0, spec.weights[1].lr_scale)
    assert.equal(3, spec.policy.seed)
  end)

  it("keeps the type of the usual value", function()
    local _, text = written.spec(load { "depth=2.5", "name=3" })
    assert.equal([[
command line: depth: expected an integer, got 2.5
command line: name: expected a string, got 3
2 errors; nothing was started]], text)
  end)

  it("is an axis of a sweep, for which the file is loaded again", function()
    local points = load({ "rate=3" },
      ":over('depth', { 2, 3 }):over('width', { 64, 128 })"):points()
    local found = {}
    for i, point in ipairs(points) do
      local spec = assert(written.spec(point))
      found[i] = ("%s: %d %d %g"):format(point.label, spec.model.layers, spec.model.dim,
        spec.weights[1].lr_scale)
    end
    assert.same({
      "depth 2, width 64: 2 64 3", "depth 2, width 128: 2 128 3",
      "depth 3, width 64: 3 64 3", "depth 3, width 128: 3 128 3",
    }, found)
  end)

  it("mixes with sections, and with a recipe that another file loads", function()
    local inner = written.file(written.recipe { head = head, layers = "p.depth" })
    local outer = written.load(([[
local tl = require "tidelock"
return tl.load "%s":over("depth", { 1, 2 }):over("batch.micro", { 4, 8 })
]]):format(inner))
    local found = {}
    for i, point in ipairs(outer:points()) do
      local spec = assert(written.spec(point))
      found[i] = spec.model.layers .. " " .. spec.batch.micro
    end
    assert.same({ "1 4", "1 8", "2 4", "2 8" }, found)
  end)

  describe("in :with", function()
    local function spec_of(text, words)
      return assert(written.spec(written.load(text, words)))
    end

    local function outer(tail)
      local inner = written.file(written.recipe {
        head = head, dim = "p.width", layers = "p.depth",
      })
      return ('return require "tidelock".load %q%s'):format(inner, tail)
    end

    it("loads the file again, and keeps what was set before and is set behind", function()
      local spec = spec_of(outer [[
:with { ["train.steps"] = 7, depth = 1 }:with { width = 32, ["batch.micro"] = 8 }]])
      assert.same({ 7, 1, 32, 8 },
        { spec.train.steps, spec.model.layers, spec.model.dim, spec.batch.micro })
    end)

    it("gives way to the command line and to an axis", function()
      local text = outer ":with { depth = 1, width = 32 }:over('depth', { 2, 3 })"
      local loaded = written.load(text, { "width=128" })
      local found = {}
      for i, point in ipairs(loaded:points()) do
        local spec = assert(written.spec(point))
        found[i] = spec.model.layers .. " " .. spec.model.dim
      end
      assert.same({ "2 128", "3 128" }, found)
    end)

    it("is there in a script, and so it is in :override", function()
      local path = written.file(written.recipe { head = head, dim = "p.width", layers = "p.depth" })
      local one = require("tidelock.language.recipe").load(path):with { width = 32 }
      local spec = assert(written.spec(one:override { "depth=1", "train.steps=3" }))
      assert.same({ 32, 1, 3 }, { spec.model.dim, spec.model.layers, spec.train.steps })
    end)

    it("in a script loses nothing that was set, swept or chosen before", function()
      local text = written.recipe { head = head, dim = "p.width", layers = "p.depth",
        tail = ":with { ['train.steps'] = p.depth * 10 }" }
      local function loaded() return written.load(text) end
      local function steps(count) return { ["train.steps"] = count } end
      for _, case in ipairs {
        { "5 64 50", loaded():with { depth = 5 } },
        { "5 64 7", loaded():with(steps(7)):with { depth = 5 } },
        { "5 64 9", loaded():with(steps(7)):override { "train.steps=9" }:with { depth = 5 } },
        { "5 64 7", loaded():override { "train.steps=9" }:with(steps(7)):with { depth = 5 } },
        { "5 64 7", loaded():with(steps(7)):over("depth", { 3, 5 }):points()[2] },
        { "5 32 50", loaded():with { width = 32 }:over("depth", { 3, 5 }):points()[2] },
        { "5 32 50", loaded():over("depth", { 3, 5 }):points()[2]:with { width = 32 } },
        { "4 32 6", loaded():over("train.steps", { 3, 6 }):points()[2]:with { width = 32 } },
      } do
        local spec = assert(written.spec(case[2]))
        assert.equal(case[1],
          ("%d %d %d"):format(spec.model.layers, spec.model.dim, spec.train.steps))
      end
      local point = loaded():over("train.steps", { 3, 6 }):points()[2]:with { width = 32 }
      assert.equal("steps 6", point.label)
    end)

    it("loads axes again that the file makes of its knobs", function()
      local text = written.recipe { head = head, dim = "p.width", layers = "p.depth",
        tail = ":over('train.steps', { p.depth, 2 * p.depth })" }
      local found, one = {}, written.load(text):over("width", { 32 }):with { depth = 3 }
      for i, point in ipairs(one:points()) do
        found[i] = point.label
      end
      assert.same({ "steps 3, width 32", "steps 6, width 32" }, found)
    end)

    it("keeps mistakes that were made since, and forgets those of other values", function()
      local path = written.file(written.recipe { head = head, layers = "p.depth" })
      local one = require("tidelock.language.recipe").load(path)
      local function text_of(recipe) return select(2, written.spec(recipe)) end
      assert.matches("dept: no such field or knob", text_of(one:with { dept = 1, depth = 3 }))
      assert.matches("train.stps: no such key",
        text_of(one:with { ["train.stps"] = 1 }:over("depth", { 3 }):points()[1]))
      one = require("tidelock.language.recipe").load(path)
      assert.is_nil(text_of(one:with { depth = 0 }:with { depth = 2 }))
    end)

    it("keeps a file once among what a run came from", function()
      local loaded = written.load(outer ":with { depth = 1 }:with { depth = 2 }")
      assert.equal(2, #loaded.files)
    end)

    it("has the type of the knob, and names knobs that the file has not", function()
      local _, text = written.spec(written.load(outer ":with { depth = 'two', widht = 3 }"))
      assert.matches(":1: depth: expected an integer, got \"two\"", text, 1, true)
      assert.matches(":1: widht: no such field or knob; did you mean width?", text, 1, true)
    end)

    it("cannot load the file that is being loaded", function()
      local _, text = written.spec(load({}, ":with { depth = 2 }"))
      assert.matches("depth: a knob of the same file; write its value there", text, 1, true)
    end)
  end)
end)
