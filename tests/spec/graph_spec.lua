-- What a graph written by hand may say, and the message for what it may not.
local models = require "support.models"
local tl = require "tidelock"

local nn = tl.nn

--- Plans a model of one layer whose graph is `build`; the plan.
local function plan(build, options, last)
  local layer = function() return { nn.graph("g", build) } end
  return models.plan(models.with({ layer = layer, layers = 1 }, options or {}), last)
end

--- The message that planning raises.
local function refusal(...)
  local good, message = pcall(plan, ...)
  assert.is_false(good)
  return type(message) == "table" and message.message or message
end

local refused = {
  { "a number as a name", function(g, x) return g.named(7, x) end,
    "graph_spec.lua:%d+: named wants a string as its operand 1, got 7" },
  { "a value that is none", function(g, x) g.add_loss("a", 3) return x end,
    "add_loss wants a value as its operand 2, got 3" },
  { "fields that are no table", function(g, x) return x * g.weight("a", "dim", 0.1) end,
    "weight wants a table as its operand 3, got 0.1" },
  { "a name that is not UTF-8", function(g, x) return x * g.weight("\255", "dim") end,
    "the weight .*: a name is UTF%-8" },
  { "targets of one's own", function(g, x) return g.cross_entropy(x, x) end,
    "cross_entropy wants the targets that the loss function is given" },
  { "a layer of one number a token", function(g, x) return g.matmul(x, g.weight("a", "dim")) end,
    "a layer's module gives %(tokens%), not %(tokens, features%)" },
  { "a layer of another width", function(g, x)
    g.dim("inner", 24)
    return g.matmul(x, g.weight("up", "inner dim"))
  end, "layer 0 gives %(tokens, inner 24%); a layer leads back to %(tokens, dim 32%)" },

  { "dims that do not meet", function(g, x)
    g.dim("inner", 24)
    return x + g.matmul(x, g.weight("up", "inner dim"))
  end, "add: the dims %(tokens, dim 32%) and %(tokens, inner 24%) do not meet" },
  { "a dim that nobody named", function(g, x) return g.matmul(x, g.weight("up", "iner dim")) end,
    "no dim is called iner; there are dim, " },
  { "summed dims first", function(g, x)
    g.dim("inner", 24)
    return g.matmul(x, g.weight("up", "dim inner"))
  end, "weight layers.0.g.up %(dim 32, inner 24%): write output dims first, then the dims that " },
  { "nothing to sum over", function(g, x)
    g.dim("a", 4)
    g.dim("b", 4)
    return g.matmul(x, g.weight("w", "a b"))
  end, "matmul: %(tokens, dim 32%) and %(a 4, b 4%) have no dim in common" },
  { "summed dims in another order", function(g, x)
    g.dim("a", 4)
    g.dim("b", 6)
    return g.matmul(g.matmul(x, g.weight("up", "a b dim")), g.weight("down", "dim b a"))
  end, "write the summed dims in the order of %(tokens, a 4, b 6%)" },
  { "two activations", function(g, x) return g.matmul(x, x) end,
    "matmul wants an activation and a weight" },
  { "a name that is taken", function(g, x)
    return x * g.weight("w", "dim") + x * g.weight("w", "dim")
  end, "the weight layers.0.g.w is already made at .*_spec.lua:%d+; give one of the modules a na" },
  { "a shared weight of another shape", function(g, x)
    g.dim("a", 4)
    g.dim("b", 6)
    return g.matmul(g.matmul(x, g.weight("/w", "a dim")), g.weight("d", "dim a"))
      + g.matmul(g.matmul(x, g.weight("/w", "b dim")), g.weight("e", "dim b"))
  end, "the shared weight w is %(4, 32%) at .* and %(6, 32%) here" },
  { "an axis that is not tp", function(g, x)
    g.dim("inner", 24, "dp")
    return x
  end, 'dim inner: axis dp; a dim may be mapped to "tp" or to nothing' },
  { "a size that is no size", function(g, x)
    g.dim("inner", 2.5)
    return x
  end, "dim inner: expected a positive integer size, got 2.5" },
  { "an operator that does not exist", function(g, x) return g.softplus(x) end,
    "graphs have no operator softplus" },
  { "a text that is added", function(_, x) return x + "1" end,
    "add of a value and 1: a number is added, subtracted, multiplied or divides" },
  { "a number over a value", function(_, x) return 1 / x end,
    "div of a value and 1: a number is added, subtracted, multiplied or divides" },
  { "a quotient of values", function(_, x) return x / x end, "values are not divided by values" },
  { "no value", function() return 3 end, "the function of nn.graph returns number, not a value" },
  { "a loss of every channel", function(g, x)
    g.add_loss("all", x)
    return x
  end, "add_loss all: one number per token is wanted, got %(tokens, dim 32%)" },
  { "a cast to an unknown dtype", function(g, x) return g.cast(x, "f16") end,
    "cast: dtype f16; f32 or bf16" },
  { "a field that weights do not have", function(g, x)
    return x * g.weight("w", "dim", { dcay = 0 })
  end, "layers.0.g.w.dcay: no such field of a weight; there are init, decay, " },
  { "an update of a weight", function(g, x)
    local w = g.weight("w", "dim")
    g.update(w, g.mean(x))
    return x * w
  end, "update wants a state, made by g.state, as its operand 1; got the weight layers.0.g.w" },
  { "an update of a value", function(g, x)
    g.update(g.mean(x), g.mean(x))
    return x
  end, "update wants a state, made by g.state, as its operand 1; got %(dim 32%)" },
  { "an update by a number", function(g, x)
    g.update(g.state("s"), 1)
    return x
  end, "update wants a value as its operand 2, got 1" },
  { "an update of other dims", function(g, x)
    g.dim("inner", 24)
    g.update(g.state("s", "inner"), g.mean(x))
    return x
  end, "update: the state layers.0.g.s is %(inner 24%) and the value %(dim 32%)" },
  { "an update by tokens", function(g, x)
    g.update(g.state("s", "dim"), x)
    return x
  end, "the state layers.0.g.s is %(dim 32%) and the value %(tokens, dim 32%); g.sum%(x%) or" },
  { "two updates of a state", function(g, x)
    local s = g.state("s", "dim")
    g.update(s, 2 * s)
    g.update(s, g.mean(x))
    return x
  end, "the state layers.0.g.s is already updated at .*graph_spec.lua:%d+; a state is set once a" },
  { "a state of tokens", function(g, x)
    g.state("s", "tokens dim")
    return x
  end, "state s: tokens are no dim of what outlives a micro%-batch" },
  { "a state of an unknown dim", function(g, x)
    g.state("s", "width")
    return x
  end, "no dim is called width; there are dim, " },
  { "a state twice", function(g, x) return x + g.state("s") + g.state("s") end,
    "the state layers.0.g.s is already made at .*_spec.lua:%d+; give one of the modules a name" },
  { "a state that is a weight, too", function(g, x)
    return x * g.weight("/s", "dim") * g.state("/s", "dim")
  end, "s is a weight at .*_spec.lua:%d+ and a state here" },
  { "a state with an optimizer's field", function(g, x)
    local s = g.state("s", "dim", { decay = 0 })
    g.update(s, s)
    return x
  end, "layers.0.g.s.decay: no such field of a state; there are init, from" },
  { "a product with a state", function(g, x) return g.matmul(x, g.state("s", "dim")) end,
    "matmul wants an activation and a weight" },
  { "a state that nothing updates", function(g, x) return x * g.state("s", "dim") end,
    "layers.0.g.s: nothing updates this state; g.update%(state, value%) does, or g.weight with" },
  { "a sum over features", function(g, x) return x * g.sum(x, "dim") end,
    "sum over dim: only tokens are summed, over the whole step; g.matmul sums over features" },
  { "a sum of a weight", function(g, x) return x * g.sum(g.weight("w", "dim")) end,
    "sum: %(dim 32%) has no tokens" },
  { "a sum that meets tokens", function(g, x) return x * g.sum(x) end,
    "binary: a sum over the tokens of the step is known after them, so none of them meets it" },
  { "a norm of a sum", function(g, x)
    g.update(g.state("s", "dim"), nn.rms_norm {}(g.sum(x)))
    return x
  end, "rms_norm of a sum over the tokens of the step %(.*it takes elementwise operators only" },
  { "a loss that is a sum", function(g, x)
    g.add_loss("a", g.sum(x))
    return x
  end, "add_loss a: one number per token is wanted, got %(dim 32%)" },
  { "the same extra loss twice", function(g, x)
    local y = g.matmul(x, g.weight("w", "dim"))
    g.add_loss("a", y)
    g.add_loss("a", y)
    return x
  end, "add_loss: layers.0.g.a is already added at .*_spec.lua:%d+; give one of them another na" },
  { "a function of the step for tokens", function(_, x)
    return x * function() return 1 end
  end, "a function of the step multiplies what is made of g.sum alone, on its way to g.update" },
  { "a function of the step that gives no number", function(g, x)
    g.update(g.state("s", "dim"), g.mean(x) * function(step) return step < 3 and 1 or "none" end)
    return x
  end, 'the function gave "none" for step 3; a number is wanted' },
  { "two dims over tp in one weight", function(g, x)
    g.dim("a", 4, "tp")
    g.dim("b", 8, "tp")
    return x + g.matmul(g.matmul(x, g.weight("up", "a b dim")), g.weight("down", "dim a b"))
  end, "weight layers.0.g.up: only one dim may be mapped to tp" },
  { "a dim over tp that does not come first", function(g, x)
    g.dim("a", 4)
    g.dim("b", 8, "tp")
    return x + g.matmul(g.matmul(x, g.weight("up", "a b dim")), g.weight("down", "dim a b"))
  end, "weight layers.0.g.up: only one dim may be mapped to tp, the first" },
}

