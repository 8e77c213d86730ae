--- The options of every nn module: the second half of the list in fields.lua.
--
-- Each nn.NAME { ... } is checked against the section "nn.NAME". `positional` says what the entries
-- without a key are; `refused` names options that other programs have and no operator here has.
return function(section, field, required, forms)
  local name = field("name", "string", "renames; \"/ffn\" shares the weights of that root name")

  section("nn.decoder", "A causal language model: embedding, layers, final norm, head.", {
    field("vocab", "count", "size of the vocabulary; padded to 16 x leaves.tp inside", required()),
    field("dim", "count", "width of the residual stream", required()),
    field("layers", "count", "number of layers", required()),
    field("layer", "call", "layer(i, n): the modules of layer i of n, from 1", required {
      hint = "write layer = layer: the function, not what a call of it gives",
    }),
    field("positions", "count", "longest sample of a learned position table; unset: no table"),
    field("tied", "boolean", "the head uses the embedding's weight", { default = false }),
    field("norm", "module", "norm before the head; unset: nn.rms_norm {}"),
    field("dropout", "fraction", "dropout of the embedding", { default = 0 }),
  })

  section("nn.from_hf", "A model from a folder of Hugging Face: config.json and safetensors.", {
    field("folder", "string", "the folder, from the current one", required { position = 1 }),
    field("ignore", "list", "fields of config.json that need not be known", { of = "string" }),
    field("bias_speed", "not_negative", "how far a step moves the bias that chooses experts, where "
      .. "the model has one", { default = 0 }),
  })

  section("nn.attention", "Causal attention inside each segment, with grouped kv heads.", {
    field("heads", "count", "query heads", required()),
    field("kv_heads", "count", "key and value heads; unset: heads"),
    field("head_dim", "count", "width of a head; unset: dim / heads"),
    field(
      "rope", "switch", "rotary positions: true, false or { base, scaling, ... }",
      { of = "nn.attention.rope", example = "{ base = 10000 }", default = true }
    ),
    field(
      "qk_norm", "switch", "an RMS norm of each head of q and k: true or { eps = 1e-6 }",
      { of = "nn.attention.qk_norm", example = "{ eps = 1e-6 }", default = false }
    ),
    field("window", "count", "keys that a query sees, itself included; unset: all before it"),
    field("bias", "boolean", "biases in q, k, v and o", { default = false }),
    name,
  }, {
    refused = {
      dropout = "the op attention has no dropout on probabilities; put nn.dropout { rate = .. "
        .. "} behind it",
      alibi = "the op attention has no ALiBi; use rope = true, or positions = N of nn.decoder",
    },
  })

  section("nn.mla", "Causal attention whose keys and values come from one latent of each token.", {
    field("heads", "count", "heads, each with keys and values of its own", required()),
    field("kv_rank", "count", "width of the latent that keys and values are made of", required()),
    field("q_rank", "count", "width of the latent that queries are made of; unset: none"),
    field("nope_dim", "count", "channels of a head that do not turn", required()),
    field("rope_dim", "count", "channels of a head that turn, an even number; of the key they are "
      .. "one for all heads", required()),
    field("v_dim", "count", "width of a head's value; unset: nope_dim"),
    field(
      "rope", "section", "rotary positions of the channels that turn", { of = "nn.mla.rope" }
    ),
    field("eps", "positive", "of the norms of both latents", { default = 1e-6 }),
    name,
  }, {
    refused = {
      kv_heads = "each head has keys of its own, made of the latent; leave it out",
      head_dim = "a head is nope_dim + rope_dim wide; write these",
      window = "the latent attention of this version sees all keys before a query; leave it out",
      bias = "its linears have no biases; leave it out",
    },
  })
  section("nn.mla.rope", "Rotary positions of latent attention.", {
    field("base", "positive", "base of the wave lengths", { default = 10000 }),
    field("interleaved", "boolean", "pairs are neighbours, not halves", { default = true }),
    field("scaling", "form", "stretched wave lengths", { of = "scaling" }),
  })

  section("nn.attention.qk_norm", "Norms of heads, with gains q_norm.gain and k_norm.gain.", {
    field("eps", "positive", "added to the mean square", { default = 1e-6 }),
  })
  section("nn.attention.rope", "Rotary positions.", {
    field("base", "positive", "base of the wave lengths", { default = 10000 }),
    field("interleaved", "boolean", "pairs are neighbours, not halves", { default = false }),
    field("dim", "count", "channels of a head that turn, an even number; unset: all"),
    field("scaling", "form", "stretched wave lengths", { of = "scaling" }),
  })
  section("scaling.linear", "All waves are stretched.", {
    field("factor", "positive", "factor of all waves", required()),
  })
  section("scaling.llama3", "Long waves are stretched, short ones kept.", {
    field("factor", "positive", "factor of long waves", { default = 8 }),
    field("low", "positive", "low_freq_factor", { default = 1 }),
    field("high", "positive", "high_freq_factor", { default = 4 }),
    field(
      "original",
      "count",
      "length the model was first trained for",
      { default = 8192, unit = "tokens" }
    ),
  })
  section("scaling.yarn", "Long waves are stretched, short ones kept, angles grow louder.", {
    field("factor", "positive", "factor of long waves", required()),
    field("original", "count", "length the model was first trained for",
      required { unit = "tokens" }),
    field("beta_fast", "positive", "waves that turn more often in that length are kept",
      { default = 32 }),
    field("beta_slow", "positive", "waves that turn less often are stretched by factor",
      { default = 1 }),
    field("attention_factor", "positive", "multiplies cosines and sines; unset: from mscale"),
    field("mscale", "not_negative", "0.1 mscale ln(factor) + 1 multiplies them", { default = 0 }),
    field("mscale_all_dim", "not_negative", "the same with this divides them, and nn.mla "
      .. "multiplies its softmax scale by its square", { default = 0 }),
  })
  forms.scaling = {
    names = { linear = "scaling.linear", llama3 = "scaling.llama3", yarn = "scaling.yarn" },
  }

  section("nn.rms_norm", "x / sqrt(mean(x^2) + eps) * gain.", {
    field("eps", "positive", "added to the mean square", { default = 1e-6 }),
    name,
  })
  section("nn.layer_norm", "(x - mean) / sqrt(var + eps) * gain + bias.", {
    field("eps", "positive", "added to the variance", { default = 1e-5 }),
    name,
  }, {
    refused = {
      bias = "the op layer_norm always adds a bias; { \"*.layer_norm.bias\", frozen = true } in "
        .. "weights keeps it at 0",
    },
  })

  local hidden = field("hidden", "count", "width inside", required())
  section("nn.swiglu", "down(silu(gate(x)) * up(x)).", {
    hidden,
    field("bias", "boolean", "biases in gate, up and down", { default = false }),
    name,
  })
  section("nn.gelu", "down(gelu(up(x))).", {
    hidden,
    field("bias", "boolean", "biases in up and down", { default = false }),
    name,
  })
  section("nn.linear", "x W^T + bias.", {
    field("out", "count", "width of the result", required()),
    field("bias", "boolean", "with a bias", { default = false }),
    name,
  })
  section("nn.dropout", "Each value is 0 with probability `rate`; keyed by logical position.", {
    field("rate", "fraction", "share of zeros", required()),
    name,
  })
  section("nn.residual", "x + the entries, one after the other, of x.", {
    field("dropout", "fraction", "dropout of the branch", { default = 0 }),
    name,
  }, { positional = "modules" })

  local dropless = "under the policies \"layout\" and \"batch\" no token is ever dropped: what "
    .. "becomes of it would depend on its neighbours; leave it out"
  section("nn.moe", "A mixture of experts.", {
    field("experts", "count", "routed experts", required()),
    field("top_k", "count", "experts of a token", required()),
    field("hidden", "count", "width inside an expert", required()),
    field("shared", "whole", "experts that see every token", { default = 0 }),
    field("router", "form", "how experts are chosen; unset: \"softmax\"", { of = "router" }),
    field("balance", "form", "how load is kept even; unset: \"none\"", { of = "balance" }),
    name,
  }, {
    refused = {
      bias = "experts have no biases; leave it out",
      capacity_factor = dropless, capacity = dropless, drop_tokens = dropless,
    },
  })

  local router = {
    field("groups", "count", "groups of experts", { default = 1 }),
    field("top_groups", "count", "groups that a token may use"),
    field("scale", "positive", "factor on the weights", { default = 1 }),
    field("normalize", "boolean", "weights of the chosen experts sum to scale", { default = true }),
  }
  section("router.softmax", "Scores by softmax.", router)
  section("router.sigmoid", "Scores by sigmoid.", router)
  section("router.sqrt_softplus", "Scores by the root of softplus.", router)
  section("router.hash", "Experts of a token by its id, from a frozen table; scores weigh.", {
    field("seed", "whole", "of the permutations that the table is made of", { default = 0 }),
    field("scale", "positive", "factor on the weights", { default = 1 }),
    field("normalize", "boolean", "weights of the chosen experts sum to scale", { default = true }),
  })
  forms.router = {
    names = {
      softmax = "router.softmax",
      sigmoid = "router.sigmoid",
      sqrt_softplus = "router.sqrt_softplus",
      hash = "router.hash",
    },
    default = "softmax",
  }

  section("balance.none", "Nothing keeps load even.", {})
  section("balance.bias", "A bias of each expert moves against its load after every step.", {
    field(
      "speed",
      "number_or_call",
      "step of the bias, or a function of the step",
      required { position = 2 }
    ),
  })
  local no_batch = "over a batch it would need every routing of the step before the first backward "
    .. "pass, and a token would depend on its neighbours"
  local one_form = "the loss has one form, that of each sample, mean over samples: " .. no_batch
    .. "; leave it out"
  section("balance.loss", "An extra loss.", {
    field("weight", "not_negative", "its weight", required { position = 2 }),
  }, {
    refused = { batch = one_form, form = one_form, over = one_form, per = one_form,
      scope = one_form },
  })
  local of_samples = "write { \"loss\", weight = .. }, the mean over samples"
  local of_batch = no_batch .. "; " .. of_samples
  forms.balance = {
    names = { none = "balance.none", bias = "balance.bias", loss = "balance.loss" },
    default = "none",
    refused = {
      batch = of_batch, batch_loss = of_batch, global_aux_loss = of_batch, global_batch = of_batch,
      aux_loss = of_samples, sample = of_samples, seq_aux_loss = of_samples, sequence = of_samples,
    },
  }
end
