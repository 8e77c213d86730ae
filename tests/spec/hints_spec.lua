-- Keys of other programs: every hint says what to write here, and what it says is accepted.
local commands = require "tidelock.commands"
local fields = require "tidelock.language.fields"
local hints = require "tidelock.language.hints"
local new_folder = require "support.folder"
local plan = require "tidelock.plan"
local recipes = require "tidelock.language.recipe"
local serving_hints = require "tidelock.commands.serving_hints"

--- What a user might write for "..": by field, or by the words that stand before it.
local values = {
  ["rope = { dim"] = "4",
  beta1 = "0.9", beta2 = "0.95", base = "10000", bias = "true", clip = "1.0", decay = "2",
  dim = "64", dp = "2", ep = "1", dropout = "0.1", eos = "0", eps = "1e-6",
  every = "2", experts = "4",
  factor = "8", floor = "1e-5", head_dim = "8", heads = "8", hidden = "96", init = "0.01",
  keep = "3", kv = "64", kv_heads = "4", layers = "4", length = "32", lr = "1e-3", micro = "2",
  original = "4096", peak = "1e-3", positions = "64", pp = "2", q = "64", samples = "8",
  seed = "7", smoothing = "0.1", steps = "10", top_k = "2", tp = "2", virtual_stages = "2",
  kv_rank = "16", nope_dim = "8", q_rank = "24", rope_dim = "8", v_dim = "8",
  vocab = "256", warmup = "2", window = "16", z = "1e-4",
}

local function filled(code)
  code = code:gsub("rope = { dim = %.%.", "rope = { dim = " .. values["rope = { dim"])
  code = code:gsub("([%w_]+) = %.%.([ ,}])", function(key, rest)
    return ("%s = %s%s"):format(key, assert(values[key], "no value for " .. key), rest)
  end)
  return (code:gsub("([%w_]+) = %.%.$", function(key) return key .. " = " .. values[key] end))
end

--- A recipe in whose parts a piece of a hint takes the place of what stands there.
local template = [[
local tl = require "tidelock"
local nn = tl.nn
local train, held = tl.data.text { "README.md" }:split(0.5)
local function with(base, more)
  for key, value in pairs(more) do base[key] = value end
  return base
end
local function layer()
  return {
    nn.residual(with({ nn.rms_norm {}, nn.attention(with({ heads = 8, kv_heads = 4 }, ATTENTION)) },
      RESIDUAL)),
    nn.residual { NORM, FORWARD },
  }
end
return tl.recipe(with({
  model = nn.decoder(with({ vocab = 256, dim = 64, layers = 4, layer = layer }, DECODER)),
  data  = train,
  batch = with({ samples = 8, micro = 2, length = 32 }, BATCH),
  train = with({ steps = 10, lr = 1e-3 }, TRAIN),
}, { RECIPE }))
]]

local parts = {
  ["nn.attention"] = "ATTENTION", ["nn.residual"] = "RESIDUAL", ["nn.decoder"] = "DECODER",
  batch = "BATCH", train = "TRAIN",
}

--- The recipe's text with `code` in its place.
local function applied(code)
  local text = { ATTENTION = "{}", RESIDUAL = "{}", DECODER = "{}", BATCH = "{}", TRAIN = "{}",
    NORM = "nn.rms_norm {}", FORWARD = "nn.swiglu { hidden = 96 }", RECIPE = "" }
  local head = code:match "^nn%.%w+" or code:match "^%w+"
  if parts[head] then
    text[parts[head]] = code:match("{.*}$"):gsub("%.%.%., ", "")
  elseif head:find "_norm$" then
    text.NORM = code
  elseif head:find "^nn%." then
    text.FORWARD = code
  else
    text.RECIPE = code
  end
  return (template:gsub("%f[%w_]%u+%f[^%w_]", text))
end

