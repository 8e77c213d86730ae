-- Time in which nothing but experts' rows moves, by layer: by hand, and in a trace of ranks.
local experts = require "tidelock.trace.experts"
local mixtures = require "support.mixtures"
local models = require "support.models"
local planted = require "support.planted"
local trace = require "tidelock.trace"
local traces = require "tidelock.trace.traces"

--- { op, path, start, stop, phase } in milliseconds.
local function list_of(rows)
  local list = {}
  for i, row in ipairs(rows) do
    list[i] = { made = { op = row[1], path = row[2], phase = row[5] or "forward" },
      start = row[3] * 1000000, stop = row[4] * 1000000,
      talks = row[1] == "exchange" or row[1] == "all_reduce" }
  end
  return list
end

local function near(expected, time)
  for name, value in pairs(expected) do assert.near(value, time[name] * 1000, 1e-9, name) end
end

describe("rows of experts in a trace", function()
  it("are alone where no kernel runs, of whatever layer, and before other messages", function()
    local layers = experts.of(list_of {
      { "linear", "layers.0.attention", 0, 10 }, -- not the mixture's
      { "linear", "layers.0.moe.shared", 10, 20 },
      { "exchange", "layers.0.moe", 15, 30 }, -- 5 beside the shared expert, 5 beside products
      { "grouped_linear", "layers.0.moe", 25, 40 },
      { "exchange", "layers.0.moe", 40, 50 }, -- 7 beside the next layer's kernel
      { "linear", "layers.1.attention", 42, 49 },
      { "all_reduce", "layers.0.moe", 50, 54 }, -- a message, but no rows
      { "exchange", "layers.1.moe", 60, 66, "backward" },
      { "grouped_linear_grad_weight", "layers.1.moe", 60, 90, "backward" },
      { "linear", nil, 90, 95 }, -- of no layer
    })
    assert.equal(2, #layers)
    assert.equal("layers.0.moe", layers[1].path)
    near({ layer = 10 + 5 + 15 + 3 + 4, rows = 25, alone = 5 + 3 }, layers[1])
    near({ layer = 30, rows = 6, alone = 0 }, layers[2])
    near({ layer = 37, alone = 8 }, layers[1].passes.forward)
    near({ layer = 30, alone = 0 }, layers[2].passes.backward)
    assert.same({}, experts.of(list_of { { "linear", "layers.0.moe", 0, 9 } }))
  end)

  it("are told of the rank with the largest share, a step's mean, and of all layers", function()
    local function rank(alone)
      local layer = { path = "layers.0.moe", layer = 0.010, rows = 0.004, alone = alone,
        passes = { forward = { layer = 0.010, alone = alone } } }
      return experts.sum { { layer }, { layer } }
    end
    local other = experts.sum { { { path = "layers.1.moe", layer = 0.020, rows = 0.002, alone = 0,
      passes = {} } } }
    assert.same({
      "  rows of experts       layer ms   rows ms  alone ms   share  forward  backward  rank",
      "  layers.0.moe            10.000     4.000     3.000   30.0%    30.0%         -     1",
      "  layers.1.moe            10.000     1.000     0.000    0.0%        -         -     2",
      "  all                     10.000     4.000     3.000   30.0%    30.0%         -     1",
    }, experts.lines({ rank(0.001), rank(0.003), other }, 2))
    assert.same({}, experts.lines({ experts.sum { {} } }, 1))
  end)

  it("end the table of a trace whose rows travel, and no other", function()
    local options = mixtures.with({ experts = 4, top_k = 2, hidden = 16, shared = 1 })
    local function text(fields)
      local t <close> = traces.open(planted.trace(models.with(options, fields), { recorder = {
        values = false } }, 1))
      return trace.text(t)
    end
    local said = text { ["layout.dp"] = 2, ["layout.ep"] = 2, ["blocks.moe.waves"] = 2 }
    local row = " +[%d.]+ +[%d.]+ +[%d.]+ +[%d.]+%% +[%d.]+%% +[%d.]+%% +[01]\n"
    assert.matches("\n  rows of experts .*\n  layers%.0%.[%w_]+" .. row .. "  layers%.1%.[%w_]+"
      .. row .. "  all" .. row, said .. "\n")
    assert.is_nil(text({}):find("rows of experts", 1, true))
  end)
end)
