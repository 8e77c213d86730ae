--- Every section and field of the recipe language, once.
--
-- This list drives the checks, the error messages, `./tl explain` and the reference of all fields
-- in the documentation. A section is { doc, fields in order, refused = { key = reason } }; a field
-- is { name, type, default, doc, unit, required, ... }. Types are the words of types.lua, or
--
--     "choice"     one of `values`
--     "section"    a table with the fields of the section `of`
--     "list"       a sequence whose entries are of type `of`
--     "form"       a name, a table that starts with the name, or a function: one of forms[`of`]
--
-- A form is { names = { name = section }, default, number = name that a bare number means,
-- call = whether a function will do, refused = { name = reason } }.
local sorted_keys = require "tidelock.text.sorted_keys"

local fields = { sections = {}, forms = {} }

local function field(name, kind, doc, more)
  local entry = { name = name, type = kind, doc = doc }
  for key, value in pairs(more or {}) do entry[key] = value end
  return entry
end

local function required(more)
  more = more or {}
  more.required = true
  return more
end

local function section(name, doc, list, more)
  local entry = { name = name, doc = doc, fields = list, by_name = {}, refused = {} }
  for key, value in pairs(more or {}) do entry[key] = value end
  for _, one in ipairs(list) do entry.by_name[one.name] = one end
  fields.sections[name] = entry
end

--- The names of a section's fields in bytewise order.
function fields.names(name)
  return sorted_keys(fields.sections[name].by_name)
end

local later = "not available in this version"

--- What other programs call the dtypes, and what comes nearest to those that are not here.
local dtypes = {
  fp32 = "f32", float32 = "f32", float = "f32", bfloat16 = "bf16", fp16 = "bf16", f16 = "bf16",
  float16 = "bf16", half = "bf16", ["torch.bfloat16"] = "bf16", ["torch.float32"] = "f32",
}

-- The recipe itself -----------------------------------------------------------------------------

section("recipe", "What tl.recipe takes.", {
  field(
    "model", "module", "the model, made by nn.decoder", required { example = "nn.decoder { ... }" }
  ),
  field(
    "dtype",
    "choice",
    "dtype of weights and activations",
    { values = { "f32", "bf16" }, others = dtypes, default = "f32" }
  ),
  field("weights", "list", "rules for weights: the last that names a field wins", {
    of = "rule",
    default = {},
  }),
  field(
    "loss", "form", "the loss of one target token; Tidelock sums and divides once", { of = "loss" }
  ),
  field("data", "data", "where samples come from: tl.data.text, tl.data.tokens, tl.data.mix",
    required {
    example = "tl.data.text { \"text/*.txt\" }",
  }),
  field("eval", "section", "a held-out set, scored between steps", { of = "eval" }),
  field("batch", "section", "how many tokens a step sees", required { of = "batch" }),
  field(
    "layout", "section", "how the model is spread over ranks; changes no bit", { of = "layout" }
  ),
  field("blocks", "section", "block sizes of kernels", { of = "blocks" }),
  field("policy", "form", "what is promised about bits", { of = "policy" }),
  field("train", "section", "steps, learning rate, optimizer", required { of = "train" }),
  field("device", "choice", "where it runs", {
    values = { "host", "cuda" }, default = "host", others = { cpu = "host", gpu = "cuda" },
  }),
  field("log", "section", "what is printed and recorded", { of = "log" }),
  field("serve", "section", "room for requests, when the model generates text", { of = "serve" }),
})

section("batch", "The batch of one step.", {
  field("samples", "count", "samples of a step, over all ranks", required { unit = "samples" }),
  field("micro", "count", "samples of a micro-batch on one rank; unset: all samples of the rank", {
    unit = "samples",
  }),
  field("length", "count", "tokens of a sample", required { unit = "tokens" }),
})

section("eval", "A held-out set.", {
  field("data", "data", "the held-out data, for example from data:split(0.99)", required()),
  field("every", "count", "steps between evaluations", { default = 100, unit = "steps" }),
  field("samples", "count", "samples of one evaluation", required { unit = "samples" }),
})

