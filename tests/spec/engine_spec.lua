-- A request has the same tokens and log-probability bits alone and in any crowd, and the logits of
-- the training forward pass.
local core = require "tidelock.core"
local models = require "support.models"
local nn = require("tidelock").nn
local serve = require "support.serve"

local function experts_layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 4, kv_heads = 2 } },
    nn.residual { nn.rms_norm {}, nn.moe { experts = 6, top_k = 2, hidden = 32 } },
  }
end

--- Expanded keys wider than values, and a softmax whose scale is that of stretched waves.
local function latent_layer()
  local yarn = { "yarn", factor = 4, original = 16, beta_fast = 4, mscale = 1, mscale_all_dim = 1 }
  return {
    nn.residual { nn.rms_norm {}, nn.mla { heads = 4, q_rank = 9, kv_rank = 10, nope_dim = 6,
      rope_dim = 4, v_dim = 5, rope = { scaling = yarn } } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 32 } },
  }
end

local function deepseek_layer(i)
  return {
    nn.residual { nn.rms_norm {}, nn.mla { heads = 4, kv_rank = 10, nope_dim = 6, rope_dim = 4 } },
    nn.residual { nn.rms_norm {}, i == 1 and nn.swiglu { hidden = 32 } or nn.moe { experts = 6,
      top_k = 2, hidden = 16, shared = 1, balance = { "bias", 0.1 },
      router = { "sigmoid", groups = 3, top_groups = 2, scale = 2.5 } } },
  }
end

local shapes = {
  { name = "grouped heads", options = {} },
  { name = "a window, bias, gelu, layer_norm", options = { window = 5, bias = true, gelu = true,
    layer_norm = true } },
  { name = "tied, learned positions, dropout", options = { tied = true, positions = 20,
    rope = false, dropout = 0.1 } },
  { name = "bf16", options = { dtype = "bf16" } },
  { name = "latent attention", options = { layer = latent_layer } },
  { name = "latent attention, bf16", options = { layer = latent_layer, dtype = "bf16" } },
  { name = "latent attention, experts by sigmoids and a bias",
    options = { layer = deepseek_layer } },
  { name = "experts", options = { layer = experts_layer } }, -- whole on every rank of tp
}

--- Each request alone.
local function alone(file, requests, more)
  local all = {}
  for i, request in ipairs(requests) do
    all[i] = serve.outcomes(file, more, { request })[1]
  end
  return all
end

