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
end)
