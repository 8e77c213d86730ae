-- What generation takes beside weights and pages is planned, told, and compared with what there is.
local engine = require "tidelock.serve.engine"
local forecast = require "tidelock.forecast"
local gpus = require "tidelock.machine.gpus"
local pages = require "tidelock.serve.pages"
local room = require "tidelock.machine.room"
local serving = require "tidelock.plan.serving"
local serving_memory = require "tidelock.plan.serving_memory"
local support = require "support"
local tl = require "tidelock"

local nn = tl.nn

local function recipe(fields, dim)
  local function layer()
    return {
      nn.residual { nn.rms_norm {}, nn.attention { heads = 4, kv_heads = 1 } },
      nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
    }
  end
  return tl.recipe({
    model = nn.decoder { vocab = 61, dim = dim or 64, layers = 2, layer = layer }, dtype = "bf16",
    data = tl.data.given { { tokens = { 0 } } }, batch = { samples = 1, length = 64 },
    policy = { "layout", leaves = { tp = 4, dp = 1 } }, train = { steps = 1, lr = 0 },
  }):with(fields)
end

--- Values of at most 8 rows that a pass may send, in whole pieces of 16 bytes: those of the section
--- that has most.
local function mail_of(program)
  local sends = { binary = true, linear = true, swiglu = true, attention_cached = true }
  local most = 0
  for name, range in pairs(program.sections) do
    local all = 0
    for i = range[1], range[1] + range[2] - 1 do
      local made = program.instructions[i]
      for _, index in ipairs(name:find "^serve" and sends[made.op] and made.outputs or {}) do
        local t = program.tensors[index]
        local bytes = t.dtype == "bf16" and 2 or 4
        for _, size in ipairs(t.shape) do bytes = bytes * size end
        all = all + (t.shape[1] <= 8 and (bytes + 15) // 16 * 16 or 0)
      end
    end
    most = math.max(most, all)
  end
  return most
end

describe("the memory of generation", function()
  local machine, compare, complaints = gpus.machine, gpus.compare, gpus.complaints
  local bytes = room.bytes
  after_each(function()
    gpus.machine, gpus.compare, gpus.complaints = machine, compare, complaints
    room.bytes = bytes
  end)

  it("has the mail of passes, twice, on a GPU alone", function()
    local found, mail = {}, {}
    for i, dim in ipairs { 64, 256 } do
      local plan = serving.plan(recipe({ device = "cuda" }, dim))
      found[i], mail[i] = serving_memory.of_rank(plan, 1), mail_of(plan.programs[1])
      assert.is_true(mail[i] > 0 and found[i].passes > 2 * mail[i])
      assert.equal(64 << 20, found[i].kernels)
      assert.equal(plan.places[1].bytes + found[i].passes + found[i].kernels, found[i].all)
    end
    assert.equal(2 * (mail[2] - mail[1]), found[2].passes - found[1].passes)
    local host = serving_memory.of_rank(serving.plan(recipe {}), 1)
    assert.same({ 0, 0, host.arena }, { host.passes, host.kernels, host.all })
  end)

  it("is told by the plan", function()
    local text = forecast.serving_text(serving.plan(recipe { device = "cuda",
      ["serve.pages"] = 10000 }))
    assert.matches("\n    beside it    +%d+%.%d   on its GPU: passes of few rows %d+%.%d, "
      .. "kernels 64%.0\n", text)
    assert.matches("\n    list          +8%.9   of the host: the list of pages, at most$", text)
    assert.not_matches("beside it", forecast.serving_text(serving.plan(recipe {})))
  end)

  it("that is refused leaves nothing of a plan on the screen, and lines are short", function()
    local text, status = support.run "plan recipes/quickstart.lua serve.requests=400000"
    assert.equal(2, status)
    assert.matches("^command line: serve.requests: 400000 requests at a time; ", text)
    text, status = support.run "plan recipes/llama_1b.lua serve.requests=4"
    assert.equal(0, status)
    assert.matches("\n  serving    4 requests of 2,048 tokens: ", text)
    for line in text:gmatch "[^\n]+" do assert.is_true(#line < 100, line) end
  end)

  it("has a list of pages that is no longer than planned", function()
    for _, size in ipairs { 1, 16, 64 } do
      collectgarbage()
      collectgarbage()
      local before, count, parent = collectgarbage "count", 33000, 0
      local list = pages.new(count, size, true)
      for i = 1, count do -- every page has held a prefix
        local tokens, page = {}, list:take()
        for k = 1, size do tokens[k] = 100000 + (i * 7 + k) % 100000 end
        parent = list:name(page, parent, tokens, 1)
        list:release(page)
      end
      collectgarbage()
      collectgarbage()
      local used = (collectgarbage "count" - before) * 1024
      local planned = serving_memory.of_list { pages = list.count, page = size }
      assert.is_true(used <= planned and used > planned // 2, ("%d of %d"):format(used, planned))
    end
  end)

  it("is refused where the list of pages is too much", function()
    local one = recipe { ["serve.page"] = 1, ["serve.pages"] = 100000 }
    local plan = serving.plan(one)
    local enough = plan.places[1].bytes + serving_memory.of_list(plan.sizes)
    room.bytes = function() return enough - 1 end
    local good, problem = pcall(engine.open, { recipe = one })
    assert.is_false(good)
    assert.matches("serve.pages: %d+%.%d MiB of weights and pages %(100000 of 1 positions%), this "
      .. "machine has", problem.message)
  end)

  it("is refused where a GPU has no room beside the arena", function()
    local one = recipe { device = "cuda" }
    local memory = serving_memory.of_rank(serving.plan(one), 1)
    local facts = { name = "a GPU" }
    gpus.machine = function() return { count = 1, facts = { facts }, built = {} } end
    gpus.compare = function() return {} end
    gpus.complaints = function() return {} end
    local function refused(gpu, host)
      facts.memory, room.bytes = gpu, function() return host end
      local good, problem = pcall(engine.open, { recipe = one })
      assert.is_false(good)
      return problem.message or problem
    end
    assert.matches("serve.requests: %d+%.%d MiB of weights and pages %(16 of 64 positions%), GPU 0 "
      .. "has", refused(memory.all - 1, 1 << 40))
    assert.matches("serve.requests: 0%.0 MiB of a list of pages %(16 of 64 positions%), this "
      .. "machine has 0%.0; a smaller serve.requests", refused(memory.all, 1000))
  end)
end)
