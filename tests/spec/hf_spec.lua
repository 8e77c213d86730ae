--- Models of Hugging Face folders: the numbers of PyTorch, the bits of any layout, named mistakes.
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local hf = require "support.hf"
local new_folder = require "support.folder"
local support = require "support"
local tl = require "tidelock"

local tolerance = 2e-5

local function contains(part, text)
  assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
end

local function close(folder, got, want, what)
  local worst, place = hf.worst(folder, got, want)
  assert.is_true(worst <= tolerance, ("%s: %s is off by %.3g"):format(what, place, worst))
end

local layouts = {
  { ["layout.tp"] = 2 }, { ["layout.pp"] = 2 }, { ["layout.tp"] = 2, ["layout.pp"] = 2 },
}
local of_experts = {
  { ["layout.tp"] = 2, ["layout.ep"] = 2 }, { ["layout.pp"] = 2 },
  { ["layout.tp"] = 2, ["layout.ep"] = 2, ["layout.pp"] = 2 },
}
local families = { "llama", "qwen3", "qwen3_yarn", "mixtral", "qwen3_moe", "deepseek_v3",
  "deepseek_v3_half" }
local in_hf_tiny = { "llama", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3" }

--- Packed in one sample in every layout, and each sequence alone.
local function parity(golden)
  local experts = hf.facts(golden.folder).experts
  local packed = hf.run(golden.folder, golden.input_ids)
  close(golden.folder, packed, golden.batch, "packed")
  for i, layout in ipairs(experts and of_experts or layouts) do
    assert.equal(packed.bits, hf.run(golden.folder, golden.input_ids, layout).bits, "layout " .. i)
  end
  local values, row = packed.logits:bits(), 0
  for i, ids in ipairs(golden.input_ids) do
    local alone = hf.run(golden.folder, { ids })
    close(golden.folder, alone, golden.single[i], "sequence " .. i)
    local own, width = alone.logits:bits(), packed.logits:shape()[2]
    for at = 1, #ids * width do assert.equal(values[row * width + at], own[at]) end
    row = row + #ids
    local tp = { ["layout.tp"] = 2, ["layout.sequence_parallel"] = #ids % 2 == 0 }
    if experts then tp = #ids % 2 == 0 and of_experts[1] or of_experts[2] end
    assert.equal(alone.bits, hf.run(golden.folder, { ids }, tp).bits, "sequence " .. i)
  end
end

describe("what transformers computes", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  for _, family in ipairs(families) do
    it("is what " .. family .. " gives: logits, loss, every gradient", function()
      parity(hf.golden(folder:path(family), family))
    end)

    it("is what " .. family .. " generates, token by token", function()
      local golden = hf.golden(folder:path(family), family)
      local ids, count = golden.input_ids[1], #golden.greedy
      local function generated(...) return hf.generated(golden.folder, ids, count, ...) end
      assert.same(golden.greedy, generated { "serve.page=5" })
      assert.same(golden.greedy, generated({ "serve.page=32" }, 2))
      assert.same(golden.greedy, generated { "layout.tp=2" })
      assert.same(golden.greedy, generated({ "layout.pp=2", "layout.tp=2" }, 3))
    end)
  end

  for _, family in ipairs(in_hf_tiny) do
    it("is what the " .. family .. " of hf_tiny gives", function()
      local golden = hf.tiny(family)
      if not golden then return pending "needs ../shared/data/hf_tiny" end
      parity(golden)
    end)
  end

  it("is what stories260k gives", function()
    local stories = support.shared "data/stories260k"
    if not stories then return pending "needs ../shared/data/stories260k" end
    local all = core.json.decode(core.files.read_all(stories .. "/logits.json"))
    for _, prompt in ipairs(all.prompts) do
      local got = hf.run(stories, { prompt.ids })
      local flat, width = got.logits:flat(), got.logits:shape()[2]
      local first = (#prompt.ids - 1) * width
      for i, want in ipairs(prompt.logits) do
        assert.is_true(math.abs(flat[first + i] - want) <= all.tolerance, prompt.name .. " " .. i)
      end
      if type(prompt.mean_nll) == "number" then
        assert.is_true(math.abs(got.loss - prompt.mean_nll) <= all.tolerance, prompt.name)
      end
    end
  end)
end)

describe("a model of a folder", function()
  local folder, root
  before_each(function()
    folder = new_folder()
    root = hf.write(folder:path "model", "qwen3")
  end)
  after_each(function() folder:remove() end)

  --- Bytes of all tensors of a folder.
  local function tensor_bytes(path)
    local file <close>, bytes = core.weights.open(path .. "/model.safetensors"), 0
    for _, name in ipairs(file:names()) do
      local _, shape = file:look(name)
      bytes = bytes + shape[1] * (shape[2] or 1) * 4
    end
    return bytes
  end

  local ids = { 5, 17, 3, 88, 9, 41, 2, 60 }

  local function started(path, fields, how)
    return driver.start(hf.recipe(path or root, { ids }, fields), how)
  end

  it("has the tensors' bits, in any layout; a rank reads its own slices", function()
    local bytes = {}
    for i, fields in ipairs { {}, { ["layout.tp"] = 2 }, { ["layout.pp"] = 2 } } do
      local run <close> = started(nil, fields)
      local file <close> = core.weights.open(root .. "/model.safetensors")
      for _, name in ipairs { "embed_tokens", "layers.1.self_attn.k_proj", "norm" } do
        local ours = name:gsub("embed_tokens", "embed"):gsub("self_attn.k_proj", "attention.k")
          :gsub("^norm", "norm.gain")
        assert.bits(file:read("model." .. name .. ".weight"), run:weight(ours))
      end
      bytes[i] = run.loaded_bytes
    end
    local all, embed, replicated = tensor_bytes(root), 96 * 48 * 4, (5 * 48 + 4 * 16) * 4
    assert.same({ all, all + replicated, all + embed }, bytes) -- norms twice; the tied table twice
  end)

  it("trains in bf16 from masters that are the file's", function()
    local run <close> = started(nil, { dtype = "bf16", ["train.lr"] = 1e-3 })
    local file <close> = core.weights.open(root .. "/model.safetensors")
    local name = "model.layers.0.mlp.gate_proj.weight"
    assert.bits(file:read(name), run:master "layers.0.swiglu.gate")
    local before = run:weights_hash()
    run:step()
    assert.not_equal(before, run:weights_hash())
  end)

  it("goes on from a checkpoint in another layout, with the same bits", function()
    local fields = { ["train.lr"] = 1e-2, ["train.steps"] = 4 }
    local straight <close> = started(nil, fields)
    local saved
    for i = 1, 4 do
      straight:step()
      if i == 2 then saved = straight:save(folder:path "checkpoints") end
    end
    fields["layout.tp"] = 2
    local resumed <close> = started(nil, fields, { resume = saved })
    for _ = 1, 2 do resumed:step() end
    assert.equal(straight:weights_hash(), resumed:weights_hash())
  end)

  it("reads bf16 and f16 files", function()
    local wide <close> = core.weights.open(root .. "/model.safetensors")
    for _, dtype in ipairs { "BF16", "F16" } do
      local other, entries = folder:path(dtype), {}
      core.files.mkdirs(other)
      for i, name in ipairs(wide:names()) do
        entries[i] = { name = name, file = wide, entry = name, dtype = dtype }
      end
      core.weights.write(other .. "/model.safetensors", entries, {})
      folder:write(dtype .. "/config.json", core.files.read_all(root .. "/config.json"))
      local narrow <close> = core.weights.open(other .. "/model.safetensors")
      for _, own in ipairs { "f32", "bf16" } do
        local run <close> = started(other, { dtype = own })
        assert.bits(narrow:read("model.embed_tokens.weight", "f32"), run:master "embed")
      end
    end
  end)

  it("keeps the bias that chooses experts, unless the recipe moves it", function()
    root = hf.write(folder:path "deep", "deepseek_v3")
    local file <close> = core.weights.open(root .. "/model.safetensors")
    local bias = file:read "model.layers.1.mlp.gate.e_score_correction_bias"
    local function after(options)
      local run <close> = driver.start(hf.recipe(options, { ids }, { dtype = "bf16" }))
      run:step()
      return run:weight "layers.1.moe.bias"
    end
    assert.bits(bias, after(root))
    local moved, changed = after({ root, bias_speed = 0.125 }):flat(), 0
    for e, before in ipairs(bias:flat()) do
      local by = math.abs(moved[e] - before)
      assert.is_true(by == 0 or math.abs(by - 0.125) < 1e-6)
      changed = changed + (by > 0 and 1 or 0)
    end
    assert.is_true(changed > 0)
  end)

  it("takes weight rules: a frozen table, values of its own, another run", function()
    local run <close> = started(nil, { weights = {
      { "embed", frozen = true }, { "*.q_norm.gain", init = { "constant", 2 } },
      { "*.down", lr_scale = 0.5 } }, ["train.lr"] = 1e-2 })
    local embed = run:weight "embed"
    run:step()
    assert.bits(embed, run:weight "embed")
    local again <close> = started(nil, { weights = { { "*.q_norm.gain",
      init = { "constant", 2 } } } })
    assert.same({ 2, 2 }, { table.unpack(again:weight("layers.1.attention.q_norm.gain"):flat(), 1,
      2) })
  end)

  it("has one key for the same bytes, wherever and in however many files they are", function()
    local whole <close> = started()
    local other = hf.write(folder:path "other", "qwen3")
    local half, map = hf.tensors(root), {}
    local first = { table.unpack(half, 1, #half // 2) }
    local second = { table.unpack(half, #half // 2 + 1) }
    for i, list in ipairs { first, second } do
      local name = ("model-%05d-of-00002.safetensors"):format(i)
      core.weights.write(other .. "/" .. name, list, {})
      for _, entry in ipairs(list) do map[entry.name] = name end
    end
    os.remove(other .. "/model.safetensors")
    folder:write("other/model.safetensors.index.json", core.json.encode { weight_map = map })
    local sharded <close> = started(other)
    assert.equal(whole.plan.key, sharded.plan.key)
    assert.equal(whole:weights_hash(), sharded:weights_hash())
    second[1].tensor:fill(0.5)
    core.weights.write(other .. "/model-00002-of-00002.safetensors", second, {})
    local changed <close> = started(other)
    assert.not_equal(whole.plan.key, changed.plan.key)
  end)
end)

describe("recipes/hf_finetune.lua", function()
  it("trains a model of a folder, says what it read, and exports it", function()
    local folder = new_folder()
    local root = hf.write(folder:path "model", "llama")
    local ids = {}
    for i = 1, 600 do ids[i] = i * i % 96 end
    local tokens = folder:write_tokens("book.bin", ids, "I4")
    local text, status = support.run(("run recipes/hf_finetune.lua folder=%s tokens=%s "
      .. "train.steps=2 batch.length=130 batch.samples=2 layout.tp=2 --runs %s"):format(root,
      tokens, folder:path "runs"))
    assert.equal(0, status, text)
    contains("loaded     " .. root .. ": 0.", text)
    contains(" MiB read in ", text)
    contains("length 130 is beyond the 128 positions that this model was trained for", text)
    local run = text:match "saved%s+(%S+):"
    text, status = support.run(("export %s %s --format hf"):format(run, folder:path "out"))
    assert.equal(0, status, text)
    assert.equal(130, hf.facts(folder:path "out").context)
    text = support.run(("explain recipes/hf_finetune.lua --weights folder=%s"):format(root))
    contains("model.layers.0.self_attn.q_proj.weight", text)
    folder:remove()
  end)
end)

describe("a folder that is no model of ours", function()
  local folder, root
  before_each(function()
    folder = new_folder()
    root = hf.write(folder:path "model", "qwen3")
  end)
  after_each(function() folder:remove() end)

  local function message()
    local good, problem = pcall(tl.nn.from_hf, root)
    assert.is_false(good)
    assert.equal(2, problem.status)
    return problem.message
  end

  --- config.json with these fields; core.json.null takes one out.
  local function with(fields, family)
    local text = core.files.read_all("tests/golden/hf/" .. (family or "qwen3") .. ".config.json")
    local values = core.json.decode(text)
    for key, value in pairs(fields) do values[key] = value end
    folder:write("model/config.json", core.json.encode(values))
  end

  it("names the fields that cannot be computed, all at once", function()
    with { hidden_act = "gelu", attention_dropout = 0.1, rope_scaling = core.json.null,
      rope_parameters = { rope_type = "longrope", factor = 4.0 },
      quantization_config = { bits = 8 },
      hidden_size = core.json.null, num_attention_heads = "four", novel_gate = true,
      tie_word_embeddings = 1, layer_types = { "full_attention", "linear_attention" } }
    local text = message()
    for _, part in ipairs {
      "config.json: hidden_act = \"gelu\"; only \"silu\" is available",
      "attention_dropout = 0.1; only 0 is available",
      "rope_parameters.rope_type = \"longrope\"; only \"default\", \"linear\", \"llama3\" and "
        .. "\"yarn\" are available",
      "quantization_config = a table; only nil is available: weights of 16 or 32 bits",
      "hidden_size is missing: a positive integer",
      "num_attention_heads = \"four\"; it is a positive integer",
      "tie_word_embeddings = 1; it is true or false",
      "layer_types[1] = \"linear_attention\"; only \"full_attention\"",
      "novel_gate = true; no such field is known here", "9 errors; nothing was started",
    } do contains(part, text) end
  end)

  it("names families that are not there", function()
    for name, why in pairs { deepseek_v32 = "indexer", deepseek_v4 = "hyper-connections",
      gpt2 = "there are deepseek_v3, llama, mixtral, qwen3, qwen3_moe",
      deepseek_v2 = "its files are not read in this version" } do
      with { model_type = name }
      local text = message()
      contains(("model_type = %q; "):format(name), text)
      contains(why, text)
    end
    with { architectures = { "Qwen3ForSequenceClassification" } }
    contains("only \"Qwen3ForCausalLM\" is available", message())
  end)

  it("names what deepseek_v3 has and no module can do", function()
    with({ num_key_value_heads = 2, head_dim = 12, n_group = 3, topk_method = "greedy",
      scoring_func = "softmax", moe_layer_freq = 2, attention_bias = true,
      quantization_config = { quant_method = "fp8", weight_block_size = { 128, 128 } },
      rope_parameters = { rope_type = "yarn", factor = 0, truncate = false } }, "deepseek_v3")
    local text = message()
    for _, part in ipairs {
      "num_key_value_heads = 2; only 4 is available: every head has keys of its own",
      "head_dim = 12; only 8 is available: transformers keeps qk_rope_head_dim there",
      "n_group = 3; it divides n_routed_experts 8", "topk_method = \"greedy\"; only \"noaux_tc\"",
      "scoring_func = \"softmax\"; only \"sigmoid\"", "moe_layer_freq = 2; only 1",
      "attention_bias = true; only false is available",
      "quantization_config = a table; only nil is available: weights of 16 or 32 bits",
      "rope_parameters.factor = 0; it is a number above 0",
      "rope_parameters.original_max_position_embeddings is missing",
      "rope_parameters.truncate = false; only true is available", "11 errors",
    } do contains(part, text) end
  end)

  it("names what deepseek_v3 has of another kind", function()
    with({ qk_rope_head_dim = "x", n_group = -1, first_k_dense_replace = "x",
      num_experts_per_tok = 0 }, "deepseek_v3")
    local text = message()
    contains("n_group = -1; it is", text)
    contains("first_k_dense_replace = \"x\"; it is", text)
    contains("num_experts_per_tok = 0; it is", text)
    contains("qk_rope_head_dim = \"x\"; it is", text)
    contains("4 errors", text)
  end)

  it("has no bias to move in families without one", function()
    local good, problem = pcall(tl.nn.from_hf, { root, bias_speed = 1e-3 })
    assert.is_false(good)
    contains("bias_speed = 0.001, and no bias chooses experts in qwen3; leave it out",
      problem.message)
  end)

  it("may have layers for further tokens, which are left aside", function()
    root = hf.write(folder:path "deep", "deepseek_v3") -- 3 layers, and one further
    local entries = hf.tensors(root)
    local function with_tensor(name)
      local list = table.move(entries, 1, #entries, 1, {})
      list[#list + 1] = { name = name, tensor = core.tensor("f32", { 48, 96 }) }
      core.weights.write(root .. "/model.safetensors", list, {})
    end
    with_tensor "model.layers.3.eh_proj.weight"
    tl.nn.from_hf(root)
    with_tensor "model.layers.4.eh_proj.weight"
    contains("tensor model.layers.4.eh_proj.weight belongs to no weight", message())
    with_tensor "model.layers.2.eh_proj.weight"
    contains("tensor model.layers.2.eh_proj.weight belongs to no weight", message())
  end)

  it("may hold fields that the recipe waives", function()
    with { novel_gate = true, sparkle = 3 }
    tl.nn.from_hf { root, ignore = { "novel_gate", "sparkle" } }
    local good = pcall(tl.nn.from_hf, { root, ignore = { "sparkle" } })
    assert.is_false(good)
  end)

  it("names missing tensors, wrong shapes, other dtypes and needless tensors together", function()
    local entries = hf.tensors(root)
    for _, entry in ipairs(entries) do
      if entry.name == "model.norm.weight" then entry.tensor = core.tensor("f32", { 7 })
      elseif entry.name == "model.layers.0.mlp.up_proj.weight" then
        entry.name = "model.extra.weight"
      elseif entry.name == "model.layers.1.mlp.up_proj.weight" then
        entry.tensor = core.tensor("i32", { 80, 48 })
      end
    end
    core.weights.write(root .. "/model.safetensors", entries, {})
    local text = message()
    for _, part in ipairs {
      "tensor model.layers.0.mlp.up_proj.weight (80, 48) is missing from model.safetensors, which "
        .. "lacks 1 of 24; nearest there: model.extra.weight",
      "tensor model.norm.weight is (7); the configuration makes it (48)",
      "tensor model.layers.1.mlp.up_proj.weight is I32; F32, BF16 and F16 are available",
      "tensor model.extra.weight belongs to no weight of this configuration", "4 errors",
    } do contains(part, text) end
  end)

  it("says of missing tensors how many they are, where, and what is there instead", function()
    local entries, kept = hf.tensors(root), {}
    for _, entry in ipairs(entries) do
      entry.name = entry.name:gsub("%.mlp%.up_proj", ".mlp.w3")
      if not entry.name:find "k_proj" then kept[#kept + 1] = entry end
    end
    core.weights.write(root .. "/model.safetensors", kept, {})
    local text = message()
    for i = 0, 1 do
      contains(("%s: tensor model.layers.%d.mlp.up_proj.weight (80, 48) is missing from "
        .. "model.safetensors, which lacks 4 of 24; nearest there: model.layers.%d.mlp.w3.weight")
        :format(root, i, i), text)
    end
    for i = #kept, 1, -1 do -- now only k_proj is not there, and no tensor has no weight
      kept[i].name = kept[i].name:gsub("%.mlp%.w3", ".mlp.up_proj")
    end
    os.rename(root .. "/model.safetensors", root .. "/old")
    core.weights.write(root .. "/a.safetensors", kept, {})
    local map = {}
    for _, entry in ipairs(kept) do map[entry.name] = "a.safetensors" end
    folder:write("model/model.safetensors.index.json", core.json.encode { weight_map = map })
    text = message()
    contains("k_proj.weight (32, 48) is missing from model.safetensors.index.json, which lacks 2 "
      .. "of 24; nearest there: model.layers.0.self_attn.o_proj.weight", text)
    assert.is_nil(text:find("belongs to no weight", 1, true))
  end)

  it("names files that are cut short, missing, or not what the index says", function()
    local path = root .. "/model.safetensors"
    local text = core.files.read_all(path)
    folder:write("model/model.safetensors", text:sub(1, -100))
    contains("model.safetensors", message())
    os.remove(path)
    contains("neither model.safetensors nor model.safetensors.index.json", message())
    folder:write("model/a.safetensors", text)
    folder:write("model/model.safetensors.index.json", core.json.encode { weight_map = {
      ["model.norm.weight"] = "b.safetensors", ["lm_head.weight"] = "a.safetensors",
      ["model.x"] = "../a.safetensors" } })
    local found = message()
    contains("b.safetensors", found)
    contains("a.safetensors: there is no tensor lm_head.weight, which the index says", found)
    contains("weight_map[\"model.x\"] is no name of a file beside it", found)
    folder:write("model/config.json", "{")
    contains("config.json: not a JSON object", message())
    root = root .. "s"
    contains("there is no folder", message())
  end)
end)
