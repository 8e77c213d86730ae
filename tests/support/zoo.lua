--- One small model for each feature whose bits could depend on the layout: { name, options }.
local models = require "support.models"
local tl = require "tidelock"

local nn = tl.nn

--- x + sigmoid(bias) * block(norm(x)), as in recipes/gated.lua.
local function gated(block, name)
  return nn.graph(name, function(g, x)
    local y = block(nn.rms_norm {}(x))
    local bias = g.weight("gate_bias", "dim", { init = { "uniform", 0.5 }, decay = 0.1 })
    return x + g.sigmoid(bias) * y
  end)
end

--- A gated unit written out, with a dim of its own and a row of it made of weights alone.
local function unit(axis, size)
  return nn.graph("unit", function(g, x)
    g.dim("inner", size, axis)
    local up, gate = g.weight("up", "inner dim"), g.weight("gate", "inner dim")
    local row = g.weight("row", "inner", { init = { "uniform", 1 } })
    local y = g.silu(g.matmul(x, gate)) * g.matmul(x, up) * g.tanh(row)
    return g.matmul(y, g.weight("down", "dim inner"))
  end)
end

local function attention(options)
  local own = models.with({ heads = 4, kv_heads = 2 }, options or {})
  return nn.residual { nn.rms_norm {}, nn.attention(own) }
end

--- The feed-forward net of all layers is one set of weights.
local function shared_layer()
  return { attention(), nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 48, name = "/ffn" } } }
end

--- Layers that share their KV heads among ranks in different ways.
local function grouped_layer(i)
  local mixer = attention { heads = 8, kv_heads = 8 >> i, bias = true } -- 4, 2, 1
  return { mixer, nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 48 } } }
end

--- Both norms over the heads of a graph, cut over tp, with an odd number in a leaf.
local function head_norms_layer()
  local each = nn.graph("each", function(g, x)
    g.dim("groups", 12, "tp")
    g.dim("group", 5)
    local y = g.matmul(x, g.weight("up", "groups group dim"))
    local norm = nn.rms_norm { name = "own" }
    y = nn.layer_norm { name = "other" }(norm(y))
    return g.matmul(y, g.weight("down", "dim groups group"))
  end)
  return { attention(), nn.residual { nn.rms_norm {}, each } }
end

local function linear_layer(bias)
  local into, back = { out = 9, bias = bias }, { out = 32, bias = bias, name = "back" }
  return function()
    return { attention(), nn.residual { nn.rms_norm {}, nn.linear(into), nn.linear(back) } }
  end
end

local function graph_layer(axis, size)
  return function()
    local mixer = nn.attention { heads = 4, kv_heads = 2 }
    return { gated(mixer, "mixer"), gated(unit(axis, size), "channel") }
  end
end

--- Rows that are sums of rows, all made of weights alone, and used more than once.
local function sum_of_rows_layer()
  local rows = nn.graph("rows", function(g, x)
    local given = { init = { "uniform", 0.5 } }
    local a, b = g.weight("a", "dim", given), g.weight("b", "dim", given)
    local c = g.tanh(a) * g.sigmoid(b) + (a - b)
    return x * c + g.gelu(x) * b + c
  end)
  return { attention(), nn.residual { nn.rms_norm {}, rows } }
end

--- A loss from the middle of the trunk: the square of what one learned direction sees.
local function extra_loss_layer()
  local probe = nn.graph("probe", function(g, x)
    local y = g.matmul(x, g.weight("direction", "dim", { init = 0.1 })) -- (tokens)
    g.add_loss("probe", g.square(y), 0.1)
    return x
  end)
  return { attention(), probe, nn.residual { nn.rms_norm {}, nn.gelu { hidden = 48 } } }
end

--- What a unit sees, balanced by a bias that is a state: half of the tokens shall pass a channel.
--- The dim may be cut over tp; `speed` is a function of the step.
local function balanced(axis, size)
  local function speed(step) return step < 3 and 0.05 or 0.01 end
  return nn.graph(axis and "cut" or "whole", function(g, x)
    g.dim("inner", size, axis)
    local bias = g.state("bias", "inner", { init = { "uniform", 0.1 } })
    local seen = g.matmul(x, g.weight("up", "inner dim")) + bias
    local load = g.named("load", g.mean(g.relu(g.sign(seen))))
    g.update(bias, bias + g.sign(0.5 - load) * speed)
    return x + g.matmul(g.relu(seen), g.weight("down", "dim inner"))
  end)
end

--- A moving average of the stream, read back by every token, and a count of steps; one average for
--- all layers where `shared`.
local function averaged(shared)
  return function(i)
    local level = nn.graph("level", function(g, x)
      local level = g.state(shared and "/level" or "level", "dim", { init = { "constant", 0.25 } })
      local steps = g.state("steps")
      g.update(steps, steps + 1)
      if not shared or i == 2 then
        g.update(level, 0.75 * level + 0.25 * g.mean(x) * g.exp(-steps))
      end
      return x + 0.1 * x * level + (level - 3) * 0.01 * steps
    end)
    return { attention(), balanced("tp", 24), level, balanced(nil, 9) }
  end
end

--- States of the head, made of sums of every layer and of what the loss is; two of them exchange.
local function across_layers()
  local sums = {}
  local function layer(i)
    return { attention(), nn.graph("sum", function(g, x)
      sums[i] = g.sum(x * x)
      return x
    end), nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 48 } } }
  end
  local function loss(g, logits, targets)
    local energy, other = g.state("energy", "dim"), g.state("other", "dim", { init = "ones" })
    local hardness = g.state("hardness")
    local each = g.cross_entropy(logits, targets)
    g.update(energy, other)
    g.update(other, energy + (sums[1] * 0.001 - sums[2] / 1000) / (sums[1] + 1))
    g.update(hardness, g.mean(each))
    g.add_loss("spread", g.square(g.logsumexp(logits, "vocab")), 0.001)
    return each * g.exp(-0.01 * hardness)
  end
  return { layer = layer, loss = loss }
