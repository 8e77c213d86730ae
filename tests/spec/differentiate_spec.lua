-- Bits that agree in every layout can be wrong together: values against an f64 model written in
-- loops, gradients against slopes of the loss, and the order in which gradients meet.
local derivative = require "support.derivative"
local models = require "support.models"
local reference = require "support.reference"
local tl = require "tidelock"
local zoo = require "support.zoo"

local nn = tl.nn

local wide_init = { { "*.q", "*.k", "*.v", "*.o", "*.up", "*.down", "embed", init = 0.3 } }

describe("the loss of every token", function()
  local small = {
    vocab = 19, dim = 8, layers = 2, heads = 4, kv_heads = 2, hidden = 12, length = 12, samples = 3,
    micro = 1, weights = wide_init,
  }
  local gpt = {
    layer_norm = true, gelu = true, positions = 16, tied = true, rope = false, bias = true,
    norm = nn.layer_norm { name = "norm" },
  }
  local cases = {
    { "a plain model", {} },
    { "biases and a window", { bias = true, window = 3 } },
    { "layer_norm, gelu, positions, tied", gpt },
    { "documents, smoothing and z", { documents = true,
      loss = { "cross_entropy", smoothing = 0.1, z = 0.01 } } },
    { "one kv head, tied, documents", { kv_heads = 1, tied = true, documents = true, window = 4 } },
  }
  for _, case in ipairs(cases) do
    it("is that of an f64 model: " .. case[1], function()
      local options = models.with(small, case[2])
      local data = models.data(options, options.samples)
      options.data = data
      local run <close> = models.start(options, { keep = { "loss" } })
      local weights = {}
      for _, entry in ipairs(run:weights()) do
        weights[entry.name] = run:weight(entry.name):to_table()
      end
      local step = run:step()
      local got, sum, count = run:kept("loss"):flat(), 0, 0
      local function weight(name) return weights[name] end
      for s, losses in ipairs(reference.losses(options, weight, data.samples)) do
        for t, expected in ipairs(losses) do
          if expected ~= 0 then
            local value = got[(s - 1) * options.length + t]
            assert.is_true(math.abs(value - expected) < 2e-5 * (1 + math.abs(expected)),
              ("sample %d token %d: %.7g, not %.7g"):format(s, t, value, expected))
            sum, count = sum + expected, count + 1
          end
        end
      end
      assert.is_true(math.abs(step.loss - sum / count) < 1e-5)
      assert.equal(count, step.count)
    end)
  end
end)

describe("the gradient of every weight is the slope of the loss:", function()
  for _, entry in ipairs(zoo) do
    it(entry[1], function()
      local worst = derivative.worst(entry[2])
      assert.is_true(worst.ratio < 1, ("%s: slope %g, gradient %g"):format(worst.name or "?",
        worst.slope or 0, worst.expected or 0))
    end)
  end
end)

--- The backward pass of a model of one layer, made of `build`.
local function backward_of(build)
  local layer = function() return { nn.graph("g", build) } end
  return models.plan({ layer = layer, layers = 1 }, "differentiate").backward
end

describe("gradients that meet at one value", function()
  it("are added in the order of its uses", function()
    local backward = backward_of(function(g, x)
      local y = g.named("y", g.silu(x))
      return (g.relu(y) + g.tanh(y)) + g.sigmoid(y)
    end)
    local kinds, adds = {}, {}
    for _, node in ipairs(backward.nodes) do
      if node.op == "unary_grad" then kinds[node.outputs[1].id] = node.attrs.kind end
      if node.op == "binary" and node.outputs[1].name == "layers.0.g.y.grad" then
        adds[#adds + 1] = { kinds[node.inputs[1].id] or "sum", kinds[node.inputs[2].id] }
      end
    end
    assert.same({ { 3, 4 }, { "sum", 0 } }, adds) -- relu, then tanh, then sigmoid
  end)

  it("keep an accumulator for each use of a weight, in order of use", function()
    local plan = models.plan({ tied = true, layers = 1 }, "differentiate")
    local uses = {}
    for _, param in ipairs(plan["local"].params) do
      if param.name == "embed" then
        for i, use in ipairs(plan.backward.uses[param.value.id]) do uses[i] = use.op end
      end
    end
    assert.same({ "embedding_grad", "linear_grad_weight" }, uses)
  end)

  it("have the dtype of the value, rounded once", function()
    local plan = models.plan({ dtype = "bf16", layers = 1 }, "differentiate")
    for _, node in ipairs(plan.backward.nodes) do
      for _, y in ipairs(node.outputs) do
        if node.op == "linear_grad_input" then assert.equal("bf16", y.dtype) end
        if node.op == "cross_entropy_grad" then assert.equal("bf16", y.dtype) end
      end
    end
  end)
end)