section("layout", "Sizes of the parallel axes and how they are used.", {
  field("tp", "count", "tensor parallel ranks", { default = 1, unit = "ranks" }),
  field("cp", "count", "context parallel ranks; refused above 1", {
    default = 1, unit = "ranks",
  }),
  field("pp", "count", "pipeline stages", { default = 1, unit = "ranks" }),
  field("dp", "count", "data parallel ranks", { default = 1, unit = "ranks" }),
  field("ep", "count", "expert parallel ranks, over tp x dp; unset: tp with experts, else 1", {
    unit = "ranks",
  }),
  field("order", "string", "axes from neighbours to far", { default = "tp-cp-dp-pp" }),
  field(
    "sequence_parallel", "boolean", "norms and residuals cut over tp by tokens", { default = true }
  ),
  field(
    "schedule", "choice",
    "order of micro-batches in the pipeline; or a function(pp_rank, size, micros); gpipe with tp "
      .. "on GPUs: pairs of micro-batches hide each other's messages", {
      values = { "1f1b", "gpipe", "interleaved", "zb-h1" },
      default = "1f1b",
      call = true,
    }
  ),
  field("virtual_stages", "count", "pieces of the model on one pipeline rank", { default = 1 }),
  field(
    "stages",
    "stages",
    "layers of each pipeline stage, as { 3, 3, 2 } or \"3 3 2\"; unset: balanced"
  ),
  field("zero", "whole", "ZeRO stage; refused above 0", { default = 0 }),
  field("cp_map", "choice", "which tokens a cp rank has; refused: it needs cp", {
    values = { "contiguous", "zigzag" },
  }),
  field("cp_balance", "choice", "how cp borders are placed; refused: it needs cp", {
    values = { "tokens", "cost" },
  }),
  field("experts", "placement", "which rank of ep has an expert: \"contiguous\", \"modulo\", or a "
    .. "list of ranks by expert", { default = "contiguous" }),
  field("all_to_all", "choice", "the way that rows of experts take", {
    values = { "auto", "flat", "hierarchical", "ring" }, default = "auto",
  }),
  field("island", "count", "ranks of ep with fast links between them; unset: all", {
    unit = "ranks",
  }),
  field("all_to_all_threshold", "positive", "for auto with known link speeds: hierarchical where "
    .. "links of an island are so many times the network's; unset: 4"),
})

section("blocks", "Sizes of kernels. Only attention.kv and attention.split can change bits.", {
  field("attention", "section", "attention", { of = "blocks.attention" }),
  field("gemm", "section", "matrix products", { of = "blocks.gemm" }),
  field("moe", "section", "mixtures of experts", { of = "blocks.moe" }),
})

section("blocks.attention", "Blocks of attention.", {
  field("q", "count", "query rows of a tile, 64 or 128; unset: the kernel chooses; speed only", {
    unit = "rows",
  }),
  field("kv", "count",
    "keys of a block, from the segment start; unset: 128, or 64 above head_dim 128", {
    unit = "keys",
  }),
  field("split", "count", "keys after which a row's sums are closed and merged", {
    default = 8192,
    unit = "keys",
  }),
})

section("blocks.gemm", "Tile of a matrix product; speed only.", {
  field("m", "count", "rows", { position = 1 }),
  field("n", "count", "columns", { position = 2 }),
  field("k", "count", "depth", { position = 3 }),
  field("provider", "choice", "who multiplies on a GPU: our kernels; for each shape the faster of "
    .. "them and cuBLASLt; cuBLASLt wherever it is proven to give their bits",
    { values = { "own", "auto", "cublaslt" }, default = "auto" }),
})

section("blocks.moe", "Experts; speed only.", {
  field("waves", "count", "groups of a rank's experts, one after the other", { default = 1 }),
  field("buffers", "count", "waves whose rows are there at once", { default = 2 }),
  field("keep", "boolean", "whether the backward pass finds the rows of the forward pass, or sends "
    .. "and computes them again; unset: with one wave"),
})