describe("a graph that says what cannot be is refused with its line:", function()
  for _, case in ipairs(refused) do
    it(case[1], function()
      local message = refusal(case[2])
      assert.matches(case[3], message)
      assert.matches("graph_spec.lua:%d+: ", message)
    end)
  end

  it("a weight that no loss reaches", function()
    assert.matches("layers.0.g.w: no loss reaches this weight", refusal(function(g, x)
      g.matmul(x, g.weight("w", "dim"))
      return x
    end))
  end)

  it("a state, or a value, of another model", function()
    local kept
    local function build(g, x)
      kept = kept or g.state("s", "dim")
      g.update(kept, g.mean(x))
      return x
    end
    assert.is_table(plan(build))
    assert.matches("update of a value of another model, made at .*_spec.lua:%d+; a value, and a "
      .. "state, belongs to one model", refusal(build))
    local y
    assert.matches("binary of a value of another model", refusal(function(_, x)
      y = y or x
      return x + kept
    end))
  end)

  it("an update after the graph is complete", function()
    local face, state
    plan(function(g, x)
      face, state = g, g.state("s", "dim")
      g.update(state, g.mean(x))
      return x
    end)
    for _, late in ipairs { function() face.update(state, state) end,
      function() face.state("t") end, function() return state * state end } do
      local good, message = pcall(late)
      assert.is_false(good)
      assert.matches("graph_spec.lua:%d+: .*", message)
      assert.matches("the graph is complete: g is called inside the functions of the model and the "
        .. "loss only", message)
    end
  end)

  it("a weight rule that says of states what they do not have", function()
    local function build(g, x)
      local s = g.state("s", "dim")
      g.update(s, g.mean(x))
      return x
    end
    assert.matches('"%*.s" matches states alone; of a state init and from are set, nothing else',
      refusal(build, { weights = { { "*.s", lr_scale = 2 } } }))
    local planned = plan(build, { weights = { { "*", lr_scale = 2, init = "ones" } } })
    assert.equal(1, planned.fields["layers.0.g.s"].init.first)
    assert.equal(1, planned.fields["layers.0.g.s"].lr_scale)
  end)

  it("a factor of another dtype", function()
    local function product(g, x)
      g.dim("inner", 8)
      return x + g.matmul(g.matmul(x, g.weight("up", "inner dim")), g.weight("down", "dim inner"))
    end
    local mixed = { dtype = "bf16", weights = { { "*.up", dtype = "f32" } } }
    assert.matches("linear: x is bf16 and the weight layers.0.g.up is f32; the op has one dtype "
      .. "for both, the recipe's %(bf16%)", refusal(product, mixed))
  end)

  it("a dim that tp does not divide", function()
    local function product(g, x)
      g.dim("inner", 6, "tp")
      return x + g.matmul(g.matmul(x, g.weight("up", "inner dim")), g.weight("down", "dim inner"))
    end
    assert.matches("layout.tp: tp 4 does not divide inner 6; allowed: 1, 2, 3, 6",
      refusal(product, { ["layout.tp"] = 4 }))
  end)

  it("heads that ranks share, with features that they cannot divide", function()
    local options = { heads = 4, kv_heads = 1, head_dim = 6, ["layout.tp"] = 4 }
    local good, message = pcall(models.plan, options)
    assert.is_false(good)
    assert.matches("tp 4 does not divide the 6 features of layers.0.attention.k, which its ranks",
      message)
  end)

  it("a value made of weights alone on another pipeline stage", function()
    local row
    local function layer(i)
      return { nn.graph("g", function(g, x)
        if i == 1 then row = g.sigmoid(g.weight("row", "dim")) end
        return x + row * x
      end) }
    end
    assert.is_table(models.plan({ layer = layer }))
    local good, message = pcall(models.plan, { layer = layer, ["layout.pp"] = 2 })
    assert.is_false(good)
    assert.matches("layout.pp: binary uses a value made of weights alone at .*, on another "
      .. "pipeline stage", message.message or message)
  end)
end)

