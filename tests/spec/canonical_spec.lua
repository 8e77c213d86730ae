-- The model as text, which the key hashes: whatever can change a bit is in it.
local canonical = require "tidelock.model.canonical"
local models = require "support.models"
local nn = require("tidelock").nn

local function text_of(options)
  local plan = models.plan(options, "expand")
  return canonical.model(plan.graph, plan.fields)
end

--- A layer with a unit whose weight has these fields, and whose dim these properties.
local function unit(given, size, axis, eps)
  return {
    layers = 1,
    layer = function()
      return { nn.residual { nn.rms_norm { eps = eps }, nn.graph("unit", function(g, x)
        g.dim("inner", size or 24, axis)
        return g.matmul(g.tanh(g.matmul(x, g.weight("up", "inner dim", given))),
          g.weight("down", "dim inner"))
      end) } }
    end,
  }
end

describe("the text of a model", function()
  it("is another one for all that can change a bit", function()
    local seen = {}
    local function new(what, options)
      local text = text_of(options)
      assert.is_nil(seen[text], what .. " has the text of " .. tostring(seen[text]))
      seen[text] = what
    end
    new("the model", unit())
    for _, row in ipairs {
      { "frozen", { frozen = true } }, { "decay", { decay = 0.25 } },
      { "lr_scale", { lr_scale = 0.5 } }, { "dtype", { dtype = "bf16" } },
      { "std", { init = { "normal", 0.5 } } }, { "mean", { init = { "normal", mean = 1 } } },
      { "range", { init = { "uniform", 0.5 } } }, { "zeros", { init = "zeros" } },
      { "a function", { init = function(i) return i % 7 end } },
      { "another", { init = function(i) return i % 5 end } },
    } do
      new(row[1], unit(row[2]))
    end
    new("size", unit(nil, 32))
    new("axis", unit(nil, 24, "tp"))
    new("eps", unit(nil, 24, nil, 1e-3))
    for _, row in ipairs {
      { "attention", {} }, { "window", { window = 5 } }, { "base", { rope = { base = 100 } } },
      { "no rope", { rope = false } }, { "pairs", { rope = { interleaved = true } } },
      { "kv heads", { kv_heads = 4 } }, { "tied", { tied = true } },
      { "dropout", { dropout = 0.1 } }, { "rate", { dropout = 0.2 } }, { "vocab", { vocab = 60 } },
      { "smoothing", { loss = { "cross_entropy", smoothing = 0.1 } } },
      { "z", { loss = { "cross_entropy", z = 0.1 } } }, { "name", { ffn_name = "net" } },
      { "layers", { layers = 3 } },
    } do
      new(row[1], row[2])
    end
  end)

  it("sees two functions of the same numbers as one", function()
    assert.equal(text_of(unit { init = function(i) return i % 7 end }),
      text_of(unit { init = function(i) return i - i // 7 * 7 end }))
  end)
end)