end

--- Latent attention, its turned channels beside others, and a value of a third width.
local function latent_layer(options)
  local own = models.with({ heads = 4, kv_rank = 10, nope_dim = 6, rope_dim = 4 }, options)
  return function()
    return {
      nn.residual { nn.rms_norm {}, nn.mla(own) },
      nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 48 } },
    }
  end
end

local yarn = { base = 100, scaling = { "yarn", factor = 4, original = 16, beta_fast = 4,
  mscale = 1, mscale_all_dim = 0.7 } }

local function square_of_logsumexp(g, logits, targets)
  return g.cross_entropy(logits, targets) + 0.01 * g.square(g.logsumexp(logits, "vocab"))
end

local wide = { heads = 8, kv_heads = 2, leaves = { tp = 8, dp = 4 } }
local gpt = {
  layer_norm = true, gelu = true, positions = 19, tied = true, rope = false, bias = true,
  norm = nn.layer_norm { name = "norm" },
}
local long_heads = { { "*.q", "*.k", init = 0.3 } } -- a norm of a short head bends: no slope to see
local long_latents = { { "*.kv_a", init = 0.3 } }
local f32_vectors = { { "*.gain", "*_bias", dtype = "f32" } }
local rates = {
  { "*.gain", lr_scale = 0.5, decay = 0.2 }, { "*.o", decay = 0, lr_scale = 2 },
  { "*.up", init = { "uniform", 0.1 } },
  { "*.down", init = function(i) return (i % 7 - 3) / 50 end },
}

return {
  { "plain", {} },
  { "kv heads shared by ranks, leaves.tp 8", wide },
  { "kv heads shared by ranks", models.with(wide, { leaves = { tp = 4, dp = 4 } }) },
  { "kv heads shared in three ways", { layer = grouped_layer, layers = 3 } },
  { "one kv head with biases", { heads = 4, kv_heads = 1, bias = true } },
  { "as many kv heads as heads", { kv_heads = 4 } },
  { "biases and shared kv heads", models.with(wide, { bias = true }) },
  { "gpt", gpt },
  { "tied, three layers", { tied = true, layers = 3 } },
  { "dropout", { dropout = 0.2 } },
  { "dropout and shared kv heads", models.with(wide, { dropout = 0.1 }) },
  { "a sliding window", { window = 5 } },
  { "short documents", { documents = true } },
  { "short documents and a window", { documents = true, window = 3, length = 32 } },
  { "label smoothing and z", { loss = { "cross_entropy", smoothing = 0.1, z = 0.01 } } },
  { "a loss function", { loss = square_of_logsumexp } },
  { "one net for all layers", { layer = shared_layer, layers = 3 } },
  { "linears in the trunk", { layer = linear_layer(true), layers = 3 } },
  { "linears in the trunk, length 20", { layer = linear_layer(false), length = 20 } },
  { "linears in the trunk, length 18", { layer = linear_layer(true), length = 18 } },
  { "a graph, dim over tp", { layer = graph_layer("tp", 24) } },
  { "a graph, dim not cut", { layer = graph_layer(nil, 23) } },
  { "sums of rows of weights", { layer = sum_of_rows_layer } },
  { "a loss of the trunk", { layer = extra_loss_layer } },
  { "states", { layer = averaged(false) } },
  { "a state that all layers share", { layer = averaged(true), layers = 3 } },
  { "states across layers", across_layers() },
  { "states, 6 samples, length 18", { layer = averaged(false), samples = 6, micro = 3,
    length = 18 } },
  { "a frozen table", { weights = { { "embed", frozen = true } } } },
  { "a frozen tied table", { tied = true, weights = { { "embed", frozen = true } } } },
  { "weight rules", { weights = rates } },
  { "f32 vectors", { weights = f32_vectors, bias = true } },
  { "a vocabulary of 7", { vocab = 7 } },
  { "a vocabulary of 130", { vocab = 130, tied = true } },
  { "6 samples on 8 leaves", { samples = 6, micro = 3 } },
  { "12 samples on 8 leaves", { samples = 12, micro = 3 } },
  { "length 28", { length = 28 } },
  { "norms of heads", { qk_norm = true, head_dim = 20, weights = long_heads } },
  { "norms of shared kv heads", models.with(wide, { qk_norm = { eps = 1e-3 }, documents = true,
    weights = long_heads }) },
  { "norms of 12 heads", { heads = 12, kv_heads = 12, head_dim = 6, qk_norm = true,
    weights = long_heads } },
  { "norms of heads in a graph", { layer = head_norms_layer } },
  { "partial rotation", { rope = { base = 100, dim = 4 } } },
  { "latent attention", { layer = latent_layer {}, weights = long_latents } },
  { "latent queries, short documents, yarn", { documents = true, layers = 3,
    weights = { { "*.kv_a", "*.q_a", init = 0.3 } },
    layer = latent_layer { q_rank = 9, v_dim = 10, rope = yarn } } },
  { "latent attention of 24 heads, halves, leaves.tp 8", models.with(wide, { length = 32,
    weights = long_latents,
    layer = latent_layer { heads = 24, q_rank = 9, v_dim = 3, rope = { interleaved = false } } }) },
  { "interleaved rotation", { rope = { base = 1000, interleaved = true } } },
}
