-- The fields in which two recipes differ, as ./tl diff and a checkpoint that is refused show them.
local differences = require "tidelock.run.differences"
local explain = require "tidelock.forecast.explain"
local planner = require "tidelock.plan"
local written = require "support.written"

--- What two recipes, as options of written.recipe, are shown to differ in.
local function shown(a, b)
  local texts = {}
  for i, options in ipairs { a, b } do
    local recipe = written.load(written.recipe(options))
    texts[i] = explain.text(planner(recipe, "check"), "check")
  end
  local lines = {}
  for i, d in ipairs(differences.gathered(differences.of(texts[1], texts[2]))) do
    lines[i] = ("%s: %s | %s"):format(d.label, d.old, d.new)
  end
  return table.concat(lines, "\n")
end

describe("the fields in which recipes differ", function()
  after_each(written.clean)

  it("are none for what moves no bit, also inside a table that has more", function()
    assert.equal("", shown({}, {
      tail = ":with { ['batch.micro'] = 4, layout = { tp = 2 }, ['train.save'] = { every = 2 } }",
    }))
  end)

  it("are named one by one, however many stand on a line", function()
    assert.equal("batch.samples: 8 | 16\nmodel.dim: 64 | 128\ntrain.clip: unset | 1", shown({}, {
      dim = 128, tail = ":with { ['batch.samples'] = 16, ['train.clip'] = 1 }",
    }))
  end)

  it("are one line for layers that are alike, and one for what only one side has", function()
    local function layered(first, last, layers)
      return {
        layers = layers,
        head = ([[
local plain = nn.decoder
nn = setmetatable({ decoder = function(options)
  function options.layer(i, n)
    return { nn.residual { nn.rms_norm {}, i == n and %s or %s } }
  end
  return plain(options)
end }, { __index = nn })]]):format(last, first),
      }
    end
    local a = layered("nn.swiglu { hidden = 96 }", "nn.swiglu { hidden = 96 }", 4)
    assert.equal([[
layers 0 to 2, swiglu: hidden: 96 | 64
layer 3, module: "swiglu" | "gelu"
layer 3, gelu: hidden: 96 | 64]],
      shown(a, layered("nn.swiglu { hidden = 64 }", "nn.gelu { hidden = 64 }", 4)))
    assert.equal("layer 4, all of it: unset | { .. }\nmodel.layers: 4 | 5", shown(a,
      layered("nn.swiglu { hidden = 96 }", "nn.swiglu { hidden = 96 }", 5)))
  end)
end)
