--- The key: a hash of everything that can change bits, and of nothing else.
--
--     moves the key                               leaves it alone
--     model, dtype, weight rules, loss            layout, micro, device, log, save, eval
--     optimizer, learning rates, clip             where the run ends (with a constant rate)
--     data and its order, samples, length, seed   tile sizes, waves, file names, comments
--     leaves, arithmetic, attention kv and split  the policy's name
--     the versions of the contracts
--
-- The text under the hash has one field a line, keys sorted, numbers rounded to f32 first (integers
-- are exact), functions as the numbers that they gave. `recipe_hash` covers the whole recipe: two
-- runs that differ in anything that a recipe says have different ones.
local contracts = require "tidelock.language.contracts"
local numbers = require "tidelock.language.numbers"
local rates = require "tidelock.language.rates"

local key = {}

--- Goes up whenever the specified result of an existing operator changes.
key.contracts = contracts.version()

local function scalar(value)
  if math.type(value) == "float" then
    local rounded = numbers.f32(value)
    local whole = math.tointeger(rounded)
    return whole and tostring(whole) or ("%.9g"):format(rounded)
  end
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) == "function" then return "function" end
  return tostring(value)
end

local function by_type_and_value(a, b)
  if type(a) ~= type(b) then return type(a) < type(b) end
  return a < b
end

--- One line of text that is the same for equal values: { [1]="adamw", beta1=0.899999976 }. Keys in
--- `skip` are left out at every level.
function key.canonical(value, skip)
  if type(value) ~= "table" then return scalar(value) end
  local keys, words = {}, {}
  for name in pairs(value) do
    if not (skip and skip[name]) then keys[#keys + 1] = name end
  end
  table.sort(keys, by_type_and_value)
  for i, name in ipairs(keys) do
    local lead = type(name) == "string" and name or "[" .. name .. "]"
    words[i] = lead .. "=" .. key.canonical(value[name], skip)
  end
  return "{" .. table.concat(words, ",") .. "}"
end

--- The rates of all steps, in f32, as runs of equal values: a run that ends later with the same
--- rate has the same key, and two ways to write it that give one rate another bit never have.
local function rate_text(train)
  local words, count, last, lr = {}, 0, nil, train.lr
  local at, whole, text = rates.at, math.tointeger, string.format
  for step = 1, train.steps do -- up to millions: a microsecond counts
    local value = at(lr, step)
    if value ~= last then
      count = count + 1
      words[count] = whole(value) and text("%d:%d", step, value) or text("%d:%.9g", step, value)
    end
    last = value
  end
  return table.concat(words, ",")
end

--- What the key covers, in its order.
key.parts = {
  "contracts", "dtype", "model", "weights", "loss", "data", "samples", "length", "leaves",
  "arithmetic", "seed", "attention.kv", "attention.split", "lr", "clip", "optimizer",
}

--- The text of each part. `model_text` describes the model's graph and weights, `data_text` the
--- content of the data (its fingerprint); without it the description of the data stands there.
local function part_texts(spec, model_text, data_text)
  local attention = spec.blocks.attention
  return {
    contracts = scalar(key.contracts), dtype = spec.dtype, model = model_text,
    weights = key.canonical(spec.weights), loss = key.canonical(spec.loss),
    data = data_text or key.canonical(spec.data, { site = true }),
    samples = scalar(spec.batch.samples), length = scalar(spec.batch.length),
    leaves = key.canonical(spec.policy.leaves), arithmetic = spec.policy.arithmetic,
    seed = scalar(spec.policy.seed), ["attention.kv"] = scalar(attention.kv or "by head_dim"),
    ["attention.split"] = scalar(attention.split), lr = rate_text(spec.train),
    clip = scalar(spec.train.clip or 0), optimizer = key.canonical(spec.train.optimizer),
  }
end

--- The text under the key.
local function whole_text(texts)
  local lines = {}
  for i, name in ipairs(key.parts) do lines[i] = name .. " " .. texts[name] end
  return table.concat(lines, "\n")
end

--- The text of what the key leaves out.
local function rest_text(spec)
  local rest = {}
  for _, name in ipairs { "batch", "layout", "blocks", "policy", "device", "log" } do
    rest[name] = spec[name]
  end
  rest.steps, rest.save = spec.train.steps, spec.train.save
  if spec.eval then
    rest.eval = { every = spec.eval.every, samples = spec.eval.samples, data = spec.eval.data }
  end
  return key.canonical(rest, { site = true })
end

--- The key as 16 hexadecimal digits; the hash of the whole recipe; and a hash of each part of the
--- key by its name: two recipes whose keys differ differ in one of them.
---@return string key, string recipe_hash, table<string, string> parts
function key.all(spec, model_text, data_text)
  local hash = require("tidelock.core").hash
  local texts, hashes = part_texts(spec, model_text, data_text), {}
  local whole = whole_text(texts)
  for _, name in ipairs(key.parts) do hashes[name] = hash(texts[name]) end
  return hash(whole), hash(whole .. "\n" .. rest_text(spec)), hashes
end

--- The key alone.
function key.of(...) return (key.all(...)) end

--- "5e1c09af77d2c340" as people read it: "5e1c 09af 77d2 c340".
function key.spaced(hash) return (hash:gsub("%x%x%x%x", "%0 ", 3)) end

return key
