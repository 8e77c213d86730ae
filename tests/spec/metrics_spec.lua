-- ./tl run --metrics: text that Prometheus takes, with the numbers of the log.
local core = require "tidelock.core"
local metrics = require "tidelock.run.metrics"
local new_folder = require "support.folder"
local support = require "support"
local talks = require "support.talk"

--- Reads the text format as strictly as Prometheus does: HELP, TYPE, then the samples of a family,
--- each family once. Returns samples by "name{labels}" and types by family.
local function parse(text)
  assert.equal("\n", text:sub(-1))
  local samples, types, family = {}, {}, nil
  for line in text:gmatch "([^\n]*)\n" do
    local help = line:match "^# HELP ([%a_:][%w_:]*) .+$"
    local name, kind = line:match "^# TYPE ([%a_:][%w_:]*) (%a+)$"
    if help then
      assert.is_nil(types[help], help .. " stands twice")
      family = help
    elseif name then
      assert.equal(family, name)
      assert.is_truthy(("gauge counter summary"):find(kind, 1, true))
      types[name] = kind
    else
      local key, value = line:match "^(%S-%b{}) (%S+)$"
      if not key then key, value = line:match "^(%S+) (%S+)$" end
      assert.is_truthy(key, line)
      local base = key:match "^[%w_:]+"
      if types[family] == "summary" then base = base:gsub("_sum$", ""):gsub("_count$", "") end
      assert.equal(family, base)
      assert.is_nil(samples[key], key .. " stands twice")
      local special = { NaN = 0 / 0, ["+Inf"] = math.huge, ["-Inf"] = -math.huge }
      samples[key] = tonumber(value) or special[value]
      assert.is_truthy(samples[key], line)
    end
  end
  return samples, types
end

