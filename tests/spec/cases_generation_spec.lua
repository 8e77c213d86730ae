-- Faults that users of other systems reported, on generation and its files; tests carry the names
-- of the cases.
local core = require "tidelock.core"
local models = require "support.models"
local serve = require "support.serve"
local servers = require "support.server"
local support = require "support"

--- Bits of all keys and values of request `id` at the positions first .. last, by its pages.
local function cache_bits(e, id, first, last)
  local pages, size, list = e.by_id[id].pages, e.sizes.page, {}
  local persistent = e.plan.ranks[1].persistent
  for n = 1, models.defaults.layers do
    local keys = e.ranks:read(0, persistent["keys " .. n].tensor)
    local values = e.ranks:read(0, persistent["values " .. n].tensor)
    local _, heads, width = table.unpack(keys:shape())
    keys, values = keys:bits(), values:bits()
    for position = first, last do
      local page, at = pages[position // size + 1], position % size
      for i = 0, heads * width - 1 do
        list[#list + 1] = keys[(page * heads * width + i) * size + at + 1]
        list[#list + 1] = values[(page * size + at) * heads * width + i + 1]
      end
    end
  end
  return list
end

local function same_lists(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return #a > 0
end

--- Takes events until every request has made `count` tokens; what each made, with bits.
local function made_by(e, ids, count)
  local made, left = {}, #ids
  for _, id in ipairs(ids) do made[id] = {} end
  while left > 0 do
    for _, event in ipairs(e:step()) do
      local list = made[event.id] -- nil: an earlier one's end
      if list then
        list[#list + 1] = ("%d %08x"):format(event.token, event.logprob_bits)
        if #list == count then left = left - 1 end
      end
    end
  end
  for i, id in ipairs(ids) do made[i] = table.concat(made[id], ",", 1, count) end
  return made
end

describe("H04, a shared prefix", function()
  it("gives each row the bits that it has alone, shared or not", function()
    local file <close> = serve.train {}
    local prefix, rows, vocab = models.tokens(5, 1024, models.defaults.vocab), {}, 61
    for i = 1, 16 do
      rows[i] = table.move(prefix, 1, 1024, 1, {})
      table.move(models.tokens(100 + i, 37, vocab), 1, 37, 1025, rows[i])
    end
    local sizes = { ["serve.context"] = 1200, ["serve.rows"] = 256, ["serve.requests"] = 16,
      ["serve.page"] = 32 }
    --- Tokens, and keys and values of the tails, of rows that are there at once.
    local function run(e, from, to)
      local ids, caches = {}, {}
      for i = from, to do
        ids[#ids + 1] = assert(e:submit { tokens = rows[i], max_tokens = 130 })
      end
      local made = made_by(e, ids, 3)
      for k, id in ipairs(ids) do
        caches[k] = cache_bits(e, id, 1024, 1060)
        e:cancel(id)
      end
      return made, caches
    end
    local plain <close> = serve.open(file, sizes, { prefix = false })
    local made, caches = run(plain, 1, 16)
    for i = 1, 16, 5 do
      local one, cache = run(plain, i, i)
      assert.equal(made[i], one[1])
      assert.is_true(same_lists(caches[i], cache[1]), "the cache of row " .. i)
    end
    local shared <close> = serve.open(file, sizes)
    run(shared, 1, 1) -- the prefix is warm now
    local warm, warm_caches = run(shared, 1, 16)
    assert.is_true(shared:stats().hits >= 16 * 1024 // 32)
    for i = 1, 16 do
      assert.equal(made[i], warm[i])
      assert.is_true(same_lists(caches[i], warm_caches[i]), "the shared cache of row " .. i)
    end
  end)
end)

describe("H05, chunked prefill", function()
  it("gives the same cache, tokens and prompt log-probabilities for all chunks", function()
    local file <close> = serve.train {}
    local prompt = models.tokens(9, 3000, models.defaults.vocab)
    local thirty = {}
    for i = 1, 30 do thirty[i] = 100 end
    local e <close> = serve.open(file, { ["serve.context"] = 3010, ["serve.rows"] = 3000,
      ["serve.requests"] = 1, ["serve.page"] = 64 }, { poison = 255 })
    local expected, cache
    for _, chunks in ipairs { { 3000 }, { 1, 2999 }, { 511, 2489 }, { 2048, 952 }, thirty } do
      local id = assert(e:submit { tokens = prompt, max_tokens = 5, echo = true })
      local events = {}
      for _, size in ipairs(chunks) do
        e.chunk = size
        table.move(e:step(), 1, size, #events + 1, events)
      end
      local bits = cache_bits(e, id, 0, 2999)
      while not e:idle() do events[#events + 1] = e:step()[1] end
      assert.equal(2999 + 5, #events)
      for i, event in ipairs(events) do
        events[i] = ("%d:%d %08x"):format(event.position, event.token, event.logprob_bits)
      end
      expected, cache = expected or events, cache or bits -- from the second on the prefix is warm
      assert.is_true(same_lists(expected, events))
      assert.is_true(same_lists(cache, bits))
    end
    e.chunk = 3000 -- without echo pages of the prefix are found, and the tokens are the same
    local id = assert(e:submit { tokens = prompt, max_tokens = 5 })
    local hits = e:stats().hits
    for i = 3000, 3004 do
      local event = e:step()[1]
      assert.equal(expected[i], ("%d:%d %08x"):format(event.position, event.token,
        event.logprob_bits))
      assert.equal(id, event.id)
    end
    assert.is_true(e:stats().hits > hits)
  end)
end)

describe("H13, nothing at all", function()
  it("is an error as a prompt, and no event where nobody asks", function()
    local file <close> = serve.train {}
    local e <close> = serve.open(file)
    assert.same({}, e:step())
    assert.is_true(e:idle())
    assert.matches("empty prompt", select(2, e:submit { tokens = {}, max_tokens = 1 }))
  end)
end)

describe("H29, ids that are none", function()
  it("are named with their position and the vocabulary", function()
    local file <close> = serve.train {}
    local e <close> = serve.open(file)
    for _, id in ipairs { -1, 61, 1 << 31 } do
      assert.equal(("token 1 of the prompt is %d; ids are 0 to 60"):format(id),
        select(2, e:submit { tokens = { 5, id }, max_tokens = 1 }))
    end
    assert.is_true(e:idle())
  end)
end)

describe("weights of a run that are not what they should be", function()
  local model, path, whole

  setup(function()
    model = servers.train()
    path = model.path .. "/weights.safetensors"
    whole = assert(core.files.read_all(path))
  end)
  teardown(function() model.folder:remove() end)

  --- What ./tl generate says when the file has these bytes.
  local function generate(bytes)
    local file <close> = assert(io.open(path, "wb"))
    file:write(bytes)
    file:flush()
    return support.run(("generate %s Ti --tokens 2 --quiet"):format(model.path))
  end

  --- The file with one tensor changed: fn(name, tensor) gives another, or nil for none.
  local function changed(fn)
    assert(io.open(path, "wb")):write(whole):close()
    local file, list = assert(core.weights.open(path)), {}
    for _, name in ipairs(file:names()) do
      local tensor = file:read(name)
      local other = fn(name, tensor)
      if other then list[#list + 1] = { name = name, tensor = other } end
    end
    local copy = model.folder:path "changed.safetensors"
    core.weights.write(copy, list, {})
    return core.files.read_all(copy)
  end

  local function refused(pattern, bytes)
    local text, status = generate(bytes)
    assert.equal(2, status, text)
    assert.matches(pattern, text)
  end

  it("are refused by name: cut off, empty, no file of weights, of another model", function()
    local text, status = generate(whole)
    assert.equal(0, status, text)
    refused("weights%.safetensors", whole:sub(1, -2))
    refused("weights%.safetensors", whole:sub(1, 100))
    refused("weights%.safetensors", "")
    refused("weights%.safetensors", ("tide"):rep(100))
    refused("has no weight layers%.1%.swiglu%.up; nearest: layers%.%d%.swiglu",
      changed(function(name, tensor) return name ~= "layers.1.swiglu.up" and tensor or nil end))
    refused("layers%.0%.attention%.q is %(16, 32%), and the recipe's is %(32, 32%)",
      changed(function(name, tensor)
        return name == "layers.0.attention.q" and tensor:narrow(1, 1, 16) or tensor
      end))
  end)

  it("that are not finite end the command, and the server after it has told everybody", function()
    local bytes = changed(function(name, tensor)
      return name == "layers.1.swiglu.up" and tensor:fill(0 / 0) or tensor
    end)
    local text, status = generate(bytes)
    assert.equal(1, status, text)
    assert.matches("the logit of token %d+ is %-?NaN", text:gsub("nan", "NaN"))
    local one <close> = servers.start(model.path)
    local answer = one:ask("/v1/completions", { prompt = "Ti" })
    assert.equal(500, answer.status)
    assert.matches("the logit of token", core.json.decode(answer.body).error.message)
    local said
    said, status = one:wait()
    assert.equal(1, status)
    assert.matches("the logit of token", said)
  end)
end)
