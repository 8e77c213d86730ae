-- What a cluster file predicts for a plan, what is estimated without one, and the search over both.
local cluster = require "tidelock.forecast.cluster"
local core = require "tidelock.core"
local estimate = require "tidelock.forecast.estimate"
local flops = require "tidelock.forecast.flops"
local new_folder = require "support.folder"
local planner = require "tidelock.plan"
local predict = require "tidelock.forecast.predict"
local layer_costs = require "tidelock.forecast.layer_costs"
local recipes = require "tidelock.language.recipe"
local search = require "tidelock.forecast.search"
local search_table = require "tidelock.forecast.search_table"
local summaries = require "tidelock.plan.summary"
local support = require "support"

local laptop = cluster.read "recipes/clusters/laptop.yaml"
local h200 = cluster.read "recipes/clusters/h200x8.yaml"
local hosts = cluster.read "recipes/clusters/h200x16.yaml"

local function plan_of(file, ...) return planner(recipes.load(file, { ... })) end

local function predicted(plan, facts)
  return predict.of(plan, facts, summaries.bubble(plan), flops.of_step(plan.graph, plan.spec.batch))
end

local function with(facts, changes)
  local own = {}
  for name, value in pairs(facts) do own[name] = value end
  for name, value in pairs(changes) do own[name] = value end
  return own
end

describe("a prediction", function()
  local quickstart = plan_of "recipes/quickstart.lua"

  it("takes longer on a slower machine, and says whether memory is enough", function()
    local fast, slow = predicted(quickstart, h200), predicted(quickstart, laptop)
    assert.is_true(fast.step_s < slow.step_s)
    assert.is_true(fast.fits and slow.fits)
    assert.is_false(predicted(quickstart, with(laptop, { memory = 0.001 })).fits)
    assert.equal(2 * slow.step_s, predict.of(quickstart, laptop, 0.5, 0).step_s)
  end)

  it("is the sum of its causes, and names the largest", function()
    local guess = predicted(quickstart, laptop)
    local t = guess.time
    assert.near(guess.step_s, t.matrix + t.attention + t.bandwidth + t.launch, 1e-9)
    assert.equal("matrix products", guess.bound)
    assert.equal("other bytes", predicted(quickstart, with(laptop, { bandwidth = 1e-4 })).bound)
    assert.near(flops.of_step(quickstart.graph, quickstart.spec.batch) / guess.step_s / 0.424e12,
      guess.mfu, 1e-9)
  end)

  it("counts bytes by axis, and takes the network where a group leaves its island", function()
    local plan = plan_of("recipes/quickstart.lua", "layout.tp=2", "layout.dp=8")
    local axes = predicted(plan, hosts).time.axes
    assert.same({ "link", "link" }, { axes.tp.link, axes.dp and "link" })
    assert.equal("network", axes.dp.link) -- 16 ranks, islands of 8
    -- a branch gathers bf16 or f32 rows and sums f32 ones, forward and backward: half of each
    assert.is_true(axes.tp.bytes > 0 and axes.tp.count > 8 * 4)
    assert.is_true(axes.tp.exposed > 0)
  end)

  it("hides messages that have a lane of their own", function()
    local host = predicted(plan_of("recipes/quickstart.lua", "layout.dp=2"), h200).time
    local plan = plan_of("recipes/quickstart.lua", "layout.dp=2", "device=cuda")
    local cuda = predicted(plan, h200).time
    assert.near(host.messages, host.exposed, 1e-9)
    assert.is_true(cuda.exposed < 0.9999 * cuda.messages)
  end)

  it("fills the bubble where more ranks than processors share a host", function()
    assert.near(1 / 0.8, predict.step(laptop, 1, 2, 0.2), 1e-12)
    assert.equal(1, predict.step(laptop, 1, 8, 0.2))
    assert.near(1 / 0.8, predict.step(h200, 1, 8, 0.2), 1e-12)
  end)
end)