describe("--metrics", function()
  local folder, recipe

  before_each(function()
    folder = new_folder()
    local text = folder:write("text.txt", ("a text of some words, again and again; "):rep(20))
    recipe = folder:write("tiny.lua", ([[
      local tl = require "tidelock"
      local nn = tl.nn
      return tl.recipe {
        model = nn.decoder { vocab = 256, dim = 16, layers = 1, layer = function()
          return { nn.residual { nn.rms_norm {}, nn.attention { heads = 4 } } }
        end },
        data = tl.data.text { %q },
        eval = { data = tl.data.text { %q }, every = 1, samples = 4 },
        batch = { samples = 4, length = 16 },
        train = { steps = 3, lr = 1e-3 },
      }]]):format(text, text))
  end)
  after_each(function() folder:remove() end)

  local function run(options)
    return support.run(("run %s --quiet --runs %s %s"):format(recipe, folder:path "runs", options))
  end

  it("has the numbers of the log, and the hash at the end", function()
    local path = folder:path "m.prom"
    local text, status = run(("--metrics %s --jsonl %s"):format(path, folder:path "log.jsonl"))
    assert.equal(0, status, text)
    local samples, types = parse(core.files.read_all(path))
    local records = require("tidelock.run.log").read(folder:path "log.jsonl")
    local last, seconds = records[3], 0
    for i = 1, 3 do seconds = seconds + records[i].ms / 1000 end
    for name, value in pairs {
      tidelock_step = 3, tidelock_steps_planned = 3, tidelock_step_seconds = last.ms / 1000,
      tidelock_step_duration_seconds_sum = seconds, tidelock_step_duration_seconds_count = 3,
      tidelock_tokens_total = 192, tidelock_tokens_per_second = last.tokens_per_s,
      tidelock_mfu = last.mfu, tidelock_loss = last.loss, tidelock_eval_loss = last.eval_loss,
      tidelock_grad_norm = last.grad_norm, tidelock_learning_rate = last.lr,
      tidelock_skipped_steps_total = 0, tidelock_memory_bytes = last.bytes,
      tidelock_memory_planned_bytes = records[4].planned_bytes,
      ['tidelock_weights_info{step="3",hash="' .. records[4].weights_hash .. '"}'] = 1,
      tidelock_nan_steps_total = 0, ['tidelock_plan_deviation_ratio{what="memory"}'] = 0,
      ['tidelock_state{state="finished"}'] = 1, ['tidelock_state{state="running"}'] = 0,
    } do
      assert.near(value, samples[name], 1e-9 * math.abs(value), name)
    end
    assert.near(os.time(), samples.tidelock_last_step_timestamp_seconds, 100)
    assert.equal("counter", types.tidelock_tokens_total)
    local page, known = core.files.read_all "docs/operations.md", {}
    for _, family in ipairs(metrics.families) do
      known[family[1]] = true
      assert.is_truthy(page:find("`" .. family[1] .. "`", 1, true), family[1])
    end
    for name in core.files.read_all("docs/alerts.yaml"):gmatch "tidelock_[%l_]+" do
      assert.is_true(known[name], name)
    end
    for _, name in ipairs(core.files.list(folder.root)) do assert.is_nil(name:find "tmp") end
  end)

  it("is there before the first step and says how the run ended", function()
    local path = folder:path "m.prom"
    local text, status = run("--metrics " .. path .. " train.lr=1e30")
    assert.equal(1, status, text)
    local samples = parse(core.files.read_all(path))
    assert.equal(1, samples['tidelock_state{state="failed"}'])
    assert.equal(1, samples.tidelock_step)
    assert.equal(1, samples.tidelock_nan_steps_total)
    assert.is_nil(core.files.read_all(path):find "tidelock_weights_info")
  end)

  it("serves a port, with a step at a time, until the run ends", function()
    local told = metrics.open(":0", { "recipe", "x" }, 3)
    local port = tonumber(told.address:match ":(%d+)/metrics$")
    local function get(...)
      local list = {}
      for i, path in ipairs { ... } do list[i] = talks.get(path) end
      return talks.start(port, list)
    end
    local first <close> = get "/metrics"
    local early = first:wait()[1]
    local other <close> = get "/other"
    core.files.sleep(0.1)
    for step = 1, 2 do
      core.files.sleep(0.05)
      assert.is_nil(told:step({ step = step, ms = 10, tokens = 5, tokens_per_s = 500.0,
        loss = 1.5, grad_norm = 1.0, lr = 1e-3, bytes = 1 }, { planned = 1 }))
    end
    local second <close> = get "/metrics"
    local late = second:wait()[1]
    for _, page in ipairs { early, late } do
      assert.equal(200, page.status)
      assert.matches("text/plain; version=0.0.4", page.headers["content-type"])
    end
    assert.is_nil(parse(early.body).tidelock_step)
    local samples = parse(late.body)
    assert.same({ 2, 1.5 }, { samples.tidelock_step, samples.tidelock_loss })
    assert.equal(404, other:wait()[1].status)
    local good, problem = pcall(metrics.open, ":" .. port, {}, 3) -- taken
    assert.is_false(good)
    assert.equal(2, problem.status)
    assert.matches("%-%-metrics :%d+: 127.0.0.1, port %d+: ", problem.message)
    told:finish "finished"
    local text, status
    text, status = run "--metrics :0"
    assert.equal(0, status, text)
  end)

  it("refuses a port and a file that cannot be, before anything starts", function()
    local text, status = run "--metrics :91000"
    assert.equal(2, status)
    assert.matches("%-%-metrics :91000: a port is a number up to 65535", text)
    text, status = run "--metrics 9100"
    assert.equal(2, status)
    assert.matches("%-%-metrics 9100: a port is written :9100, and a file of this name %./9100",
      text)
    text, status = run "--metrics no/such/folder/m.prom"
    assert.equal(2, status)
    assert.matches("%-%-metrics no/such/folder/m.prom: cannot write it: .*No such file", text)
    assert.is_false(core.files.exists(folder:path "runs"))
  end)

  it("has the messages of every axis, as planned, and what a checkpoint wrote", function()
    local path = folder:path "m.prom"
    local text, status = run(("layout.tp=2 layout.dp=2 train.save.every=2 --metrics %s "
      .. "--cluster recipes/clusters/laptop.yaml"):format(path))
    assert.equal(0, status, text)
    local samples = parse(core.files.read_all(path))
    local moved = 0
    for _, axis in ipairs { "tp", "dp" } do
      local planned = samples[('tidelock_comm_planned_bytes{axis="%s"}'):format(axis)]
      local total = samples[('tidelock_comm_bytes_total{axis="%s",path="threads"}'):format(axis)]
      assert.is_true(planned > 1000)
      assert.equal(3 * planned, total) -- those of the evaluations are no step's
      moved = moved + total
    end
    assert.equal(moved, samples['tidelock_path_bytes_total{path="threads"}'])
    assert.equal(0, samples['tidelock_plan_deviation_ratio{what="messages"}'])
    assert.is_true(samples['tidelock_plan_deviation_ratio{what="step"}'] > -1)
    for rank = 0, 3 do
      assert.is_true(samples[('tidelock_comm_wait_seconds_total{rank="%d"}'):format(rank)] > 0)
    end
    local name = core.files.list(folder:path "runs")[1]
    local written = 0
    for _, step in ipairs { 2, 3 } do -- tensors alone: headers are not counted
      local state = core.json.decode(core.files.read_all(folder:path(
        ("runs/%s/checkpoints/step-%08d/state.json"):format(name, step))))
      written = written + #state.tensors
    end
    assert.is_true(samples['tidelock_path_bytes_total{path="checkpoint"}'] > written)
  end)

  -- Two families meet in a rule only where they have the same labels: else it can never fire.
  it("has alerts whose families meet", function()
    local path, labels = folder:path "m.prom", {}
    run("layout.tp=2 --metrics " .. path)
    for key in pairs((parse(core.files.read_all(path)))) do
      local words = {}
      for word in key:gmatch '[{,]([%w_]+)="' do words[#words + 1] = word end
      labels[key:match "^[%w_]+"] = table.concat(words, ", ")
    end
    local both = 0
    for _, rule in ipairs(core.yaml.decode(core.files.read_all "docs/alerts.yaml").groups[1].rules)
    do
      local names = {}
      for name in rule.expr:gmatch "tidelock_[%l_]+" do names[#names + 1] = name end
      for i = 2, #names do
        local one, other = labels[names[1]], labels[names[i]]
        local apart = one == "" and other or other == "" and one or one .. " | " .. other
        local left_out = one == other or rule.expr:find("ignoring (" .. apart .. ")", 1, true)
        assert.is_truthy(left_out, rule.alert .. ": labels that only one side has: " .. apart)
        both = both + 1
      end
    end
    assert.equal(4, both)
  end)

  it("pleases promtool, rules for alerts too", function()
    if not os.execute "command -v promtool >/dev/null 2>&1" then
      return pending "promtool (package prometheus) is not installed"
    end
    local path = folder:path "m.prom"
    run("layout.tp=2 --metrics " .. path)
    for _, command in ipairs { "check metrics < " .. path, "check rules docs/alerts.yaml" } do
      local pipe = io.popen("promtool " .. command .. " 2>&1")
      local said = pipe:read "a"
      assert.is_true(pipe:close(), said)
    end
  end)

  it("has the load of experts, extra losses, and what is not finite", function()
    local path = folder:path "m.prom"
    local told = metrics.open(path, { "recipe", 'a "b"\\\n' }, 9)
    local record = { step = 7, ms = 10, tokens = 5, tokens_per_s = 500.0, loss = 0 / 0,
      grad_norm = math.huge, lr = 1e-3, bytes = 1, losses = { probe = 0.5, z = 2.0 },
      experts = { { name = "layers.0.moe", load = { 6, 0, 3 } } } }
    assert.is_nil(told:step(record, { skipped = "0 target tokens", planned = 1,
      vitals = { clock_mhz = 1980, celsius = 45 } }))
    local samples = parse(core.files.read_all(path))
    assert.equal(1, samples['tidelock_info{recipe="a \\"b\\"\\\\\\n"}'])
    assert.same({ 6, 0, 3, 2, 0.5, 2, 1, math.huge }, {
      samples['tidelock_expert_rows{layer="layers.0.moe",expert="0"}'],
      samples['tidelock_expert_rows{layer="layers.0.moe",expert="1"}'],
      samples['tidelock_expert_rows{layer="layers.0.moe",expert="2"}'],
      samples['tidelock_expert_max_over_mean{layer="layers.0.moe"}'],
      samples['tidelock_extra_loss{name="probe"}'], samples['tidelock_extra_loss{name="z"}'],
      samples.tidelock_skipped_steps_total, samples.tidelock_grad_norm,
    })
    assert.not_equal(samples.tidelock_loss, samples.tidelock_loss)
    assert.same({ 1.98e9, 45 }, { samples.tidelock_clock_hertz,
      samples.tidelock_temperature_celsius })
    assert.is_nil(samples.tidelock_power_watts) -- not reported
    os.remove(path)
    os.remove(folder:path "text.txt")
    os.remove(recipe)
    os.remove(folder.root) -- a step goes on without its file
    assert.matches("m.prom: cannot write it", told:step(record, { planned = 1 }))
  end)
end)