-- Policy ----------------------------------------------------------------------------------------

section("policy", "What is promised about bits.", {
  field("leaves", "section", "leaves of the trees over ranks", { of = "policy.leaves" }),
  field("arithmetic", "choice", "of matrix products: fma for f32, sm_90 for bf16 unless set", {
    values = { "fma", "sm_80", "sm_90" },
  }),
  field("seed", "whole", "of initial weights, dropout and data order", { default = 0 }),
})

section("policy.leaves", "Leaves of the trees: powers of two that tp, dp and cp divide.", {
  field("tp", "count", "leaves of sums over features, heads and the vocabulary"),
  field("dp", "count", "leaves of sums over samples"),
  field("cp", "count", "runs that a sample is cut into; refused above 1"),
})

fields.forms.policy = {
  names = { layout = "policy", batch = "policy", fast = "policy" },
  default = "layout",
}

-- Training --------------------------------------------------------------------------------------

section("train", "Training.", {
  field("steps", "count", "steps of the run", required { unit = "steps" }),
  field("lr", "form", "learning rate", required { of = "lr" }),
  field("warmup", "whole", "linear warm-up before a constant lr", { unit = "steps" }),
  field("clip", "positive", "gradients are scaled down to this norm; unset: never"),
  field("optimizer", "form", "how weights are changed", { of = "optimizer" }),
  field("save", "off_or_section", "checkpoints; false: none", {
    of = "train.save", example = "{ every = 50 }",
  }),
  field("recompute", "any", "activations made again in the backward pass; refused"),
  field("loss_scale", "any", "scaling of the loss; refused: bf16 needs none"),
})

section("train.save", "Checkpoints.", {
  field("every", "count", "steps between checkpoints; unset: only at the end", { unit = "steps" }),
  field("dir", "string", "folder; unset: the run folder"),
  field("keep", "count", "newest checkpoints that are kept; unset: all"),
})

section("lr.constant", "One learning rate.", {
  field("value", "not_negative", "learning rate", required { position = 2 }),
  field("warmup", "whole", "linear warm-up from 0", { default = 0, unit = "steps" }),
})
section("lr.cosine", "Half a cosine from peak to floor.", {
  field("peak", "not_negative", "highest learning rate", required()),
  field("floor", "not_negative", "learning rate of the last step and after it", { default = 0 }),
  field("warmup", "whole", "linear warm-up from 0", { default = 0, unit = "steps" }),
  field("steps", "count", "where the floor is reached; unset: train.steps", { unit = "steps" }),
})
section("lr.warmup_stable_decay", "Constant, then linear to floor.", {
  field("peak", "not_negative", "highest learning rate", required()),
  field("floor", "not_negative", "learning rate of the last step and after it", { default = 0 }),
  field("warmup", "whole", "linear warm-up from 0", { default = 0, unit = "steps" }),
  field("decay", "count", "steps of the fall at the end", required { unit = "steps" }),
  field("steps", "count", "where the floor is reached; unset: train.steps", { unit = "steps" }),
})
fields.forms.lr = {
  names = {
    constant = "lr.constant",
    cosine = "lr.cosine",
    warmup_stable_decay = "lr.warmup_stable_decay",
  },
  number = "constant",
  call = true,
  refused = {
    linear = "write { \"warmup_stable_decay\", peak = .., warmup = .., decay = .. }",
    wsd = "write { \"warmup_stable_decay\", peak = .., warmup = .., decay = .. }",
    cosine_with_warmup = "write { \"cosine\", peak = .., floor = .., warmup = .. }",
  },
}

