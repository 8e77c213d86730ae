-- An ablation changes only what it says: initial bits hang on a weight's name and index, samples on
-- seed and position.
local driver = require "tidelock.run.driver"
local tl = require "tidelock"

local nn = tl.nn

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 32 } },
  }
end

--- The layer with a branch between the two.
local function branched()
  local list = layer()
  table.insert(list, 2, nn.residual { nn.rms_norm {}, nn.linear { out = 32 } })
  return list
end

--- Hashes of the initial weights by name, and the tokens of two steps.
local function start(changes)
  local run <close> = driver.start(tl.recipe {
    model = nn.decoder { vocab = 256, dim = 32, layers = changes.layers or 2,
      layer = changes.layer or layer },
    weights = changes.weights, data = tl.data.text { "LICENSE" },
    batch = { samples = 4, length = 16 }, train = { steps = 2, lr = 1e-3 },
  })
  local hashes, tokens = {}, {}
  for _, weight in ipairs(run:weights()) do
    hashes[weight.name] = run:weight(weight.name):hash(weight.name)
  end
  for step = 0, 1 do
    local list = run.sources[1]:micro(step, 4, 0, 4)
    tokens[step + 1] = table.concat(list, " ")
  end
  return hashes, tokens
end

describe("an ablation", function()
  local hashes, tokens = start {}

  --- All weights of the base have their bits, `more` are new; the samples are the same.
  local function keeps(changes, more)
    local others, same = start(changes)
    for name, hash in pairs(hashes) do assert.equal(hash, others[name], name) end
    local count = 0
    for name in pairs(others) do count = count + (hashes[name] and 0 or 1) end
    assert.equal(more, count)
    assert.same(tokens, same)
  end

  it("by one more layer keeps all other initial weights and the samples", function()
    keeps({ layers = 3 }, 9)
  end)

  it("by a branch keeps them", function() keeps({ layer = branched }, 4) end)

  it("by a frozen weight keeps them", function()
    keeps({ weights = { { "embed", frozen = true } } }, 0)
  end)

  it("of an initial value changes that weight alone", function()
    local others = start { weights = { { "layers.0.attention.q", init = 0.5 } } }
    for name, hash in pairs(hashes) do
      assert.equal(name ~= "layers.0.attention.q", hash == others[name], name)
    end
  end)
end)
