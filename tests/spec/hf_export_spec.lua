--- Checkpoints as folders of Hugging Face: the same tensors bit for bit, and what has no such form.
local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local export = require "tidelock.run.export"
local hf = require "support.hf"
local models = require "support.models"
local new_folder = require "support.folder"
local tl = require "tidelock"

local nn = tl.nn

local function contains(part, text)
  assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
end

local function json(path) return core.json.decode(assert(core.files.read_all(path))) end

describe("an export for transformers", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  --- A checkpoint of a started run.
  local function saved(run)
    return checkpoint.find(run:save(folder:path "checkpoints"))
  end

  local function tensors_of(path)
    local file <close>, map = core.weights.open(path .. "/model.safetensors"), {}
    for _, name in ipairs(file:names()) do map[name] = file:read(name) end
    return map
  end

  local ids = { 5, 17, 3, 88, 9, 41, 2, 60 }

  for _, family in ipairs { "llama", "qwen3", "qwen3_yarn", "mixtral", "qwen3_moe", "deepseek_v3",
    "deepseek_v3_half" } do
    it("gives back the tensors and the configuration of " .. family, function()
      local root = hf.write(folder:path "model", family)
      folder:write("model/tokenizer.json", "{\"a\":\0}")
      local run <close> = driver.start(hf.recipe(root, { ids }, { ["layout.pp"] = 2 }))
      local out = folder:path "out"
      export.write(saved(run), out, { format = "hf" })
      local before, after = tensors_of(root), tensors_of(out)
      for name, tensor in pairs(before) do
        assert.bits(tensor, after[name])
        after[name] = nil
      end
      assert.is_nil(next(after))
      assert.equal("{\"a\":\0}", core.files.read_all(out .. "/tokenizer.json"))
      local old, new = json(root .. "/config.json"), json(out .. "/config.json")
      for _, key in ipairs { "architectures", "model_type", "bos_token_id", "eos_token_id", "dtype",
        "vocab_size", "layer_types", "sliding_window", "tie_word_embeddings" } do
        assert.same(old[key], new[key], key)
      end
      local facts = hf.facts(root)
      facts.further_layers = facts.further_layers and 0 -- the folder has none of them any more
      assert.same(facts, hf.facts(out))
      assert.equal(old.eos_token_id, json(out .. "/generation_config.json").eos_token_id)
      local again <close> = driver.start(hf.recipe(out, { ids }))
      assert.equal(run:weights_hash(), again:weights_hash())
    end)
  end

  it("says the dtype that it rounds to, and that a folder of tokenizers is gone", function()
    local root = hf.write(folder:path "model", "llama")
    local run <close> = driver.start(hf.recipe(root, { ids }))
    local found = saved(run)
    os.rename(root, root .. ".moved")
    local _, _, notes = export.write(found, folder:path "out",
      { format = "hf", dtype = "bf16", file_bytes_max = 40000 })
    contains("is not there any more: no tokenizer was copied", notes[1])
    assert.equal("bfloat16", json(folder:path "out/config.json").dtype)
    local again <close> = driver.start(hf.recipe(folder:path "out", { ids }))
    assert.equal(96 * 48, #again:weight("embed"):flat())
  end)

  it("is there for models that were written here, whatever they are called", function()
    local function layer()
      return {
        nn.residual { nn.rms_norm { name = "before" }, nn.attention { heads = 4, name = "mixer" } },
        nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 48, name = "net" } },
      }
    end
    local run <close> = models.start { layer = layer, vocab = 61 }
    run:step()
    local out = folder:path "out"
    export.write(saved(run), out, { format = "hf" })
    local file <close> = core.weights.open(out .. "/model.safetensors")
    assert.bits(run:weight "layers.1.mixer.before.gain",
      file:read "model.layers.1.input_layernorm.weight")
    assert.bits(run:weight "layers.0.net.up", file:read "model.layers.0.mlp.up_proj.weight")
    assert.equal("llama", json(out .. "/config.json").model_type)
    local again <close> = driver.start(hf.recipe(out, { { 5, 17, 3 } }))
    assert.bits(run:weight "head", again:weight "head")
  end)

  local function block(mixer, ffn)
    return function()
      return { nn.residual { nn.rms_norm {}, mixer }, nn.residual { nn.rms_norm {}, ffn } }
    end
  end
  local mla = nn.mla { heads = 4, kv_rank = 8, nope_dim = 8, rope_dim = 4 }
  local chosen = { experts = 8, top_k = 2, hidden = 16, shared = 1,
    router = { "sigmoid", groups = 2, top_groups = 1 }, balance = { "bias", 0 } }
  local function without(key)
    local options = {}
    for name, value in pairs(chosen) do options[name] = name ~= key and value or nil end
    return nn.moe(options)
  end
  local attention, ffn = nn.attention { heads = 4 }, nn.swiglu { hidden = 48 }
  for _, case in ipairs {
    { "learned table of positions", { positions = 16 } },
    { "nn.layer_norm", { layer_norm = true } },
    { "nn.gelu has no place there", { gelu = true } },
    { "nn.attention without rope", { rope = false } },
    { "rope.interleaved", { rope = { interleaved = true } } },
    { "rope.dim 4 turns a part of head_dim 8", { rope = { dim = 4 } } },
    { "windows without norms of heads (llama)", { window = 5 } },
    { "swiglu with biases in qwen3", { bias = true, qk_norm = true } },
    { "eps is 1e-06, and 1e-05 elsewhere", { norm = nn.rms_norm { eps = 1e-5 } } },
    { "/net is shared by name", { layer = block(attention, nn.swiglu { hidden = 48,
      name = "/net" }) } },
    { "mixer is attention, and mla elsewhere", { layer = function(i)
      return block(i == 1 and mla or attention, nn.moe(chosen))()
    end } },
    { "nn.mla without experts", { layer = block(mla, ffn) } },
    { "layer 1 is dense behind a mixture", { layer = function(i)
      return block(mla, i == 1 and nn.moe(chosen) or ffn)()
    end } },
    { "its router is \"softmax\"", { layer = block(mla, without "router") } },
    { "its balance \"none\"", { layer = block(mla, without "balance") } },
    { "eps of nn.mla is 0.001", { layer = block(nn.mla { heads = 4, kv_rank = 8, nope_dim = 8,
      rope_dim = 4, eps = 1e-3 }, nn.moe(chosen)) } },
    { "layer 0 has 1 modules", { layer = function() return { nn.residual { nn.rms_norm {},
      attention } } end } },
    { "nn.graph is no attention", { layer = block(nn.graph("same", function(_, x) return x end),
      ffn) } },
  } do
    it("is refused with the reason: " .. case[1], function()
      local run <close> = models.start(case[2])
      local good, problem = pcall(export.write, saved(run), folder:path "out", { format = "hf" })
      assert.is_false(good)
      assert.equal(2, problem.status)
      contains("transformers has no architecture for this model: ", problem.message)
      contains(case[1], problem.message)
    end)
  end
end)