section("optimizer.adamw", "AdamW, decoupled decay of matrices, or of what weight rules say.", {
  field("beta1", "fraction", "decay of the first moment", { default = 0.9 }),
  field("beta2", "fraction", "decay of the second moment", { default = 0.95 }),
  field("eps", "positive", "added to the root of the second moment", { default = 1e-8 }),
  field("decay", "not_negative", "weight decay", { default = 0.1 }),
})
fields.forms.optimizer = {
  names = { adamw = "optimizer.adamw" },
  default = "adamw",
  refused = {
    muon = later,
    lion = later,
    adafactor = later,
    sgd = later,
    adam = "write \"adamw\" with decay = 0",
  },
}

section("loss.cross_entropy", "Softmax cross entropy of the next token.", {
  field(
    "smoothing",
    "fraction",
    "share of the target spread evenly over the vocabulary",
    { default = 0 }
  ),
  field("z", "not_negative", "weight of the squared log of the softmax sum", { default = 0 }),
})
fields.forms.loss = {
  names = { cross_entropy = "loss.cross_entropy" }, default = "cross_entropy", call = true,
}

section("log", "What is printed and recorded.", {
  field(
    "every", "count", "steps between lines away from a terminal", { default = 10, unit = "steps" }
  ),
  field("replicas", "whole", "steps between comparisons of what several ranks hold alike; 0: at "
    .. "the start only", { default = 100, unit = "steps" }),
  field("watch", "list", "values to record, as \"PATTERN:mean\" or rms, max, norm, hash", {
    of = "watch",
    default = {},
  }),
})

section("serve", "Generation; no field changes a bit of a request.", {
  field("context", "count", "tokens of a request, prompt included; unset: batch.length", {
    unit = "tokens",
  }),
  field("page", "count", "positions of a page of keys and values", {
    default = 64, unit = "positions",
  }),
  field("pages", "count", "pages of the pool; unset: a whole context for every request", {
    unit = "pages",
  }),
  field("rows", "count", "most rows of a step: tokens of prompts and tokens that are made", {
    default = 256, unit = "rows",
  }),
  field("requests", "count", "most requests at a time; others wait", {
    default = 16, unit = "requests",
  }),
})

-- Weight rules ----------------------------------------------------------------------------------

section("weights", "One rule: patterns of names, then fields.", {
  field("init", "form", "initial values", { of = "init" }),
  field("decay", "not_negative", "weight decay"),
  field("lr_scale", "not_negative", "factor on the learning rate"),
  field("dtype", "choice", "dtype", { values = { "f32", "bf16" }, others = dtypes }),
  field("frozen", "boolean", "never changed"),
  field("from", "string", "folder of a run or checkpoint to start from"),
  field("optimizer", "form", "optimizer of these weights; refused: all share train.optimizer", {
    of = "optimizer",
  }),
}, {
  positional = "patterns",
  refused = {
    lr = "no such key; write lr_scale = 0.1, a factor on the rate of train.lr",
    weight_decay = "no such key; write decay = ..",
    std = "no such key; write init = .., the standard deviation",
  },
})

section("init.normal", "Normal draws.", {
  field("std", "not_negative", "standard deviation", { position = 2, default = 0.02 }),
  field("mean", "number", "mean", { default = 0 }),
})
section("init.uniform", "Uniform draws from -range to range.", {
  field("range", "not_negative", "largest absolute value", required { position = 2 }),
})
section(
  "init.constant", "One value.", { field("value", "number", "value", required { position = 2 }) }
)
section("init.zeros", "0.", {})
section("init.ones", "1.", {})
fields.forms.init = {
  names = {
    normal = "init.normal",
    uniform = "init.uniform",
    constant = "init.constant",
    zeros = "init.zeros",
    ones = "init.ones",
  },
  number = "normal",
  call = true,
}

require "tidelock.language.modules"(section, field, required, fields.forms)

--- The sections of a recipe that have a field `key`, for a key written one level too high.
function fields.homes(key)
  local homes = {}
  for _, entry in ipairs(fields.sections.recipe.fields) do
    local inner = entry.type == "section" and fields.sections[entry.of]
    inner = inner or entry.of == "policy" and fields.sections.policy
    if inner and inner.by_name[key] then homes[#homes + 1] = entry.name end
  end
  return homes
end

return fields