describe("a layer of experts", function()
  it("has its products, bytes, and what waves hide of them", function()
    local function line(waves)
      local plan = plan_of("recipes/moe_small.lua", "layout.dp=4", "layout.ep=4",
        "blocks.moe.waves=" .. waves)
      return require("tidelock.forecast.cluster_text").of(plan, with(h200, { link = 1, latency = 1,
        matrix = { f32 = 0.5, bf16 = 0.5 } })):match "experts' layer   (.-)\n  %a":gsub("%s+", " ")
    end
    local function numbers(text)
      local products, links, hidden, exposed = text:match(
        "products ([%d.]+) ms, links ([%d.]+) ms: ([%d.]+) hidden, ([%d.]+) exposed")
      return tonumber(products), tonumber(links), tonumber(hidden), tonumber(exposed)
    end
    local _, links, hidden, exposed = numbers(line(1))
    assert.same({ 0, links }, { hidden, exposed }) -- one wave: nothing to hide behind
    _, links, hidden, exposed = numbers(line(4))
    assert.is_true(hidden > 0)
    assert.near(links, hidden + exposed, 0.011)
  end)

  it("is told below 100 columns, however slow it is", function()
    local text = require("tidelock.forecast.cluster_text").of(plan_of("recipes/moe_small.lua",
      "layout.dp=4", "layout.ep=4"), with(laptop, { matrix = { f32 = 1e-5, bf16 = 1e-5 } }))
    for line in text:gmatch "[^\n]+" do assert.is_true(#line < 100, line) end
    assert.matches("exposed\n  predicted", text)
  end)
end)

describe("an estimate without a plan", function()
  it("is near what the whole plan predicts, in time and memory", function()
    for _, case in ipairs {
      { "recipes/quickstart.lua", laptop }, { "recipes/quickstart.lua", h200, "layout.tp=2" },
      { "recipes/quickstart.lua", h200, "layout.dp=4" },
      { "recipes/quickstart.lua", laptop, "layout.pp=2" },
      { "recipes/quickstart.lua", h200, "layout.tp=2", "layout.dp=2", "layout.pp=2" },
      { "recipes/moe_small.lua", laptop },
      { "recipes/moe_small.lua", laptop, "blocks.moe.keep=false" },
      { "recipes/moe_1b.lua", h200, "layout.dp=2", "layout.ep=2", "batch.samples=16" },
      { "recipes/moe_1b.lua", h200, "layout.dp=2", "layout.ep=2", "batch.samples=16",
        "blocks.moe.keep=true" },
      { "recipes/gpt2_124m.lua", h200, "layout.dp=4", "batch.micro=40" },
    } do
      local words = table.move(case, 3, #case, 2, { "device=" .. (case[2].device or "host") })
      local plan = plan_of(case[1], table.unpack(words))
      local spec, exact = plan.spec, predicted(plan, case[2])
      local l = spec.layout
      local guess = estimate.of(layer_costs.of(plan), { tp = l.tp, dp = l.dp, pp = l.pp, ep = l.ep,
        micro = spec.batch.micro, micros = plan.micros, schedule = l.schedule,
        virtual = l.virtual_stages, waves = spec.blocks.moe.waves,
        keep = search.keeps(spec, spec.blocks.moe.waves),
        leaves_dp = spec.policy.leaves.dp,
      }, spec, case[2], 1)
      local name = table.concat(words, " ") .. " " .. case[1]
      assert.is_true(math.abs(guess.step_s / exact.step_s - 1) < 0.15, name .. ": "
        .. guess.step_s / exact.step_s)
      assert.is_true(math.abs(guess.bytes / exact.bytes - 1) < 0.35, name .. ": "
        .. guess.bytes / exact.bytes)
    end
  end)

  it("has the bubbles of the schedules", function()
    assert.equal(0.2, estimate.bubble("1f1b", 2, 4, 1))
    assert.near(0.5 / 4.5, estimate.bubble("interleaved", 2, 4, 2), 1e-12)
    assert.near((1 / 3) / (4 + 1 / 3), estimate.bubble("zb-h1", 2, 4, 1), 1e-12)
  end)
end)

describe("a search", function()
  local plan = planner(recipes.load("recipes/gpt2_124m.lua", { "layout.tp=1", "layout.dp=1" }),
    "expand")

  it("ranks every layout that the rules allow, the fastest first", function()
    local found, refused = search.of(plan, h200, 8)
    assert.is_true(#found >= 4)
    for i = 2, #found do assert.is_true(found[i - 1].guess.step_s <= found[i].guess.step_s) end
    for _, c in ipairs(found) do
      assert.equal(8, c.tp * c.dp * c.pp)
      local words = { ("layout.tp=%d"):format(c.tp), ("layout.dp=%d"):format(c.dp),
        ("layout.pp=%d"):format(c.pp), ("batch.micro=%d"):format(c.micro),
        ("policy.leaves={ tp = %d, dp = %d }"):format(c.leaves.tp, c.leaves.dp),
        "layout.schedule=" .. c.schedule, ("layout.virtual_stages=%d"):format(c.virtual) }
      planner(recipes.load("recipes/gpt2_124m.lua", words), "check") -- as it would be checked
    end
    assert.is_true(refused["tp 8 does not divide heads 12"] > 0)
  end)

  it("prints words that any command takes, whatever the recipe says of its own layout", function()
    local folder = new_folder()
    local path = folder:path "own.lua"
    folder:write("gpt2_124m.lua", (core.files.read_all "recipes/gpt2_124m.lua"))
    for _, layout in ipairs { "pp = 4, schedule = 'interleaved', virtual_stages = 2",
      "pp = 4, stages = { 3, 3, 3, 3 }", "pp = 2, dp = 2, schedule = 'gpipe'" } do
      folder:write("own.lua", ("return require('tidelock').load 'gpt2_124m.lua':with "
        .. "{ layout = { %s } }"):format(layout))
      local text, status = support.run(("plan %s --cluster recipes/clusters/h200x8.yaml --search")
        :format(path))
      assert.equal(0, status, text)
      local words = {}
      for word in text:match "\n  best   ([^\n]+)":gmatch "%S+" do words[#words + 1] = word end
      planner(recipes.load(path, words), "check")
    end
    folder:remove()
  end)

  it("leaves out what memory does not hold, and says when nothing fits", function()
    local small = with(h200, { memory = 0.01 })
    local found, refused = search.of(plan, small, 8)
    assert.equal(0, #found)
    assert.is_true(refused.full > 0)
    local text = search.text(found, refused, plan.spec, small, 8, "x.lua", 0)
    assert.matches("candidates need more than 0%.01 GiB a rank", text)
    refused.full = 1
    assert.matches("  1 candidate needs more than 0%.01 GiB a rank",
      search.text(found, refused, plan.spec, small, 8, "x.lua", 0))
  end)

  describe("as a table", function()
    local guess = { step_s = 0.1, tokens_per_s = 2e6, mfu = 0.5, bubble = 0, bytes = 2 ^ 30,
      bound = "matrix", causes = { matrix = 0.1, attention = 0, bandwidth = 0, launch = 0,
        exposed = 0, bubble = 0 } }
    --- A candidate; `more`: ms that it takes beyond the first, by cause.
    local function candidate(fields, more)
      local causes = {}
      for name, s in pairs(guess.causes) do causes[name] = s + (more[name] or 0) / 1000 end
      return with({ tp = 1, dp = 1, pp = 1, ep = 1, micro = 4, schedule = "1f1b",
        guess = with(guess, { causes = causes }) }, fields)
    end
    local shown = { candidate({ dp = 8 }, {}),
      candidate({ tp = 2, dp = 128, pp = 16, ep = 32, schedule = "interleaved" },
        { exposed = 1234.5, bubble = 100.25, launch = 1 }), candidate({ tp = 8 }, { launch = 2 }) }

    it("keeps to the width, and every number", function()
      for _, width in ipairs { 200, 100, 80, 60 } do
        local lines = search_table.lines(shown, { "", "tp 16 dp 128", "" }, width)
        local text = table.concat(lines, " "):gsub("%s+", " ")
        for _, part in ipairs { "# layout step ms exposed leaves ms more than #1 1 dp 8 ",
          "2 tp 2 dp 128 pp 16 ep 32 interleaved 100.0 1234.5 tp 16 dp 128 +1234.5 waits "
          .. "+100.2 bubble 3 tp 8 ", "+2.0 launches", "#1 2.0M tok/s, mfu 50%, bound by matrix "
          .. "products", "in all of them micro 4, bubble 0.0%, GiB 1.0", "another key" } do
          assert.is_truthy(text:find(part, 1, true), part .. " is not in " .. text)
        end
        for i = width < 80 and #lines or 1, #lines do
          assert.is_true(#lines[i] < math.min(width, 100), lines[i])
        end
      end
    end)

    it("leaves nothing out of a single row, and no column empty", function()
      local lines = search_table.lines({ shown[1] }, { "" }, 100)
      assert.same({ "  #  layout  micro  step ms  bubble  exposed  GiB",
        "  1  dp 8        4    100.0    0.0%      0.0  1.0",
        "  #1  2.0M tok/s, mfu 50%, bound by matrix products" }, lines)
    end)
  end)

  it("takes a second, also for 16,384 ranks", function()
    local clock = os.clock()
    local text, status = support.run("plan recipes/llama_1b.lua --cluster recipes/clusters/"
      .. "h200x16.yaml --search --ranks 16384")
    assert.equal(0, status)
    assert.matches("\n +1  tp 8 dp 256 pp 8 ", text)
    for line in text:gmatch "[^\n]+" do
      assert.is_true(#line < 100 or line:sub(1, 8) == "  best  ", line) -- to be copied as one
    end
    assert.matches("best   layout%.tp=8 layout%.dp=256 layout%.pp=8 .*policy%.leaves%.dp=256", text)
    assert.is_true(os.clock() - clock < 5)
    text, status = support.run "plan recipes/llama_1b.lua --search"
    assert.equal(2, status)
    assert.matches("%-%-search goes with %-%-cluster FILE", text)
    text, status = support.run "plan recipes/llama_1b.lua --ranks 8"
    assert.equal(2, status)
    assert.matches("%-%-ranks goes with %-%-search; layout%.dp=4", text)
    text, status = support.run "plan recipes/llama_1b.lua --rank 0"
    assert.equal(2, status)
    assert.matches("%-%-rank goes with %-%-memory FILE", text)
    text, status = support.run "plan recipes/llama_1b.lua --memory a.png"
    assert.equal(2, status)
    assert.matches("^tidelock: %-%-memory: a%.png: a name that ends in %.svg", text)
    for _, option in ipairs { "memory a.svg", "program a.plan", "rank 0" } do
      text, status = support.run("plan recipes/llama_1b.lua --cluster recipes/clusters/"
        .. "h200x16.yaml --search --" .. option)
      assert.equal(2, status)
      assert.matches("%-%-" .. option:match "%a+" .. " is of one layout", text)
    end
  end)
end)