describe("a graph", function()
  it("names weights, values and losses by their place", function()
    local expanded = plan(function(g, x)
      g.named("half", x * 0.5)
      return x * g.weight("scale", "dim", { init = "ones" })
    end, nil, "expand")
    local names = {}
    for _, weight in ipairs(expanded.graph.weights) do names[#names + 1] = weight.name end
    assert.same({ "embed", "layers.0.g.scale", "norm.gain", "head" }, names)
    local seen = {}
    for _, value in ipairs(expanded.graph.names) do seen[value.name] = true end
    for _, name in ipairs { "embed.out", "layers.0.g.half", "layers.0.g.out", "logits", "loss" } do
      assert.is_true(seen[name], name)
    end
  end)

  it("gives a sum of weights the gradient of each, in both dtypes", function()
    local function gradient(sum, dtype)
      local layer = function()
        return { nn.graph("g", function(g, x)
          local a = g.weight("a", "dim", { init = { "uniform", 0.5 } })
          local row = sum and a + g.weight("b", "dim", { init = "zeros" }) or a
          return x * row + g.gelu(x)
        end) }
      end
      local options = { layer = layer, layers = 1, dtype = dtype, leaves = { tp = 4, dp = 1 } }
      return models.gradients(options)["layers.0.g.a.grad"]
    end
    assert.same(gradient(false, "f32"):bits(), gradient(true, "f32"):bits())
    local exact, sum = gradient(false, "bf16"):flat(), gradient(true, "bf16"):flat()
    for i, value in ipairs(exact) do assert.near(value, sum[i], 0.005 * math.abs(value) + 1e-9) end
  end)

  it("leads a linear back to the width of the stream", function()
    local layer = function()
      return { nn.residual { nn.linear { out = 7 }, nn.linear { out = 32, name = "back" } } }
    end
    assert.is_table(models.plan({ layer = layer }, "expand").graph)
  end)

  it("knows the line of every node", function()
    local expanded = plan(function(g, x) return g.silu(x) end, nil, "expand")
    for _, node in ipairs(expanded.graph.nodes) do
      if node.op == "unary" then assert.matches("graph_spec.lua:%d+$", node.site) end
    end
  end)
end)

describe("a graph without an end", function()
  it("stops at the number of operators that a model may have, at its line", function()
    local graph = require "tidelock.model.graph"
    local most = graph.nodes_max
    graph.nodes_max = 300
    local text = refusal(function(_, x)
      while true do x = x + 1 end
    end)
    graph.nodes_max = most
    assert.matches("graph_spec.lua:%d+: more than 300 operators in one model: this does not end, "
      .. "or has too many layers", text)
  end)
end)
