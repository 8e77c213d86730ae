-- A small trained model of others: its greedy text is the golden one, in any layout. The files
-- stand beside the clone; without them there is nothing to compare.
local core = require "tidelock.core"
local engine = require "tidelock.serve.engine"
local support = require "support"
local tl = require "tidelock"

local nn = tl.nn
local folder = support.shared "data/stories260k"

local function layer()
  return {
    nn.residual { nn.rms_norm { eps = 1e-5 }, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm { eps = 1e-5 }, nn.swiglu { hidden = 172 } },
  }
end

--- Names of the file by ours, below a layer.
local inner = {
  ["attention.q"] = "self_attn.q_proj", ["attention.k"] = "self_attn.k_proj",
  ["attention.v"] = "self_attn.v_proj", ["attention.o"] = "self_attn.o_proj",
  ["attention.rms_norm.gain"] = "input_layernorm",
  ["swiglu.rms_norm.gain"] = "post_attention_layernorm",
  ["swiglu.gate"] = "mlp.gate_proj", ["swiglu.up"] = "mlp.up_proj",
  ["swiglu.down"] = "mlp.down_proj",
}

local function name_of(ours)
  local index, rest = ours:match "^layers%.(%d+)%.(.*)$"
  if index then return ("model.layers.%s.%s.weight"):format(index, inner[rest]) end
  return ({ embed = "model.embed_tokens.weight", ["norm.gain"] = "model.norm.weight" })[ours]
end

local function model(more)
  local recipe = tl.recipe {
    model = nn.decoder { vocab = 512, dim = 64, layers = 5, layer = layer, tied = true,
      norm = nn.rms_norm { eps = 1e-5, name = "norm" } },
    data = tl.data.given { { tokens = { 0 } } },
    batch = { samples = 1, length = 512 }, train = { steps = 1, lr = 0 },
    serve = { requests = 4, page = 16, rows = 64 },
  }
  local file = assert(core.weights.open(folder .. "/model.safetensors"))
  return {
    recipe = recipe:with(more or {}),
    read = function(param, row, col)
      return file:slice(name_of(param.name), row, param.rows, col, param.cols, "f32")
    end,
  }
end

local function greedy(e, prompt, count)
  local id, ids = assert(e:submit { tokens = prompt, max_tokens = count }), {}
  while not e:idle() do
    for _, event in ipairs(e:step()) do
      if event.id == id then ids[#ids + 1] = event.token end
    end
  end
  return ids
end

describe("stories260k", function()
  if not folder then return pending "needs ../shared/data/stories260k" end
  local golden = core.json.decode(core.files.read_all(folder .. "/golden_greedy_ids.json"))
  local expected = table.move(golden, 2, #golden, 1, {})

  it("gives the golden text, alone and beside others", function()
    local e <close> = engine.open(model())
    assert.same(expected, greedy(e, { 1 }, #expected))
    assert(e:submit { tokens = { 1, 403 }, max_tokens = 40, temperature = 1, seed = 5 })
    assert.same(expected, greedy(e, { 1 }, #expected))
  end)

  it("is a model that ./tl generate takes as it is", function()
    local text, status = support.run(("generate %s '' --tokens 200 --quiet"):format(folder))
    assert.equal(0, status, text)
    assert.equal(core.files.read_all(folder .. "/golden_greedy.txt"), (text:gsub("^ ", "")
      :gsub("\n$", "")))
    text, status = support.run(("generate %s 1 --ids --quiet --tokens 200 layout.tp=4"):format(
      folder))
    assert.equal(0, status, text)
    assert.equal(table.concat(expected, ",") .. "\n", text)
  end)

  it("gives it from a part of itself, under tp", function()
    local e <close> = engine.open(model { layout = { tp = 2 } })
    assert.same(table.move(golden, 51, 90, 1, {}),
      greedy(e, table.move(golden, 1, 50, 1, {}), 40))
  end)
end)
