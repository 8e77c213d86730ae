--- mixtures.lua - small models with experts, for the specs of planner and driver.
local nn = require("tidelock").nn

local mixtures = {}

--- Options of models.recipe for a model whose layers have these experts.
function mixtures.with(moe, more)
  local all = {
    layers = 2, samples = 8, length = 16, micro = 2,
    layer = function(i)
      local dense = i == 2 and more and more.second_dense
      return {
        nn.residual { nn.rms_norm {}, nn.attention { heads = 4, kv_heads = 2 } },
        nn.residual { nn.rms_norm {}, dense and nn.swiglu { hidden = 48 } or nn.moe(moe) },
      }
    end,
  }
  for key, value in pairs(more or {}) do all[key] = value end
  return all
end

--- The models that tests go through: { name, options }.
mixtures.zoo = {
  { "softmax, top 2 of 8", mixtures.with { experts = 8, top_k = 2, hidden = 24 } },
  { "with a shared expert and a balance loss", mixtures.with { experts = 8, top_k = 3, hidden = 16,
    shared = 2, balance = { "loss", weight = 0.05 } } },
  { "sigmoid in groups", mixtures.with { experts = 8, top_k = 2, hidden = 16,
    router = { "sigmoid", groups = 4, top_groups = 2, scale = 2.5 } } },
  { "sqrt softplus, all experts", mixtures.with { experts = 4, top_k = 4, hidden = 16,
    router = { "sqrt_softplus", scale = 1.5 } } },
  { "by hash", mixtures.with { experts = 8, top_k = 3, hidden = 16,
    router = { "hash", seed = 7, scale = 1.5 } } },
  { "latent attention, a dense layer first, sigmoid in groups, a bias", {
    layers = 2, samples = 8, length = 16, micro = 2,
    layer = function(i)
      local attention = { heads = 4, q_rank = 9, kv_rank = 10, nope_dim = 6, rope_dim = 4 }
      local experts = { experts = 8, top_k = 2, hidden = 16, shared = 1,
        router = { "sigmoid", groups = 4, top_groups = 2, scale = 2.5 },
        balance = { "bias", 0.01 } }
      return {
        nn.residual { nn.rms_norm {}, nn.mla(attention) },
        nn.residual { nn.rms_norm {}, i == 1 and nn.swiglu { hidden = 48 } or nn.moe(experts) },
      }
    end,
  } },
  { "softmax, not normalized, top 1", mixtures.with { experts = 4, top_k = 1, hidden = 20,
    router = { "softmax", normalize = false } } },
}

return mixtures
