--- hf.lua - runs models of Hugging Face folders and compares them with what PyTorch computed.
---
---     hf.golden(folder, "llama")     tests/golden/hf, weights by the formula in `folder`
---     hf.tiny "llama"                ../shared/data/hf_tiny, or nil
---
--- A golden is { name, folder, input_ids, greedy, single = { result .. }, batch = result }; a
--- result { targets, loss, logits, grads }; logits and each gradient are { norm, dot, samples }.
local config = require "tidelock.hf.config"
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local engine = require "tidelock.serve.engine"
local loader = require "tidelock.run.loader"
local names = require "tidelock.hf.names"
local support = require "support"
local tl = require "tidelock"

local hf = {}

local function json(path) return core.json.decode(assert(core.files.read_all(path))) end

function hf.facts(folder)
  return config.read(json(folder .. "/config.json"),
    { ignore = {}, report = error })
end

-- weights by the formula of tests/peers/make_hf.py -----------------------------------------------

local function formula(stream, name, shape)
  local count = shape[1] * (shape[2] or 1)
  local offset, values = name:find "norm%.weight$" and 1 or 0, {}
  for i = 1, count do values[i] = 0.25 * support.fill_value(stream, i - 1) + offset end
  return core.tensor("f32", shape, values)
end

--- The tensors of a folder, by the formula: { { name =, tensor = } .. }.
function hf.tensors(folder)
  local list, entries = names.of(hf.facts(folder)), {}
  table.sort(list, function(a, b) return a.theirs < b.theirs end)
  for k, weight in ipairs(list) do
    entries[k] = { name = weight.theirs, tensor = formula(k, weight.theirs, weight.shape) }
  end
  return entries
end

--- A folder with config.json and weights of this family.
function hf.write(folder, family)
  core.files.mkdirs(folder)
  local text = core.files.read_all("tests/golden/hf/" .. family .. ".config.json")
  core.files.write_atomic(folder .. "/config.json", text)
  core.weights.write(folder .. "/model.safetensors", hf.tensors(folder), { format = "pt" })
  return folder
end

--- The golden of tests/golden/hf for this family, its files in `folder`.
function hf.golden(folder, family)
  local all = json "tests/golden/hf/golden.json"
  local one = all.families[family]
  return { name = family, folder = hf.write(folder, family), input_ids = all.input_ids,
    single = one.single, batch = one.batch, greedy = one.greedy.ids }
end

--- The one of ../shared/data/hf_tiny, or nil where that is absent.
function hf.tiny(family)
  local folder = support.shared "data/hf_tiny"
  if not folder then return nil end
  local all = json(folder .. "/oracle.json")
  local runs = all.families[family].runs.float64
  return { name = family, folder = folder .. "/" .. family, input_ids = all.input_ids,
    single = runs.single, batch = runs.batch }
end

-- runs -------------------------------------------------------------------------------------------

--- The recipe of one sample that holds `sequences`, each a segment.
function hf.recipe(folder, sequences, options)
  local tokens, borders = {}, { 0 }
  for _, ids in ipairs(sequences) do
    for _, id in ipairs(ids) do tokens[#tokens + 1] = id end
    borders[#borders + 1] = #tokens
  end
  local recipe = tl.recipe {
    model = tl.nn.from_hf(folder),
    data = tl.data.given { { tokens = tokens, cu_seqlens = borders } },
    batch = { samples = 1, length = #tokens },
    policy = { "layout", leaves = { tp = 2, dp = 1 } },
    train = { steps = 1, lr = 0 },
  }
  return options and recipe:with(options) or recipe
end

--- One step: { loss, logits = tensor, grads = { our name -> tensor }, bits = text }.
function hf.run(folder, sequences, options)
  local run <close> = driver.start(hf.recipe(folder, sequences, options),
    { keep = { "logits", "*.grad" } })
  local step = run:step()
  local result = { loss = step.loss, logits = run:kept "logits", grads = {} }
  local bits = { step.loss_bits, step.grad_norm_bits, result.logits:hash(), run:weights_hash() }
  for _, weight in ipairs(run:weights()) do
    if weight.param.weight.kind ~= "state" then -- a state has no gradient
      local grad = run:kept(weight.name .. ".grad")
      result.grads[weight.name], bits[#bits + 1] = grad, grad:hash()
    end
  end
  result.bits = table.concat(bits, " ")
  return result
end

--- The likeliest tokens after `ids`, from pages that a chunk of the prompt fills at a time.
function hf.generated(folder, ids, count, words, chunk)
  local model = loader.open(folder, words or {}, { tokenizer = "bytes" })
  local e <close>, made = engine.open(model, { chunk = chunk }), {}
  assert(e:submit { tokens = ids, max_tokens = count })
  while not e:idle() do
    for _, event in ipairs(e:step()) do made[#made + 1] = event.token end
  end
  return made
end

-- comparison -------------------------------------------------------------------------------------

--- The name of transformers, as its modules have it -> our names, in the order of its memory.
local function in_memory(facts)
  local map = {}
  for _, weight in ipairs(names.of(facts)) do
    local name = weight.theirs:gsub("block_sparse_moe", "mlp")
    local block, part = name:match "^(.*%.experts)%.%d+%.([%w_]+)%.weight$"
    if block then -- experts are stacked: gate above up
      local down = part == "down_proj" or part == "w2"
      name = block .. (down and ".down_proj" or ".gate_up_proj")
    end
    map[name] = map[name] or {}
    table.insert(map[name], weight.ours)
  end
  return map
end

local function joined(grads, list)
  local all = {}
  for _, name in ipairs(list) do
    local flat = grads[name]:flat()
    table.move(flat, 1, #flat, #all + 1, all)
  end
  return all
end

--- The largest error of `flat` relative to its norm; to `others` where that is 0 (a query that sees
--- one key has no gradient), up to the noise of f64.
local function error_of(flat, want, others)
  local square, dot, worst = 0.0, 0.0, 0.0
  for i, x in ipairs(flat) do
    square = square + x * x
    dot = dot + x * ((31 * (i - 1)) % 97 - 48) / 48
  end
  local norm = math.sqrt(square)
  local scale = want.norm or norm
  if scale < 1e-12 * others then scale = 0.1 * others end
  if want.norm then worst = math.abs(norm - want.norm) / scale end
  worst = math.max(worst, math.abs(dot - want.dot) / (scale * math.sqrt(#flat)))
  for _, sample in ipairs(want.samples or {}) do
    local at = sample[3] and sample[1] * want.shape[2] + sample[2] or sample[1]
    local off = math.abs(flat[at + 1] - (sample[3] or sample[2]))
    worst = math.max(worst, off / scale * math.sqrt(#flat) / 8)
  end
  return worst
end

--- The largest relative error of a run against a result, and where it is.
function hf.worst(folder, got, want)
  local worst, place = 0, "nothing"
  local function look(name, off)
    if off > worst then worst, place = off, name end
  end
  look("logits", error_of(got.logits:flat(), want.logits, 0))
  if want.targets == 0 then return worst, place end
  look("loss", math.abs(got.loss - want.loss) / want.loss)
  local memory, largest = in_memory(hf.facts(folder)), 0
  for _, numbers in pairs(want.grads) do largest = math.max(largest, numbers.norm) end
  for name, numbers in pairs(want.grads) do
    look(name, error_of(joined(got.grads, assert(memory[name], name)), numbers, largest))
  end
  return worst, place
end

return hf
