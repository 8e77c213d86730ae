-- ./tl generate: from the folder of a run to text, and what it says when it cannot.
local command = require "tidelock.serve.generate"
local core = require "tidelock.core"
local hf = require "support.hf"
local new_folder = require "support.folder"
local support = require "support"

local recipe = [[
local tl = require "tidelock"
local nn = tl.nn
local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 4, kv_heads = 2 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 48 } },
  }
end
local p = tl.params { knob = 2 }
return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 32, layers = p.knob, layer = layer },
  data = tl.data.text { "TEXT" },
  batch = { samples = 4, length = 32 },
  train = { steps = 3, lr = 0.01, save = { every = 2 } },
}
]]

describe("./tl generate", function()
  local folder, model

  setup(function()
    folder = new_folder()
    local text = folder:write("text.txt", ("Tides come and go. "):rep(40))
    local file = folder:write("tide.lua", (recipe:gsub("TEXT", text)))
    local out, status = support.run(("run %s --runs %s --quiet"):format(file, folder:path "runs"))
    assert.equal(0, status, out)
    model = folder:path "runs/" .. core.files.list(folder:path "runs")[1]
    os.remove(text) -- generation reads no data
  end)
  teardown(function() folder:remove() end)

  local function generate(rest)
    return support.run(("generate %s %s"):format(model, rest))
  end

  it("prints prompt and text, the same each time, in any layout", function()
    local text, status = generate "'Ti des' --tokens 20 --quiet"
    assert.equal(0, status, text)
    assert.is_true(#text >= 20)
    assert.equal(text, (generate "'Ti des' --tokens 20 --quiet layout.tp=2 serve.page=3"))
    assert.equal(text, (generate "'Ti des' --tokens 20 --quiet layout.tp=2 layout.pp=2"))
    local shown = generate "'Ti des' --tokens 20"
    local report = "/tmp/[^\n]+step 3: prompt of 6 tokens in [^\n]+; seed 0\n"
    assert.matches(report, shown)
    assert.equal("Ti des" .. text, (shown:gsub(report, "")))
    assert.is_nil(shown:find "note:")
    assert.matches("\nnote: %d+ of 5000 tokens were made: prompt and text fill serve.context, "
      .. "%d+\n", (generate "'Ti des' --tokens 5000"))
  end)

  it("takes a run of any layout, and leaves that layout out", function()
    local text = folder:write("text.txt", ("Tides come and go. "):rep(40))
    local out, status = support.run(("run %s --runs %s --quiet layout.dp=2 layout.pp=2"):format(
      folder:path "tide.lua", folder:path "spread"))
    os.remove(text)
    assert.equal(0, status, out)
    local spread = folder:path "spread/" .. core.files.list(folder:path "spread")[1]
    out, status = support.run(("generate %s 'Ti des' --tokens 20 --quiet"):format(spread))
    assert.equal(0, status, out)
    assert.equal(generate "'Ti des' --tokens 20 --quiet", out)
  end)

  it("looks at each token once, and adds what decoding all of them gives", function()
    for _, name in ipairs { "gpt2", "llama3", "qwen", "sentencepiece" } do
      local known = assert(core.tokenizer("tests/golden/tokenizers/" .. name))
      local ids, looks = known:encode("Tides  come\u{20AC} and\ngo, again and again", true), 0
      local counted = {
        token = function(_, id) looks = looks + 1 return known:token(id) end,
        decode = function(_, list) looks = looks + #list return known:decode(list) end,
      }
      for cut = 0, #ids do
        local prompt = table.move(ids, 1, cut, 1, {})
        local parts = { known:decode(prompt) }
        looks = 0
        local added = command.added(counted, prompt)
        for i = cut + 1, #ids do parts[#parts + 1] = added(ids[i]) end
        assert.equal(known:decode(ids), table.concat(parts))
        assert.is_true(looks <= #ids + 1, ("%d looks at %d tokens"):format(looks, #ids))
      end
    end
    local added = command.added(assert(core.tokenizer "bytes"), {}, true)
    assert.equal("7,8,9", added(7) .. added(8) .. added(9))
  end)

  it("draws by the seed", function()
    local how = "T --tokens 12 --temperature 1 --top-p 0.9 --top-k 50 --ids --quiet --seed "
    local first = generate(how:gsub("^T", "84") .. 1)
    assert.matches("^%d+[%d,]*\n$", first)
    assert.equal(first, (generate(how:gsub("^T", "84") .. 1)))
    assert.not_equal(first, (generate(how:gsub("^T", "84") .. 2)))
  end)

  it("says what is missing beside a checkpoint that is not in the folder of its run", function()
    local apart = folder:path "apart"
    os.execute(("mkdir %s && cp -r %s/checkpoints/step-00000002 %s"):format(apart, model, apart))
    local told, status = support.run(("generate %s 84 --ids"):format(apart))
    assert.equal(2, status, told)
    assert.matches("/apart/step%-00000002 is a checkpoint outside the folder of its run, which has "
      .. "the recipe; a model is that folder", told)
  end)

  it("takes a checkpoint, and the newest one of a run that did not end", function()
    local step2 = model .. "/checkpoints/step-00000002"
    local early, status = support.run(("generate %s 84 --ids --quiet --tokens 8"):format(step2))
    assert.equal(0, status, early)
    os.rename(model .. "/summary.json", model .. "/kept.json")
    local newest, more = generate "84 --ids --tokens 8"
    os.rename(model .. "/kept.json", model .. "/summary.json")
    assert.equal(0, more, newest)
    assert.matches("checkpoints/step%-00000003, step 3: prompt of 1 token", newest)
    assert.matches("^" .. (generate "84 --ids --quiet --tokens 8"):gsub("\n", ""), newest)
    local all = model .. "/checkpoints"
    newest, more = support.run(("generate %s 84 --ids --tokens 8"):format(all))
    assert.equal(0, more, newest)
    assert.matches("checkpoints/step%-00000003, step 3: prompt", newest)
  end)

  it("asks for overrides of a run that left neither origin nor summary", function()
    local out, status = support.run(("run %s --runs %s --quiet blocks.attention.kv=64"):format(
      folder:path "tide.lua", folder:path "others"))
    assert.equal(2, status, out) -- its data is gone
    folder:write("text.txt", ("Tides come and go. "):rep(40))
    out, status = support.run(("run %s --runs %s --quiet blocks.attention.kv=64"):format(
      folder:path "tide.lua", folder:path "others"))
    assert.equal(0, status, out)
    local other = folder:path "others/" .. core.files.list(folder:path "others")[1]
    os.remove(other .. "/summary.json")
    out, status = support.run(("generate %s x --tokens 2"):format(other))
    assert.equal(0, status, out)
    os.remove(other .. "/origin.json") -- a folder of an older version
    out, status = support.run(("generate %s x --tokens 2"):format(other))
    assert.equal(2, status)
    assert.matches("say what it was, as key=value:\n  blocks.attention.kv: 64 %-> unset", out)
    out, status = support.run(("generate %s x --tokens 2 blocks.attention.kv=64"):format(other))
    assert.equal(0, status, out)
  end)

  it("asks what the ids mean of a model that was trained on ids", function()
    local ids = folder:write("ids.bin", ("a\0b\0c\0"):rep(200))
    local source = ('tl.data.tokens { %q, dtype = "uint16" }'):format(ids)
    local file = folder:write("ids.lua", (recipe:gsub("tl.data.text { \"TEXT\" }", source)))
    local out, status = support.run(("run %s --runs %s --quiet"):format(file, folder:path "ids"))
    assert.equal(0, status, out)
    local one = folder:path "ids/" .. core.files.list(folder:path "ids")[1]
    out, status = support.run(("generate %s ab --tokens 2"):format(one))
    assert.equal(2, status)
    assert.matches("it was trained on ids (tl.data.tokens), and nothing here says what they mean",
      out, 1, true)
    out, status = support.run(("serve %s --port 0"):format(one))
    assert.equal(2, status)
    assert.matches("--tokenizer FILE or its folder", out, 1, true)
    local text = support.run(("generate %s ab --tokens 2 --quiet --tokenizer bytes"):format(one))
    local numbers = support.run(("generate %s 97,98 --ids --tokens 2 --quiet"):format(one))
    local first, second = numbers:match "(%d+),(%d+)\n$"
    assert.equal(string.char(first, second) .. "\n", text)
  end)

  it("takes weights of f32 in bf16 where that is asked for", function()
    local out, status = generate "84 --ids --quiet --tokens 4 dtype=bf16"
    assert.equal(0, status, out)
    assert.matches("^%d+,%d+,%d+,%d+\n$", out)
    out, status = generate "84 --ids policy.arithmetic=sm_90" -- which f32 has not
    assert.equal(2, status, out)
  end)

  it("takes a folder of Hugging Face, without a tokenizer for ids; names what it has", function()
    local llama = hf.write(folder:path "llama", "llama")
    local golden = hf.golden(folder:path "golden", "llama")
    local out, status = support.run(("generate %s %s --ids --quiet --tokens 4"):format(llama,
      table.concat(golden.input_ids[1], ",")))
    assert.equal(0, status, out)
    assert.equal(table.concat(golden.greedy, ",", 1, 4) .. "\n", out)
    out, status = support.run(("generate %s x"):format(llama))
    assert.equal(2, status)
    assert.matches("no tokenizer.json", out, 1, true)
    assert.matches("; it can be a tokenizer.json, its folder, or bytes", out, 1, true)
    out, status = support.run(("generate %s 1 --ids layout.tp=3"):format(llama))
    assert.equal(2, status)
    assert.matches("tp 3 does not divide heads 4 (" .. llama .. "/config.json); ", out, 1, true)
    assert.matches("tp 3 does not divide leaves.tp 4; ", out, 1, true)
    assert.is_nil(out:find("nil", 1, true), out)
    os.remove(llama .. "/config.json")
    out, status = support.run(("generate %s 1 --ids"):format(llama))
    assert.equal(2, status)
    assert.matches("holds no recipe.lua: it is no run, and without config.json no model of "
      .. "Hugging Face: ", out, 1, true)
  end)

  it("names the folder that a model came from, where its tokenizer is", function()
    local llama, words = hf.write(folder:path "base", "llama"), {}
    for i = 1, 400 do words[i] = string.pack("<I2", i * 7 % 90 + 2) end
    local ids = folder:write("hf.bin", table.concat(words))
    local file = folder:write("hf.lua", (recipe:gsub('tl.data.text { "TEXT" }',
      ('tl.data.tokens { %q, dtype = "uint16" }'):format(ids)):gsub("nn.decoder {.-layer = layer }",
      ("nn.from_hf %q"):format(llama))))
    local out, status = support.run(("run %s --runs %s --quiet"):format(file, folder:path "hf"))
    assert.equal(0, status, out)
    local one = folder:path "hf/" .. core.files.list(folder:path "hf")[1]
    assert.matches("mean; --tokenizer FILE or its folder, or --tokenizer bytes",
      (support.run(("generate %s a"):format(one))), 1, true)
    folder:write("base/tokenizer.json", "{}")
    assert.matches(("mean; --tokenizer %s, which its model came from, or --tokenizer bytes"):format(
      llama), (support.run(("generate %s a"):format(one))), 1, true)
  end)

  it("notes a tokenizer with more ids than the model has", function()
    local out, status = generate "T --tokens 2 --tokenizer tests/golden/tokenizers/gpt2"
    assert.equal(0, status, out)
    assert.matches("note: the tokenizer has 321 ids, the model 256: is it that of the training ",
      out, 1, true)
    assert.is_nil((generate "T --tokens 2"):find("note:", 1, true))
  end)

  it("says why it cannot", function()
    local function refused(pattern, arguments, status)
      local text, got = support.run("generate " .. arguments)
      assert.matches(pattern, text)
      assert.equal(status or 2, got, text)
    end
    refused("there is no folder runs/none; a model is the folder of a run", "runs/none x")
    refused("empty prompt", model .. " ''")
    local plain, runs = model:gsub("%p", "%%%0"), model:match "^(.*)/"
    refused("recipe.lua is a file; a model is the folder of a run, [^\n]*: here " .. plain .. "\n",
      model .. "/recipe.lua x")
    refused("holds no recipe.lua: it is no run; [^\n]* has " .. plain:match "[^/]*$", runs .. " x")
    refused("does not give, with blocks.attention.kv=64 knob=3, what it ran with; "
      .. "leave out what it was not, or say what it was, as key=value:\n  model.layers: 2 %-> 3\n",
      model .. " x blocks.attention.kv=64 knob=3")
    refused("token 0 of the prompt is 256; ids are 0 to 255", model .. " 256 --ids")
    refused("the prompt is integers and commas, got \"x\"", model .. " x --ids")
    refused("the prompt is integers and commas, got \"1,,2\"", model .. " 1,,2 --ids")
    refused("temperature is 1e%-30; 0 .* or from 2%^%-60", model .. " x --temperature 1e-30")
    refused("the prompt has 40 tokens, and a request 32", model .. " " .. ("x"):rep(40))
    refused("command line: serve.requests: %d+%.%d MiB of weights and pages %(%d+ of %d+ "
      .. "positions%), this machine has %d+%.%d; a smaller serve.requests needs less",
      model .. " x serve.requests=40000 serve.page=1048576")
    refused("command line: serve.pages: .* a smaller serve.pages needs less",
      model .. " x serve.pages=40000 serve.page=1048576")
    refused("command line: serve.rows: .*; steps of 900000000 rows%), .* a smaller serve.rows "
      .. "needs less", model .. " x serve.rows=900000000")
    refused("%-%-tokenizer: .*nowhere", model .. " x --tokenizer nowhere")
    local small = new_folder()
    small:write("tokenizer.json", core.json.encode {
      model = { type = "BPE", vocab = { a = 0, b = 1, ab = 2 }, merges = { "a b" } },
    })
    refused("^tidelock: generate: the tokenizer cannot read the prompt: [^\n]*: no token for x and "
      .. "none for what is unknown; another prompt, or %-%-ids with a prompt of ids\n$",
      model .. " axb --tokenizer " .. small.root)
    small:remove()
    local foreign = new_folder()
    hf.write(foreign.root, "llama")
    for _, given in ipairs { "1.5", '"</s>"', "true", "{}", "-1", "99999", '[1,"a"]', "[null]" } do
      foreign:write("generation_config.json", ('{"eos_token_id":%s}'):format(given))
      refused("^tidelock: [^\n]*/generation_config.json: eos_token_id is [^\n]*; it can be an id, "
        .. "from 0 to 95, or a list of such\n$", foreign.root .. " 1,2 --ids")
    end
    foreign:write("generation_config.json", "{")
    refused("/generation_config.json: not a JSON object", foreign.root .. " 1,2 --ids")
    os.remove(foreign:path "generation_config.json")
    local entries = hf.tensors(foreign.root)
    for _, entry in ipairs(entries) do entry.tensor:fill(0 / 0) end
    core.weights.write(foreign:path "model.safetensors", entries, { format = "pt" })
    refused("^rank 0 of 1: step 1, [^\n]*: sample: row 1: the logit of token 0 is NaN\n$",
      foreign.root .. " 1,2 --ids", 1)
    foreign:remove()
    refused("generate: PROMPT is missing", model)
    refused("y is one word too many; a text of several words stands in quotes\n", model .. " x y")
    refused("%-%-temperature: expected a number from 0", model .. " x --temperature warm")
    if core.cuda_count() == 0 then
      refused('device: "cuda": ', model .. " x device=cuda")
    end
    refused("layout.dp: .*generation is cut over tp and pp alone", model .. " x layout.dp=2")
  end)
end)