describe("a hint", function()
  local folder = new_folder()
  teardown(function() folder:remove() end)

  --- Whether what a hint says to write is accepted; and the message when it is not.
  local function accepted(code)
    if code:sub(1, 2) == "--" then
      local option, value = code:match "^(%S+) (%u+)$"
      return pcall(commands.parse, { "run", "r.lua", option, value == "N" and "2" or value })
    end
    local path = folder:write("hint.lua", applied(filled(code)))
    return pcall(function() return plan(recipes.load(path), "shard") end)
  end

  local pieces, refused = {}, {}
  for _, key in ipairs(hints.keys()) do
    local codes, others = hints.pieces(key)
    for _, code in ipairs(codes) do pieces[code] = key end
    for _, code in ipairs(others) do refused[code] = key end
  end
  local function sorted(set)
    local list = {}
    for code in pairs(set) do list[#list + 1] = code end
    table.sort(list)
    return list
  end

  it("says something that is accepted, or to leave the key out", function()
    for _, code in ipairs(sorted(pieces)) do
      local good, message = accepted(code)
      assert.is_true(good, ("%s: %s\n%s"):format(pieces[code], code, tostring(message)))
    end
    for _, key in ipairs(hints.keys()) do
      local left_out = hints.of(key):find("leave it out", 1, true) ~= nil
      assert.equal(#hints.pieces(key) == 0, left_out, key)
    end
  end)

  it("says that something is not available only as long as that is true", function()
    local list = sorted(refused)
    assert.is_true(#list > 0)
    for _, code in ipairs(list) do
      local good, message = accepted(code)
      assert.is_false(good, code .. " is accepted now: let its hint say so")
      assert.matches("not available in this version", tostring(message), 1, true)
    end
  end)

  it("stands in the message about its key, whatever the section", function()
    local keys = hints.keys()
    for i = 1, #keys, 37 do
      local key = keys[i]
      if not fields.sections.train.by_name[key] then
        local small = recipes.load("tests/support/small.lua", { "train." .. key .. "=1" })
        local good, message = pcall(plan, small, "check")
        local text = "command line: train." .. key .. ": no such key; " .. hints.of(key)
        assert.is_false(good)
        assert.equal(text .. "\n1 error; nothing was started", tostring(message))
      end
    end
  end)

  it("is found in any case and with dashes, and not for words of the language alone", function()
    assert.equal(hints.of "num_layers", hints.of "Num-Layers")
    assert.is_nil(hints.of "tp")
    assert.is_nil(hints.of(7))
  end)

  it("on the command line is an override where one field is the answer", function()
    local text = hints.on_command_line "tensor-parallel-size"
    assert.equal("write layout.tp=.. (in a recipe: layout = { tp = .. })", text)
    local tried = {}
    for _, key in ipairs(hints.keys()) do
      local word = hints.on_command_line(key):match "^write (%w+%.[%w_]+)=%.%. "
      if word and not tried[word] then
        tried[word] = true
        local value = values[word:match "[%w_]+$"]
        local recipe = recipes.load("tests/support/small.lua", { word .. "=" .. value })
        assert.is_true(pcall(plan, recipe, "check"), word .. "=" .. value)
      end
    end
  end)
end)

describe("the options of other servers and generators", function()
  local numbers = { FILE = "x", TEXT = "x", N = "2", X = "0.5" }

  it("lead to words that are accepted", function()
    local tried = {}
    for command, words in pairs(serving_hints.all()) do
      for word, hint in pairs(words) do
        local code = hint.code
        assert.equal(code == nil, hint.text:find "; leave it out$" ~= nil, word)
        if code and code:find "^%-%-" then
          local option, value = code:match "^(%S+) (%u+)$"
          local list = { command, "m", option, numbers[value] }
          if command == "generate" then table.insert(list, 3, "p") end
          local request = commands.parse(list)
          assert.is_not_nil(next(request.options), code)
        elseif code and not tried[code] then
          tried[code] = true
          local small = recipes.load("tests/support/small.lua", { (code:gsub("%.%.$", "2")) })
          local good, message = pcall(plan, small, "check")
          assert.is_true(good, code .. ": " .. tostring(message))
        end
      end
    end
    assert.is_truthy(tried["serve.context=.."] and tried["layout.tp=.."])
  end)

  it("are told where they are written, in any case and with dashes", function()
    local function told(...)
      local good, problem = pcall(commands.parse, { ... })
      assert.is_false(good)
      return problem.message
    end
    assert.equal("tidelock: serve: no option --max-model-len; write serve.context=.. behind the "
      .. "model", told("serve", "m", "--max-model-len", "4096"))
    assert.equal("tidelock: generate: no option --Max_New_Tokens=3; write --tokens N",
      told("generate", "m", "p", "--Max_New_Tokens=3"))
    assert.matches("serve: no option %-%-tokens; serve has ", told("serve", "m", "--tokens", "3"))
  end)
end)

describe("the usual keys of other programs", function()
  --- From DeepSpeed's configuration, Megatron-LM's arguments, config.json and TrainingArguments of
  --- Hugging Face, nanoGPT, torchtitan, Axolotl and LLaMA-Factory.
  local usual = [[
    overlap_comm initializer_range d_model n_heads n_layers block_size grad_clip optim vocab seq_len
    max_seq_len context_length learning_rate lr_scheduler_type warmup_steps weight_decay betas
    gradient_accumulation_steps micro_batch_size global_batch_size fp16 bf16 mixed_precision
    tie_word_embeddings num_key_value_heads hidden_size intermediate_size rms_norm_eps rope_theta
    parallel_mode flash_attn_version tensor_model_parallel_size zero_optimization offload
    train_micro_batch_size_per_gpu gradient_clipping activation_checkpointing
    pipeline_model_parallel_size num_query_groups ffn_hidden_size clip_grad adam_beta1
    num_hidden_layers num_attention_heads vocab_size max_position_embeddings hidden_act torch_dtype
    attn_implementation sliding_window per_device_train_batch_size max_grad_norm num_train_epochs
    gradient_checkpointing logging_steps save_steps eval_steps report_to output_dir
    resume_from_checkpoint fsdp torch_compile n_embd n_head n_layer max_iters beta2 min_lr dropout
    compile out_dir tensor_parallel_degree pipeline_parallel_degree context_parallel_degree
    data_parallel_shard_degree enable_async_tensor_parallel local_batch_size sequence_len
    sample_packing cutoff_len flash_attention load_in_4bit lora_r val_set_size num_experts
    num_experts_per_tok expert_parallel_degree capacity_factor deterministic seed tokenizer
  ]]

  it("all have a hint, or are keys here", function()
    for key in usual:gmatch "%S+" do
      assert.is_truthy(hints.of(key) or fields.sections.recipe.by_name[key], key)
    end
  end)
end)
