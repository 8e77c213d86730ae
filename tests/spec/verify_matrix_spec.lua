-- ./tl verify: a small recipe in many ways, with faults planted in some of them.
local commands = require "tidelock.commands"
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local jsonschema = require "support.jsonschema"
local new_folder = require "support.folder"
local order = require "tidelock.verify.order"
local repeats = require "tidelock.verify.repeat"
local rows = require "tidelock.verify.rows"
local sample = require "tidelock.verify.sample"
local support = require "support"
local verify = require "tidelock.verify"
local vitals = require "tidelock.machine.vitals"

local recipe_text = [[
local tl = require "tidelock"
local nn = tl.nn
local function layer()
  return { nn.residual { nn.rms_norm {}, nn.attention { heads = 4, kv_heads = 2 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 48 } } }
end
return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 32, layers = 2, layer = layer },
  data = tl.data.text { "%s" },
  batch = { samples = 8, micro = 4, length = 16 },
  train = { steps = 10, lr = 0.01 },
}
]]

local function has(text, part)
  assert.is_truthy(text:find(part, 1, true), ("%q is not in\n%s"):format(part, text))
end

describe("./tl verify", function()
  local folder, recipe, start, of, stdout
  local catch = core.catch_interrupts

  setup(function()
    folder = new_folder()
    local words = folder:write("text.txt", ("the quick brown fox jumps over it; "):rep(200))
    recipe = folder:write("small.lua", recipe_text:format(words))
  end)

  teardown(function() folder:remove() end)

  before_each(function()
    start, of, stdout = driver.start, rows.of, io.stdout
    core.catch_interrupts = function() end
    rows.of = function(...) -- other processes would be those of the test runner
      local list = {}
      for _, row in ipairs(of(...)) do
        if not row[1].outside then list[#list + 1] = row end
      end
      return list
    end
  end)

  after_each(function()
    driver.start, rows.of, core.catch_interrupts = start, of, catch
    rawset(io, "stdout", stdout)
  end)

  --- Status (or what was raised) and output; plant(recipe, options) may change options of a start.
  local function call(words, plant)
    local out = {}
    driver.start = function(given, options)
      local own = {}
      for name, value in pairs(options or {}) do own[name] = value end
      if plant then plant(given, own) end
      return start(given, own)
    end
    rawset(io, "stdout", {
      write = function(_, ...) out[#out + 1] = table.concat { ... } end, flush = function() end,
    })
    local request = commands.parse { "verify", recipe, table.unpack(words) }
    local ok, status = pcall(verify.command, request)
    rawset(io, "stdout", stdout)
    if not ok then return status, table.concat(out) end
    return status, table.concat(out)
  end

  it("prints one hash a dtype when every cell agrees, and writes a row a cell", function()
    local path = folder:path "cells.jsonl"
    local status, text = call { "--steps", "2", "--jsonl", path }
    assert.equal(0, status)
    assert.matches("2 steps; a cell is the hash of losses, gradients and weights", text)
    assert.matches("\n  as written +(%x+) +(%x+)\n", text)
    assert.matches("\n  dp 2, 4, 8 +=  ?= = +=  ?= =\n", text)
    assert.matches("\n  pp 2 gpipe, 1f1b, zb%-h1 += = = +", text)
    assert.matches("\n  among 4, 16, 32 others += = = +", text)
    assert.matches("\n  leaves as they come, neighbours, halves, mirrored, also dp 2 +%x+ = = = = ",
      text)
    has(text, "54 equal, 0 differ, 0 not run")
    local list = require("tidelock.run.log").read(path)
    assert.equal(60, #list)
    local schema = core.json.decode(core.files.read_all "docs/records.schema.json")
    for _, row in ipairs(list) do assert.same({}, jsonschema.complaints(schema, row)) end
    assert.same({ "head", "f32", "as written" }, { list[1].status, list[1].dtype, list[1].row })
    assert.equal("batch.micro=4 layout.tp=1 layout.pp=1 layout.dp=2 layout.schedule=1f1b",
      list[19].overrides)
  end)

  --- The first instruction of an operator's backward pass in a plan with these overrides.
  local function instruction(op, ...)
    local request = commands.parse { "plan", recipe, ... }
    local requests = require "tidelock.plan.requests"
    local plan = requests.plan(requests.of(request))
    for i, made in ipairs(plan.ranks[1].instructions) do
      if made.op == op and made.phase == "backward" then return i end
    end
  end

  it("explains the first cell that differs, to the instruction and the element", function()
    local index = instruction("swiglu_grad", "layout.dp=2")
    local status, text = call({ "--steps", "2", "--dtype", "f32", "--layouts", "tp=2;dp=2" },
      function(given, options)
        local layout = given.values.layout or {}
        if layout.dp ~= 2 then return end
        options.faults = { { rank = 1, instruction = index, kind = "ulp", step = 2, element = 3 } }
      end)
    assert.equal(1, status)
    assert.matches("\n  tp 2 +=\n  dp 2 +%x%x%x%x%x%x%x%x\n", text)
    has(text, "dp 2, host f32: differs from the head of its dtype at step 2: ")
    assert.matches("first    step 2, backward, instruction " .. index - 1
      .. " swiglu_grad %(.-%), rank 1 of b", text)
    has(text, "The instruction of b is wrong")
    assert.matches("18 equal, 2 differ, 0 not run", text)
  end)

  it("sees a neighbour that reaches a sample, and says how far", function()
    local status, text = call({ "--steps", "1", "--dtype", "f32", "--layouts", "tp=2" },
      function(given, options)
        if given.values.batch.samples ~= 16 then return end
        options.faults = { { rank = 0, kind = "ulp", step = 1,
          instruction = instruction("swiglu_grad", "batch.samples=16", "batch.micro=16") } }
      end)
    assert.equal(1, status)
    assert.matches("\n  among 4, 16, 32 samples += %x+ =\n", text)
    assert.matches("differs from the head of its kind at step 1: ", text)
    assert.matches("\n  %d[%d,]* of %d[%d,]* elements of its logits and gradients differ; norm of "
      .. "the difference %d", text)
  end)

  it("knows leaves that change places with their partners from any others", function()
    local kinds, was = order.kinds, order.kinds[2]
    kinds[2] = { name = "rotated", place = function(i, leaves) return (i + 1) % leaves end }
    local status, text = call { "--steps", "1", "--dtype", "f32", "--layouts", "tp=2" }
    kinds[2] = was
    assert.equal(1, status)
    assert.matches("\n  leaves as they come, rotated, halves, mirrored, also dp 2 +%x+ %x+ = = =\n",
      text)
    assert.matches("leaves as .- f32: differs from the head of its kind at step 1: ", text)
    assert.matches("\n  %d[%d,]* of %d[%d,]* elements of its gradients differ; norm of ", text)
    local dropped = folder:write("dropped.lua", (core.files.read_all(recipe):gsub("} },\n",
      "}, dropout = 0.1 },\n", 1)))
    local run <close> = start(require("tidelock.plan.requests").recipe(dropped, {}))
    local rows_there, note = order.rows(run)
    assert.same({}, rows_there)
    assert.matches("leaves in another order: not compared: dropout draws by a sample's place", note)
  end)

  it("calls a cell failed that starts and does not end", function()
    local status, text = call({ "--steps", "1", "--dtype", "f32", "--layouts", "dp=2" },
      function(given, options)
        if (given.values.layout or {}).dp ~= 2 then return end
        options.faults = { { rank = 1, kind = "fail", step = 1,
          instruction = instruction("swiglu_grad", "layout.dp=2") } }
      end)
    assert.equal(1, status)
    assert.matches("\n  dp 2 +failed\n", text)
    assert.matches("dp 2, host f32: failed: rank 1 of 2: step 1, .*a test made it fail", text)
    assert.matches(" 0 differ, 2 failed, 0 not run", text)
  end)

  it("asks every device of --device, and one that is not there proves nothing", function()
    local function without(given)
      if given.values.device == "cuda" then error({ status = 2, message = "no GPU here" }, 0) end
    end
    local words = { "--steps", "1", "--layouts", "dp=2", "--device", "host,cuda" }
    local status, text = call(words, without)
    assert.equal(1, status)
    assert.matches("host f32 +host bf16 +cuda f32 +cuda bf16\n", text)
    assert.matches("\n  again += += +%- +%-\n", text)
    assert.equal(1, (select(2, text:gsub("no GPU here", ""))))
    has(text, "not run:  as written (cuda); again (cuda); micro 1, 2, 8 (cuda); ")
    for line in text:match("not run:.*"):gmatch "[^\n]+" do assert.is_true(#line < 100, line) end
    status, text = call(words, function(given) -- a GPU that has the host's bits, but only one
      if given.values.device ~= "cuda" then return end
      if (given.values.layout or {}).dp == 2 then
        error({ status = 2, message = "one GPU here" }, 0)
      end
      given.values.device = "host"
    end)
    assert.equal(0, status)
    has(text:gsub("%s+", " "), "also dp 2 (cuda): one GPU here")
    for word, problem in pairs { moon = "moon is no device; there are host and cuda",
      ["host,host"] = "host is given twice" } do
      has(call({ "--device", word }).message, problem)
    end
  end)

  it("goes on for a time, idle and busy, and stops a fault", function()
    local status, text = call { "--steps", "1", "--dtype", "f32", "--repeat-for", "0.5s" }
    assert.equal(0, status)
    assert.matches("\n +1 +0 s  host f32 +idle  %x%x%x%x%x%x%x%x ", text)
    has(text, "all with the same bits")
    assert.equal(90, repeats.seconds "90")
    assert.equal(600, repeats.seconds "10m")
    assert.is_nil(repeats.seconds "10x")
    has(call({ "--repeat-for", "soon" }).message, "write 90s, 10m or 2h")
    has(call({ "--every", "3s" }).message, "--every goes with --repeat-for")
  end)

  it("has rows for every layout of up to N ranks, and for stress", function()
    local plan = require("tidelock.plan.requests").plan(
      require("tidelock.plan.requests").of(commands.parse { "plan", recipe }), "check")
    local names = {}
    for _, row in ipairs(of(plan.spec, { ranks = 8, stress = true })) do
      for _, name in ipairs(row.names or {}) do names[#names + 1] = name end
      names[row.label] = #row
    end
    assert.equal("pp 2 1f1b, dp 2, tp 2, dp 2 pp 2 zb-h1, dp 4, tp 2 pp 2 gpipe, tp 2 dp 2, tp 4, "
      .. "dp 4 pp 2 1f1b, dp 8, tp 2 dp 2 pp 2 zb-h1, tp 2 dp 4, tp 4 pp 2 gpipe, tp 4 dp 2",
      table.concat(names, ", "))
    assert.equal(2, names["poison NaN, zeros"])
    assert.equal(4, names["delays 50, 700 us, also tp 2 dp 2"])
    has(call({ "--layouts", "tp=2,xp=3" }).message, "\"xp=3\" is no axis of a layout")
    local message = call({ "--layouts", "tp=3;dp=2;pp=99" }).message
    has(message, "tp=3: tp 3 does not divide the ")
    has(message, "pp=99: pp 99 is more than the ")
  end)

  it("runs cells in other processes, of mpirun where it is", function()
    local text, status = support.run(("verify %s --dtype f32 --steps 1 --layouts tp=2"):format(
      recipe))
    assert.equal(0, status)
    assert.matches("\n  another process +=\n", text)
    assert.is_truthy(text:find "\n  processes dp 2, tp 2 += =\n"
      or text:find "\n  processes dp 2, tp 2 +%- %-\n")
  end)
end)

describe("what stands beside a hash", function()
  it("is a middle clock, and a dash for what is not reported", function()
    assert.equal(2000, vitals.clock_in "cpu MHz\t\t: 1000.0\ncpu MHz : 3000\ncpu MHz\t: 2000.000\n")
    assert.is_nil(vitals.clock_in "Model: a board\n")
    assert.same({ "1980 MHz", "-", "310 W" }, { vitals.words { clock_mhz = 1980, watts = 310.2 } })
  end)

  it("is how far tensors are apart", function()
    local a = { x = core.tensor("f32", { 2 }, { 3, 4 }) }
    local differ, total, norm = sample.distance(a, { x = core.tensor("f32", { 2 }, { 3, 4.5 }) })
    assert.same({ 1, 2, 0.1 }, { differ, total, norm })
    assert.same({ 0, 2, 0 }, { sample.distance(a, a) })
  end)
end)
