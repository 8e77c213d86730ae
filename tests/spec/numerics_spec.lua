--- Tidelock and the oracle (tests/oracle), which was written from docs/numerics.md alone, train the
--- same small models and must print the same bits: loss, gradient norm, weights and the optimizer's
--- state, step by step. The state is the sharpest: a moment moves with the last bit of a gradient.
local driver = require "tidelock.run.driver"
local support = require "support"
local tl = require "tidelock"

local licences = "/usr/share/common-licenses/"
local texts = {
  licences .. "GPL-3", licences .. "Apache-2.0", licences .. "BSD", licences .. "MPL-2.0",
}

--- The layers of recipes/quickstart.lua, or others with what those leave out.
local recipe = [[
local tl = require "tidelock"
local nn = tl.nn
local kept = nn.graph("kept", function(g, x)
  local level = g.state("level", "dim", { init = { "constant", 0.25 } })
  g.update(level, 0.75 * level + 0.25 * g.mean(x))
  return x + x * level
end)
--- A list without the entries that are false.
local function those(list)
  local present = {}
  for i = 1, 4 do present[#present + 1] = list[i] or nil end
  return present
end
local function quickstart()
  return those {
    nn.residual { nn.rms_norm {},
      nn.attention { heads = $heads, kv_heads = $kv_heads, qk_norm = $qk_norm == 1 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = $hidden } },
    $level == 1 and kept,
    $linear == 1 and nn.linear { out = $dim },
  }
end
local function mixture()
  local router = { ({ [0] = "softmax", "sigmoid", "sqrt_softplus", "hash" })[$router],
    scale = $scale, normalize = $normalize == 1 }
  if $router < 3 then router.groups, router.top_groups = $groups, $top_groups
  else router.seed = $router_seed end
  local balance = $balance > 0 and ($moves == 1 and { "bias", speed = $balance }
    or { "loss", weight = $balance }) or nil
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = $heads, kv_heads = $kv_heads } },
    nn.residual { nn.rms_norm {}, nn.moe { experts = $experts, top_k = $top_k, hidden = $hidden,
      shared = $shared, router = router, balance = balance } },
  }
end
local yarn = { "yarn", factor = 3, original = 32, beta_fast = 4, mscale = 1, mscale_all_dim = 0.7 }
local function latent()
  return {
    nn.residual {
      nn.rms_norm {},
      nn.mla {
        heads = $heads, q_rank = $q_rank > 0 and $q_rank or nil, kv_rank = $kv_rank,
        nope_dim = $nope_dim, rope_dim = $rope_dim, v_dim = $v_dim,
        rope = { base = 100, scaling = $yarn == 1 and yarn or nil },
      },
    },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = $hidden } },
  }
end
local function gpt()
  return those {
    nn.residual {
      nn.layer_norm {},
      nn.attention { heads = $heads, kv_heads = $kv_heads, bias = true, rope = false },
      dropout = $dropout,
    },
    nn.residual { nn.layer_norm {}, nn.gelu { hidden = $hidden, bias = true }, dropout = $dropout },
    $level == 1 and kept,
    $linear == 1 and nn.linear { out = $dim, bias = true },
  }
end
local models = {
  [0] = { layer = $mla == 1 and latent or $experts > 0 and mixture or quickstart },
  {
    layer = gpt, tied = true, positions = $length, dropout = $dropout,
    norm = nn.layer_norm { name = "norm" },
  },
}
local model = models[$gpt]
model.vocab, model.dim, model.layers = $vocab, $dim, $layers
return tl.recipe {
  model = nn.decoder(model),
  dtype = ({ [0] = "f32", "bf16" })[$bf16],
  loss = { "cross_entropy", smoothing = $smoothing, z = $z },
  data = tl.data.text { $texts },
  batch = { samples = $samples, micro = $micro, length = $length },
  layout = { $layout },
  blocks = { attention = { kv = $kv_block, split = $split } },
  policy = { "layout", leaves = { tp = $leaves_tp, dp = $leaves_dp }, seed = $seed },
  train = {
    steps = $total, clip = $clip,
    lr = { "cosine", peak = $peak, warmup = $warmup, floor = $floor },
  },
}
]]

--- Options of both; `micro` and `layout` are Tidelock's alone: they change no bit.
local common = {
  gpt = 0, qk_norm = 0, linear = 0, level = 0, layers = 2, kv_block = 128, split = 8192, steps = 2,
  warmup = 1, total = 10, peak = 3e-3, floor = 3e-4, clip = 1, dropout = 0, smoothing = 0, z = 0,
  layout = "", mla = 0, yarn = 0, q_rank = 1, kv_rank = 1, nope_dim = 1, rope_dim = 2, v_dim = 1,
  experts = 0, top_k = 1, shared = 0, router = 0, groups = 1, top_groups = 1, normalize = 1,
  scale = 1, moves = 0, balance = 0, router_seed = 0,
}

