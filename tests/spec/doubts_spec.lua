-- Nonsense is caught before step 1: what cannot be meant is refused, what hardly can is noted.
local planner = require "tidelock.plan"
local tl = require "tidelock"

local nn = tl.nn

--- The recipe of a small model with some sections replaced.
local function recipe(changes, layer)
  local sections = {
    model = nn.decoder { vocab = 256, dim = 32, layers = 1, layer = layer or function()
      return { nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 32 } } }
    end },
    data = tl.data.text { "LICENSE" }, batch = { samples = 4, length = 16 },
    train = { steps = 10, lr = 1e-3 },
  }
  for key, value in pairs(changes) do sections[key] = value end
  return tl.recipe(sections)
end

local function doubts(changes) return planner(recipe(changes), "expand").doubts end

local function noted(changes, ...)
  local list = doubts(changes)
  assert.equal(select("#", ...), #list, table.concat(list, "\n"))
  for i, part in ipairs { ... } do
    assert.is_truthy(list[i]:find(part, 1, true), list[i])
    assert.matches("^tests/spec/doubts_spec.lua:%d+: ", list[i])
  end
end

local function refused(part, changes, layer)
  local good, message = pcall(function()
    planner(recipe(changes or {}, layer))
  end)
  assert.is_false(good)
  assert.is_truthy(tostring(message):find(part, 1, true), tostring(message))
end

describe("a recipe", function()
  it("that is meant raises no doubt", function()
    noted {}
    noted { weights = { { "*", decay = 0 }, { "*.gain", decay = 0.1 } } }
    noted { train = { steps = 10, lr = { "cosine", peak = 1e-3, warmup = 10 } } }
    noted { weights = { { "*.gain", init = { "constant", 0.5 } } } }
  end)

  it("with a rule of which nothing is left is doubted", function()
    noted({ weights = { { "*.gain", decay = 0.1 }, { "*", decay = 0 } } },
      "weights[1]: without effect: later rules set all that it says")
  end)

  it("with a gain that starts near 0 is doubted, once a rule", function()
    noted({ weights = { { "*.gain", init = "zeros" } } },
      "weights[1]: layers.0.swiglu.rms_norm.gain is a gain and starts at 0 or less")
    noted({ weights = { { "*.gain", init = 0.02 } } }, "starts at 0.04 or less")
  end)

  it("with a schedule longer than its run is doubted", function()
    noted({ train = { steps = 10, lr = { "cosine", peak = 1e-3, warmup = 20 } } },
      "train.lr.warmup: 20 is more than the run's 10 steps")
    noted({ train = { steps = 10, lr = { "warmup_stable_decay", peak = 1e-3, decay = 5,
      steps = 40 } } }, "train.lr.steps: 40 is more than")
  end)

  it("with a warm-up longer than its run is doubted where it stands", function()
    noted({ train = { steps = 10, warmup = 900, lr = 1e-3 } },
      ": train.warmup: 900 is more than the run's 10 steps")
    local set = recipe({ train = { steps = 10, lr = { "constant", 1e-3 } } })
      :override { "train.lr.warmup=11" }
    assert.same({ "command line: train.lr.warmup: 11 is more than the run's 10 steps: its end is "
      .. "never reached" }, planner(set, "expand").doubts)
  end)

  it("with a weight that nothing uses, or no loss reaches, is refused", function()
    local function unit(body)
      return function() return { nn.residual { nn.graph("u", body) } } end
    end
    refused("layers.0.u.scale: nothing uses this weight", nil, unit(function(g, x)
      g.weight("scale", "dim")
      return x
    end))
    refused("layers.0.u.scale: no loss reaches this weight", nil, unit(function(g, x)
      local _ = x * g.weight("scale", "dim")
      return x
    end))
  end)

  it("with a pattern that matches nothing is refused", function()
    refused('the pattern "*.nothing" matches no weight', { weights = { { "*.nothing",
      decay = 0 } } })
  end)
end)