for _, shape in ipairs(shapes) do
  describe("generation, " .. shape.name, function()
    local file, requests, expected
    setup(function()
      file = serve.train(shape.options)
      requests = serve.requests(models.defaults.vocab)
      expected = alone(file, requests)
    end)
    teardown(function() os.remove(file.path) end)

    it("gives a request the same bits in a crowd", function()
      assert.same(expected, (serve.outcomes(file, {}, requests)))
      for seed = 1, 3 do
        assert.same(expected, (serve.outcomes(file, {}, requests, {},
          serve.order(#requests, seed), seed)))
      end
    end)

    it("gives the same bits with any chunks and pages, and with prefixes or without", function()
      for _, chunk in ipairs { 1, 3 } do
        assert.same(expected, (serve.outcomes(file, {}, requests, { chunk = chunk })))
      end
      assert.same(expected, (serve.outcomes(file, { ["serve.page"] = 16 }, requests, {}, nil, 1)))
      assert.same(expected, (serve.outcomes(file, { ["serve.page"] = 3 }, requests, {}, nil, 2)))
      assert.same(expected, (serve.outcomes(file, { ["serve.rows"] = 5, ["serve.requests"] = 2 },
        requests)))
      local text, stats = serve.outcomes(file, {}, requests, { prefix = false }, nil, 2)
      assert.same({ expected, 0 }, { text, stats.hits })
      text, stats = serve.outcomes(file, {}, requests, {}, nil, 2)
      assert.same(expected, text)
      assert.is_true(stats.hits > 0)
    end)

    it("gives the same bits when a step is queued before the last one is read", function()
      for late = 0, 1 do
        assert.same(expected, (serve.outcomes(file, { ["serve.rows"] = 5 }, requests,
          { ahead = true }, serve.order(#requests, late), late)))
      end
      assert.same(expected, (serve.outcomes(file, { ["layout.tp"] = 2 }, requests,
        { ahead = true, chunk = 2, poison = 255 })))
    end)

    it("gives the same bits where many rows are computed and few choose", function()
      local many, each = {}, {}
      for i = 1, 40 do
        local request = requests[(i - 1) % #requests + 1]
        many[i] = request.echo and requests[1] or request
        each[i] = request.echo and expected[1] or expected[(i - 1) % #requests + 1]
      end
      for _, request in ipairs(many) do assert(#request.tokens < 20) end
      local wide = { ["serve.rows"] = 272, ["serve.requests"] = 80 }
      local long = {}
      for i = 1, 40 do
        local tokens = models.tokens(i, 11, models.defaults.vocab)
        long[i] = { tokens = tokens, max_tokens = 2, temperature = 1, seed = i }
      end
      local whole = serve.outcomes(file, { ["serve.rows"] = 16 }, long)
      table.move(long, 1, 40, #many + 1, many)
      table.move(whole, 1, 40, #each + 1, each)
      for _, ahead in ipairs { false, true } do
        local text, stats = serve.outcomes(file, wide, many, { ahead = ahead, poison = 255 })
        assert.same(each, text)
        assert.is_true(stats.steps < 16)
      end
      assert.same(each, (serve.outcomes(file, models.with(wide, { ["layout.tp"] = 2 }), many)))
      assert.same(each, (serve.outcomes(file, models.with(wide, { ["layout.pp"] = 2 }), many)))
    end)

    it("gives the same bits in a pool so small that pages are taken from prefixes", function()
      assert.same(expected, (serve.outcomes(file, { ["serve.pages"] = 5 }, requests)))
    end)

    it("gives the same bits under tp", function()
      for _, tp in ipairs { 2, 4 } do
        assert.same(expected, (serve.outcomes(file, { ["layout.tp"] = tp }, requests, {},
          serve.order(#requests, tp), 1)))
      end
    end)

    it("has its layers on the ranks of a pipeline, each once", function()
      local e <close> = serve.open(file, { ["layout.pp"] = 2, ["layout.tp"] = 2 })
      assert.equal(4, e.ranks:count())
      local held = {}
      for stage, low in ipairs(e.plan.ranks) do
        for _, param in ipairs(low.params) do
          local layer = param.name:match "^layers%.%d+"
          if layer then held[layer] = held[layer] or stage end
          if layer then assert.equal(held[layer], stage, param.name) end
        end
      end
      assert.same({ ["layers.0"] = 1, ["layers.1"] = 2 }, held)
    end)

    it("gives the same bits under pp, and under both", function()
      for _, tp in ipairs { 1, 2 } do
        assert.same(expected, (serve.outcomes(file, { ["layout.pp"] = 2, ["layout.tp"] = tp },
          requests, { poison = 255 }, serve.order(#requests, tp), 1)))
      end
    end)

    it("gives the same bits plainly, with memory of each step's own", function()
      local plain = { plain = true }
      assert.same(expected, (serve.outcomes(file, {}, requests, plain)))
      assert.same(expected, (serve.outcomes(file, { ["layout.tp"] = 2, ["layout.pp"] = 2 },
        requests, plain)))
    end)

    it("gives the same bits whatever was in memory, with any threads", function()
      assert.same(expected, (serve.outcomes(file, {}, requests, { poison = 255, threads = 3 })))
    end)
  end)
end

describe("logits of requests", function()
  for _, shape in ipairs(shapes) do
    local dropped = shape.options.dropout
    it("are those of the training forward pass: " .. shape.name, function()
      local options = models.with(shape.options, { dropout = dropped and 0 })
      local run <close> = models.start(options, { keep = { "logits" } })
      local file <close> = serve.save(run, options)
      run:step()
      local whole = run:kept "logits"
      local columns = whole:shape()[2]
      local length, samples = models.defaults.length, models.defaults.samples
      local e <close> = serve.open(file, { ["serve.context"] = 20 })
      for sample = 0, 1 do
        local tokens = run.sources[1]:micro(0, samples, sample, 1)
        assert(e:submit { tokens = tokens, max_tokens = 1 })
        e:step()
        local bits = e:logits(16):bits()
        assert.equal(length, #tokens)
        local width, expected = #bits // 16, whole:narrow(1, sample * length + 1, length):bits()
        for row = 0, length - 1 do
          for column = 1, math.min(columns, models.defaults.vocab) do
            assert.equal(expected[row * columns + column], bits[row * width + column])
          end
        end
      end
    end)
  end
end)

describe("the engine", function()
  local file
  setup(function() file = serve.train {} end)
  teardown(function() os.remove(file.path) end)

  it("lets go of its plan when the programs run", function()
    local serving, plans = require "tidelock.plan.serving", setmetatable({}, { __mode = "k" })
    local plan_of = serving.plan
    serving.plan = function(...)
      local plan = plan_of(...)
      plans[plan], plans[plan.programs], plans[plan["local"]] = true, true, true
      return plan
    end
    local e <close> = serve.open(file)
    serving.plan = plan_of
    collectgarbage()
    assert.is_nil(next(plans))
    assert.is_table(e.plan.classes)
  end)

  it("refuses what it cannot serve, and says why", function()
    local e <close> = serve.open(file, { ["serve.pages"] = 4, ["serve.context"] = 16 })
    local function refused(request)
      local id, message = e:submit(request)
      assert.is_nil(id)
      return message
    end
    local long = {}
    for i = 1, 16 do long[i] = 1 end
    assert.matches("empty prompt", refused { tokens = {}, max_tokens = 1 })
    assert.matches("token 1 of the prompt is 61; ids are 0 to 60",
      refused { tokens = { 1, 61 }, max_tokens = 1 })
    assert.matches("the prompt has 16 tokens, and a request 16",
      refused { tokens = long, max_tokens = 1 })
    assert.matches("max_tokens is nil", refused { tokens = { 1 } })
    assert.matches("temperature is %-1",
      refused { tokens = { 1 }, max_tokens = 1, temperature = -1 })
    assert.matches("top_p is 0", refused { tokens = { 1 }, max_tokens = 1, top_p = 0 })
    assert.matches("top_k is 1.5", refused { tokens = { 1 }, max_tokens = 1, top_k = 1.5 })
    assert.matches("no field tempo", refused { tokens = { 1 }, max_tokens = 1, tempo = 3 })
    assert.matches("a request is a table", refused(5))
    assert.matches("stop has 61", refused { tokens = { 1 }, max_tokens = 1, stop = { 61 } })
    assert.error_matches(function() serve.open(file, { ["serve.pages"] = 3 }) end,
      "serve.pages: 3 pages of 4 positions are too few for one context of 16; try serve.pages=4")
    assert.error_matches(function() serve.open(file, { ["serve.requests"] = 65537 }) end,
      "serve.requests: 65537 requests at a time; there can be up to 65536, more wait")
    assert.error_matches(function() serve.open(file, { ["serve.pages"] = 1 << 30,
      ["serve.page"] = 1 << 30 }) end, "serve.pages: 1073741824 pages of 1073741824 positions; a "
      .. "pool has at most 1099511627776 positions")
  end)

  it("makes what fits where as many tokens are asked for as there are numbers", function()
    local e <close> = serve.open(file, { ["serve.context"] = 16 })
    assert(e:submit { tokens = { 1, 2 }, max_tokens = math.maxinteger })
    local made = 0
    while not e:idle() do made = made + #e:step() end
    assert.equal(14, made)
  end)

  it("takes no memory for a step, but plainly does, and gives it back", function()
    local trained <close> = serve.train {}
    local function arenas(how)
      local e <close> = serve.open(trained, {}, how)
      local list = { e.ranks:memory().arena }
      e:submit { tokens = { 1, 2 }, max_tokens = 5 }
      while not e:idle() do
        e:step()
        list[#list + 1] = e.ranks:memory().arena
      end
      return list
    end
    local planned, plain = arenas {}, arenas { plain = true }
    assert.equal(planned[1], plain[1])
    for i = 2, 6 do
      assert.equal(planned[1], planned[i])
      assert.is_true(plain[i] > plain[1])
    end
    assert.equal(plain[3], plain[6]) -- steps of one row
    assert.equal(planned[1], arenas({})[1])
  end)

  for _, name in ipairs { "", ", steps ahead" } do
    local how = { ahead = name ~= "" }
    it("ends at a stop, at the context, when cancelled, and frees all" .. name, function()
      local e <close> = serve.open(file, nil, how)
      local greedy = assert(e:submit { tokens = { 1, 2 }, max_tokens = 3 })
      local events = {}
      while not e:idle() do table.move(e:step(), 1, 9, #events + 1, events) end
      assert.same({ greedy, "length" }, { events[3].id, events[3].finish })
      local stopped = assert(e:submit { tokens = { 1, 2 }, max_tokens = 9,
        stop = { events[1].token } })
      local first = e:step()[1]
      assert.same({ stopped, events[1].token, "stop" }, { first.id, first.token, first.finish })
      local long = assert(e:submit { tokens = { 3 }, max_tokens = 100 })
      local waits = assert(e:submit { tokens = { 4 }, max_tokens = 100 })
      e:step()
      assert.is_true(e:cancel(long))
      assert.is_false(e:cancel(long))
      assert.same({ id = long, finish = "cancelled" }, e:step()[1])
      local last
      while not e:idle() do last = e:step()[1] end
      assert.same({ waits, "length", 15 }, { last.id, last.finish, last.position })
      local stats = e:stats()
      assert.equal(stats.pages, stats.free + stats.kept)
      assert.same({ 0, 0 }, { stats.waiting, stats.running })
    end)

    it("gives the likeliest tokens beside each" .. name, function()
      local e <close> = serve.open(file, nil, how)
      assert(e:submit { tokens = { 7, 8 }, max_tokens = 2, top = 3, echo = true })
      local given = e:step()
      local made = e:step()[1]
      for _, event in ipairs { given[1], given[2], made } do
        assert.equal(3, #event.top)
        assert.is_true(event.top[1].logprob >= event.top[2].logprob
          and event.top[2].logprob >= event.top[3].logprob)
      end
      for _, event in ipairs { given[2], made } do -- greedy: the first one is the token
        assert.same({ event.token, event.logprob }, { event.top[1].token, event.top[1].logprob })
      end
      local _, message = e:submit { tokens = { 1 }, max_tokens = 1, top = 21 }
      assert.matches("top is 21; 0 to 20", message)
    end)

    it("goes on beside requests that have ended" .. name, function()
      local e <close> = serve.open(file, { ["serve.requests"] = 2 }, how)
      local one <close> = serve.open(file)
      local function tokens_of(engine, id, count)
        local list = {}
        while not engine:idle() and #list < count do
          for _, event in ipairs(engine:step()) do
            if event.id == id then list[#list + 1] = event.token or event.finish end
          end
        end
        return list
      end
      local wanted = { tokens = { 5, 6 }, max_tokens = 12 }
      local expected = tokens_of(one, assert(one:submit(wanted)), 12)
      local first = tokens_of(one, assert(one:submit { tokens = { 9 }, max_tokens = 3 }), 3)
      local id = assert(e:submit(wanted))
      local short = assert(e:submit { tokens = { 9 }, max_tokens = 9, stop = { first[2] } })
      local gone = assert(e:submit { tokens = { 9, 1 }, max_tokens = 9 })
      local made = tokens_of(e, id, 4)
      assert.is_false(e:cancel(short)) -- it met its stop
      assert.is_true(e:cancel(gone))
      table.move(tokens_of(e, id, 8), 1, 8, 5, made)
      assert.same(expected, made)
      assert.is_true(e:idle())
      local stats = e:stats()
      assert.equal(stats.pages, stats.free + stats.kept)
    end)
  end

  it("gives the log-probability of every token of a prompt with echo", function()
    local e <close> = serve.open(file)
    assert(e:submit { tokens = { 7, 8, 9 }, max_tokens = 1, echo = true })
    local events = e:step()
    assert.same({ 8, 9 }, { events[1].token, events[2].token })
    assert.same({ true, true }, { events[1].prompt, events[2].prompt })
    local z = e:logits(4):narrow(1, 1, 1):flat()
    local sum = 0.0
    for i = 1, models.defaults.vocab do sum = sum + math.exp(z[i] - z[9]) end
    assert.near(-math.log(sum), events[1].logprob, 1e-5)
    assert.equal(core.f32(events[1].logprob), events[1].logprob)
  end)
end)

describe("a known page", function()
  it("is found by its tokens and by the pages before it, nothing less", function()
    local pool = require "tidelock.serve.pages".new(8, 2, true)
    local function request(tokens)
      local parent = 0
      for i = 1, #tokens // 2 do parent = pool:name(pool:take(), parent, tokens, i) end
    end
    request { 1, 2, 7, 8 }
    request { 3, 4, 7, 9 }
    local function found(tokens) return #pool:find(tokens, #tokens) end
    assert.equal(2, found { 1, 2, 7, 8 })
    assert.equal(2, found { 3, 4, 7, 9, 5 })
    assert.equal(1, found { 3, 4, 7, 8 }) -- 7, 8 is known behind 1, 2 alone
    assert.equal(1, found { 1, 2, 7, 9 })
    assert.equal(0, found { 7, 8 })
    assert.equal(0, found { 12, 7, 8 })
  end)

  it("that is read again and again takes no more memory, and the oldest is still forgotten first",
    function()
      local pool = require "tidelock.serve.pages".new(4, 1, true)
      for token = 1, 3 do
        local page = pool:take()
        pool:name(page, 0, { token }, 1)
        pool:release(page)
      end
      for _ = 1, 50 do
        for _, token in ipairs { 3, 2 } do
          local entry = pool:find({ token }, 1)[1]
          pool:share(entry)
          pool:release(entry.page)
        end
        local places = 0
        for _ in pairs(pool.kept) do places = places + 1 end
        assert.is_true(places <= 2 * pool.count, places)
      end
      assert.equal(3, pool.kept_count)
      for count, token in ipairs { 1, 3, 2 } do
        pool:take()
        if count == 1 then pool:take() end -- the one that was never used
        assert.equal(0, #pool:find({ token }, 1))
        assert.equal(3 - count, pool.kept_count)
      end
    end)
end)