local cases = {
  {
    name = "the quickstart's layers on eight ranks, f32", -- six samples for eight leaves
    linear = 1, bf16 = 0, vocab = 200, dim = 64, heads = 8, kv_heads = 2, hidden = 150, samples = 6,
    length = 72, leaves_tp = 4, leaves_dp = 8, kv_block = 16, split = 32, seed = 5, micro = 1,
    layout = "tp = 2, dp = 2, pp = 2",
  },
  {
    name = "the quickstart's layers with states, bf16",
    level = 1, steps = 3,
    bf16 = 1, vocab = 200, dim = 64, heads = 8, kv_heads = 2, hidden = 150, samples = 6,
    length = 70, leaves_tp = 4, leaves_dp = 8, kv_block = 16, split = 32, seed = 5, micro = 3,
  },
  {
    name = "norms of heads on four ranks, bf16", -- runs of three heads
    qk_norm = 1, bf16 = 1, vocab = 200, dim = 48, heads = 12, kv_heads = 6, hidden = 100,
    samples = 6, length = 72, leaves_tp = 4, leaves_dp = 4, kv_block = 16, split = 32, seed = 5,
    micro = 3, layout = "tp = 2, dp = 2",
  },
  {
    name = "norms of heads, one KV head, f32",
    qk_norm = 1, bf16 = 0, vocab = 200, dim = 64, heads = 4, kv_heads = 1, hidden = 100,
    samples = 4, length = 70, leaves_tp = 2, leaves_dp = 4, kv_block = 16, split = 32, seed = 6,
    micro = 2,
  },
  {
    name = "biases, dropout, learned positions, a tied head and states, f32",
    level = 1, steps = 3,
    gpt = 1, bf16 = 0, vocab = 200, dim = 48, heads = 4, kv_heads = 4, hidden = 100, samples = 6,
    length = 71, leaves_tp = 4, leaves_dp = 4, seed = 9, micro = 3, clip = 0.1, dropout = 0.1,
    smoothing = 0.1, z = 1e-3,
  },
  {
    name = "biases, dropout, learned positions and a tied head, bf16",
    gpt = 1, linear = 1, bf16 = 1, vocab = 200, dim = 48, heads = 4, kv_heads = 1, hidden = 100,
    samples = 4, length = 76, leaves_tp = 4, leaves_dp = 2, seed = 9, micro = 2, clip = 1e3,
    dropout = 0.1, smoothing = 0.1, z = 1e-3,
  },
  {
    name = "latent attention, latent queries and stretched waves, f32",
    mla = 1, yarn = 1, q_rank = 20, kv_rank = 24, nope_dim = 10, rope_dim = 6, v_dim = 7,
    bf16 = 0, vocab = 200, dim = 48, heads = 8, kv_heads = 8, hidden = 100, samples = 6,
    length = 72, leaves_tp = 4, leaves_dp = 4, kv_block = 16, split = 32, seed = 5, micro = 3,
    layout = "tp = 2, pp = 2",
  },
  {
    name = "latent attention of six heads, bf16", -- two leaves of three heads
    mla = 1, q_rank = 0, kv_rank = 24, nope_dim = 10, rope_dim = 6, v_dim = 12,
    bf16 = 1, vocab = 200, dim = 48, heads = 6, kv_heads = 6, hidden = 100, samples = 6,
    length = 70, leaves_tp = 4, leaves_dp = 4, kv_block = 16, split = 32, seed = 5, micro = 3,
  },
  {
    name = "experts, a shared one and the loss of balance, on four ranks, f32",
    experts = 6, top_k = 2, shared = 2, scale = 1.7, balance = 0.02, steps = 3,
    bf16 = 0, vocab = 200, dim = 48, heads = 4, kv_heads = 2, hidden = 20, samples = 6,
    length = 72, leaves_tp = 4, leaves_dp = 8, kv_block = 16, split = 32, seed = 5, micro = 1,
    layout = "tp = 2, dp = 2, ep = 2",
  },
  {
    name = "experts of groups that a bias balances, bf16", -- no shared one
    experts = 8, top_k = 3, router = 1, groups = 4, top_groups = 2, scale = 2.5, moves = 1,
    balance = 0.05, steps = 3,
    bf16 = 1, vocab = 200, dim = 40, heads = 4, kv_heads = 4, hidden = 24, samples = 6,
    length = 70, leaves_tp = 4, leaves_dp = 4, kv_block = 16, split = 32, seed = 7, micro = 3,
  },
  {
    name = "experts with weights as they are, f32",
    experts = 5, top_k = 2, shared = 1, normalize = 0, scale = 1.5, balance = 0.1,
    bf16 = 0, vocab = 200, dim = 40, heads = 4, kv_heads = 1, hidden = 18, samples = 4,
    length = 68, leaves_tp = 2, leaves_dp = 4, kv_block = 16, split = 32, seed = 3, micro = 2,
    layout = "ep = 1, pp = 2",
  },
  {
    name = "experts by square roots of softplus, bf16",
    experts = 6, top_k = 2, shared = 1, router = 2, groups = 3, top_groups = 2, scale = 1.5,
    bf16 = 1, vocab = 200, dim = 40, heads = 4, kv_heads = 1, hidden = 20, samples = 4,
    length = 68, leaves_tp = 4, leaves_dp = 2, kv_block = 16, split = 32, seed = 3, micro = 2,
  },
  {
    name = "experts by a hash of the token, f32",
    experts = 7, top_k = 2, router = 3, normalize = 0, router_seed = 11,
    bf16 = 0, vocab = 200, dim = 40, heads = 4, kv_heads = 2, hidden = 20, samples = 4,
    length = 68, leaves_tp = 4, leaves_dp = 2, kv_block = 16, split = 32, seed = 3, micro = 2,
    layout = "dp = 2",
  },
  {
    name = "leaves of more than one block of 8,192 tokens", -- 35 samples of 256 tokens each
    bf16 = 0, vocab = 130, dim = 16, layers = 1, heads = 2, kv_heads = 1, hidden = 24, samples = 70,
    length = 256, leaves_tp = 4, leaves_dp = 2, seed = 1, micro = 7, steps = 1,
  },
}

local function options_of(case)
  local all = {}
  for key, value in pairs(common) do all[key] = value end
  for key, value in pairs(case) do all[key] = value end
  return all
end

local function command(text)
  local pipe = assert(io.popen(text .. " 2>&1"))
  local output = pipe:read "a"
  return output, pipe:close()
end

--- Compiles the oracle beside the program under test; returns its path.
local function compile()
  local path = support.program:gsub("[^/]*$", "numerics_oracle")
  local flags = "-std=c11 -O2 -Wall -Wextra -Werror -ffp-contract=off"
  local output, good = command(("%s %s tests/oracle/*.c -lm -o '%s'"):format(os.getenv "CC" or "cc",
    flags, path))
  assert(good, output)
  return path
end

local function lines_of_oracle(path, options)
  local words = { ("'%s'"):format(path) }
  for _, name in ipairs {
    "bf16", "gpt", "qk_norm", "linear", "level", "mla", "yarn", "q_rank", "kv_rank", "nope_dim",
    "rope_dim", "v_dim", "experts", "top_k", "shared", "router", "groups", "top_groups",
    "normalize", "scale", "moves", "balance", "router_seed", "vocab", "dim", "layers", "heads",
    "kv_heads", "hidden", "samples", "length", "leaves_tp", "leaves_dp", "kv_block", "split",
    "seed", "steps", "warmup", "total", "peak", "floor", "clip", "dropout", "smoothing", "z",
  } do
    words[#words + 1] = name .. "=" .. options[name]
  end
  local output, good = command(table.concat(words, " ") .. " " .. table.concat(texts, " "))
  assert(good, output)
  return output
end

local function lines_of_tidelock(folder, options)
  local list = {}
  for i, path in ipairs(texts) do list[i] = ("%q"):format(path) end
  options.texts = table.concat(list, ", ")
  local path = folder:write("recipe.lua", (recipe:gsub("%$([%w_]+)", options)))
  local run <close> = driver.start(tl.load(path), {})
  local lines = {}
  for i = 1, options.steps do
    local step = run:step()
    lines[i] = ("%d %s %s %s %s\n"):format(i, step.loss_bits, step.grad_norm_bits,
      run:weights_hash(), run:optimizer_hash())
  end
  return table.concat(lines)
end

describe("docs/numerics.md gives the bits of", function()
  local folder, oracle
  setup(function() folder, oracle = require "support.folder" (), compile() end)
  teardown(function() folder:remove() end)

  for _, case in ipairs(cases) do
    it(case.name, function()
      local options = options_of(case)
      assert.equal(lines_of_oracle(oracle, options), lines_of_tidelock(folder, options))
    end)
  end
end)
