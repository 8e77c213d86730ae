-- ./tl sweep: every point a row, whatever becomes of it; killed at any moment, nothing is lost.
local child = require "tidelock.machine.child"
local core = require "tidelock.core"
local new_folder = require "support.folder"
local rows = require "tidelock.sweep.rows"
local support = require "support"
local sweep_point = require "tidelock.sweep.point"
local sweep_table = require "tidelock.sweep.table"

local tiny = [[
-- tiny.lua - a model of one layer.
local tl = require "tidelock"
local nn = tl.nn
return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 16, layers = 2, layer = function()
    return { nn.residual { nn.rms_norm {}, nn.attention { heads = 4 } } }
  end },
  data = tl.data.text { "%s" },
  batch = { samples = 4, length = 16 },
  train = { steps = 3, lr = 1e-3 },
}
]]

describe("sweep", function()
  local folder

  before_each(function()
    folder = new_folder()
    local text = folder:write("text.txt", ("a text of some words, again and again; "):rep(20))
    folder:write("tiny.lua", tiny:format(text))
  end)
  after_each(function() folder:remove() end)

  local function write(body)
    return folder:write("points.lua", '-- points.lua\nlocal tl = require "tidelock"\n'
      .. 'local base = tl.load "tiny.lua"\n' .. body)
  end

  --- Runs `sweep FILE options`; returns the text, the status and the rows by label.
  local function sweep(file, options)
    local path = folder:path "rows.jsonl"
    local text, status = support.run(("sweep %s --jsonl %s %s"):format(file, path, options or ""))
    local by_label, list = {}, rows.parse(core.files.read_all(path) or "", path)
    for _, row in ipairs(list) do by_label[row.label] = row end
    return text, status, by_label, list
  end

  it("measures what can be, and says why the rest cannot", function()
    local file = write 'return base:over("layout", { { dp = 1 }, { dp = 2, tp = 2 }, { dp = 3 } })'
    local text, status, by = sweep(file, "--repeat 2 --assert-same-bits")
    assert.equal(0, status, text)
    local one, four = by["dp 1"], by["dp 2 tp 2"]
    assert.equal("ok", one.status)
    assert.same({ 3, 2, 2, 1, 4 }, { one.steps, one.warm, one.repeats, one.ranks, four.ranks })
    assert.equal(2, #one.ms_steps) -- of each repeat the steps behind the warm-up
    assert.is_true(one.ms > 0 and one.spread >= 0 and one.peak_bytes == one.planned_bytes)
    assert.near(64 / one.ms * 1000, one.tokens_per_s, 1e-6)
    assert.equal(one.weights_hash, four.weights_hash)
    assert.equal(one.bits, four.bits)
    assert.not_equal(one.recipe_hash, four.recipe_hash)
    assert.equal("refused", by["dp 3"].status)
    assert.matches("dp 3 does not divide batch.samples 4.*dp 3 does not divide leaves.dp 8",
      by["dp 3"].reason)
    assert.matches("2 ran, 1 refused, 0 failed, 0 too slow", text)
    assert.matches("same bits: 2 of 2", text)
    local page = core.files.read_all "docs/operations.md"
    for _, row in ipairs { one, by["dp 3"] } do
      for field in pairs(row) do
        assert.is_truthy(page:find("`" .. field .. "`", 1, true), field)
      end
    end
    local run = support.run(("run %s/tiny.lua --quiet --runs %s"):format(folder.root,
      folder:path "runs"))
    assert.matches(one.weights_hash, run)
  end)

  it("never runs a row again", function()
    local file = write 'return base:over("layout", { { dp = 1 }, { dp = 3 } })'
    sweep(file)
    local before = core.files.read_all(folder:path "rows.jsonl")
    local text, status = sweep(file)
    assert.equal(0, status)
    assert.equal(before, core.files.read_all(folder:path "rows.jsonl"))
    assert.matches("1 ran, 1 refused", text) -- the table still has all
    local _, _, _, list = sweep(file, "--steps 1") -- measured in another way
    assert.equal(4, #list)
    assert.equal(1, list[3].steps)
  end)

  it("takes a list that a script returns", function()
    local file = write [[
      local list = {}
      for _, dim in ipairs { 0.5, 2 } do
        list[#list + 1] = { "clip " .. dim, base:with { ["train.clip"] = dim } }
      end
      list[3] = base:over("layout", { { tp = 1 }, { tp = 2 } })
      list[4] = list[3]:points()[2]:with { ["train.clip"] = 3 }
      return list]]
    local text, status, by = sweep(file, "--steps 0")
    assert.equal(0, status, text)
    for _, label in ipairs { "clip 0.5", "clip 2", "point 3, tp 1", "point 3, tp 2",
      "tp 2" } do
      assert.equal("planned", by[label] and by[label].status, label)
    end
    text, status = support.run("plan " .. file .. " --point 4")
    assert.equal(0, status)
    assert.matches("tp 2", text)
    text, status = sweep(write "return { base, 7, { 3, base } }")
    assert.equal(2, status)
    assert.matches("point 2: expected a recipe or { \"label\", recipe }, got 7", text)
    assert.matches("point 3", text)
  end)

  it("starts nothing where no point takes a word of the command line", function()
    local file = write 'return base:over("layout", { { dp = 1 }, { dp = 2 } })'
    local text, status = sweep(file, "bathc.samples=4")
    assert.equal(2, status)
    assert.matches("^command line: bathc.samples: no such field or knob.-\nno point takes this; "
      .. "nothing was started\n$", text)
    assert.is_false(core.files.exists(folder:path "rows.jsonl"))
    file = write 'return base:over("layout.tp", { 1, 3 })' -- 3 is refused for reasons of its own
    text, status = sweep(file, "bathc.samples=4 train.steps=0")
    assert.equal(2, status)
    assert.matches("^command line: bathc.samples: no such field or knob[^\n]*\n"
      .. "command line: train.steps: [^\n]*\nno point takes this", text)
    file = write 'return base:over("layout", { { dp = 1 }, { dp = 2 } })'
    local by = select(3, sweep(file, "batch.micro=4 --steps 0")) -- 4 do not divide 2 samples
    assert.same({ "planned", "refused" }, { by["dp 1"].status, by["dp 2"].status })
  end)

  it("ends with 1 where no point ran, and says why the first did not", function()
    local file = write 'return base:over("layout", { { dp = 3 }, { tp = 3 } })'
    local text, status, _, list = sweep(file)
    assert.same({ 1, 2 }, { status, #list })
    assert.matches("\ntidelock: sweep: no point ran; point 1 %(dp 3%): refused: layout%.dp: dp 3 "
      .. "[^\n]*\n$", text)
    text, status = sweep(file, "--steps 0")
    assert.equal(1, status)
    assert.matches("no point was planned; point 1", text)
    text, status = sweep(write 'return base:over("layout", { { dp = 3 }, { tp = 2 } })')
    assert.equal(0, status, text)
  end)

  it("names the field that splits points which are to agree", function()
    local file = write 'return base:over("policy.seed", { 1, 2 })'
    local text, status = sweep(file, "--assert-same-bits")
    assert.equal(2, status)
    assert.matches("point 2 %(seed 2%) has another key than point 1 %(seed 1%): .*seed", text)
    assert.is_false(core.files.exists(folder:path "rows.jsonl"))
    file = write 'return base:over("policy.seed", { 1, 2 }):same_bits()'
    assert.equal(2, select(2, sweep(file)))
  end)

  it("ends with 1 at the first point whose bits differ, and names it", function()
    local file = write 'return base:over("layout", { { dp = 1 }, { dp = 2 }, { dp = 4 } })'
    local _, _, _, list = sweep(file)
    list[2].bits = ("%016x"):format(tonumber(list[2].bits, 16) ~ 1)
    folder:write("rows.jsonl", core.json.encode(list[1]), "\n", core.json.encode(list[2]), "\n")
    local text, status = sweep(file, "--assert-same-bits")
    assert.equal(1, status)
    assert.matches("bits differ: point 2 %(dp 2%) has " .. list[2].bits .. ", point 1 %(dp 1%) has "
      .. list[1].bits, text)
  end)

  it("makes a row of a point that takes too long, and runs it again when asked", function()
    local file = write 'return base:over("layout", { { dp = 1 } })'
    local _, status, by = sweep(file, "--timeout 0.001")
    assert.equal(1, status) -- nothing was measured
    assert.same({ "timeout", "no end within 0.001 s" }, { by["dp 1"].status, by["dp 1"].reason })
    _, _, by = sweep(file)
    assert.equal("timeout", by["dp 1"].status)
    _, _, by = sweep(file, "--retry")
    assert.equal("ok", by["dp 1"].status)
  end)

  it("starts no point when its minutes are over", function()
    local file = write 'return base:over("layout", { { dp = 1 }, { dp = 2 } })'
    local text, status, _, list = sweep(file, "--budget 0.00001")
    assert.equal(75, status)
    assert.is_true(#list < 2)
    assert.matches("ended by the budget; the same command goes on", text)
    _, status, _, list = sweep(file)
    assert.same({ 0, 2 }, { status, #list })
  end)

  it("survives being killed at random: 200 points, none lost, none twice", function()
    local file = write [[
      local seeds = {}
      for i = 1, 200 do seeds[i] = i end
      return base:over("policy.seed", seeds)]]
    local path, state, kills, had = folder:path "rows.jsonl", 12345, 0, {}
    local command = ("sh -c '%s sweep %s --steps 0 --jsonl %s >/dev/null 2>&1 & echo $!'"):format(
      support.program, file, path)
    local function written() return #(core.files.read_all(path) or "") end
    repeat
      local before, patience = written(), core.files.seconds() + 600
      local pipe = assert(io.popen(command))
      local pid = pipe:read "n"
      pipe:close()
      repeat -- a kill before the first row would prove nothing, and a busy machine is slow
        core.files.sleep(0.01)
        assert.is_true(core.files.seconds() < patience, "no row within 600 s")
      until written() > before
      state = (state * 1103515245 + 12345) & 0x7fffffff
      core.files.sleep(1.2 * state / 0x7fffffff)
      os.execute(("kill -9 %d 2>/dev/null"):format(pid))
      kills = kills + 1
      local text = core.files.read_all(path) or ""
      if kills == 2 then -- and as if it had been killed inside a write
        text = text:sub(1, -40)
        had = {}
        core.files.write_atomic(path, text)
      end
      local list = rows.parse(text, path)
      for i, row in ipairs(had) do assert.same(row, list[i]) end
      had = list
    until #had > 100 or kills == 10
    local text, status, _, list = sweep(file, "--steps 0")
    assert.equal(0, status, text)
    assert.is_true(kills >= 2)
    local seen = {}
    for i, row in ipairs(list) do
      assert.is_nil(seen[row.id], row.label)
      seen[row.id] = true
      if had[i] then assert.same(had[i], row) end
    end
    assert.equal(200, #list)
    assert.matches("200 planned, 0 refused, 0 failed, 0 too slow", text)
  end)
end)

describe("the sweeps that come along", function()
  it("measure what they say: a point of each, small", function()
    for name, row in pairs { collectives = 5, attention = 4, blocks = 3, policies = 1 } do
      local text = support.run(("sweep recipes/sweeps/%s.lua --row %d --steps 1 batch.length=32 "
        .. "train.steps=2"):format(name, row))
      local found = core.json.decode(text:match "[^\n]+")
      assert.equal("ok", found.status, text)
      assert.is_true(found.ms > 0)
      assert.equal(found.ranks > 1, found.comm ~= nil)
    end
  end)

  it("spread models over as many ranks as there are, some within one key", function()
    local function plan_all(words)
      local text, status = support.run(("sweep recipes/sweeps/eight_gpus.lua --steps 0 "
        .. "--jsonl %s %s"):format(os.tmpname(), words))
      assert.equal(0, status, text)
      return text
    end
    for world, points in pairs { [2] = 4, [4] = 6, [8] = 6 } do
      local words = ("base=quickstart each=2 world=%d"):format(world)
      assert.matches(points .. " planned, 0 refused", plan_all(words))
      assert.matches(points .. " planned, 0 refused", plan_all(words .. " promise=batch"))
    end
    assert.matches("4 planned, 0 refused", plan_all "base=moe_small each=2 world=2")
    assert.equal(("%d\n"):format((core.cuda_count())), -- how eight_gpus.sh chooses the device
      (support.run "lua recipes/sweeps/eight_gpus_table.lua gpus"))
    local text, status = support.run "plan recipes/sweeps/eight_gpus.lua world=3"
    assert.equal(2, status)
    assert.matches("world: 2, 4 or 8 ranks, got 3", text)
    text = support.run("sweep recipes/sweeps/eight_gpus.lua base=moe_small each=2 world=2 --row 3 "
      .. "--steps 1")
    local found = core.json.decode(text:match "[^\n]+")
    assert.equal("ok", found.status, text)
    assert.is_true(found.exposed > 0 and found.exposed <= found.comm)
  end)

  it("spread the laptop's model too", function()
    local text = support.run "sweep recipes/sweeps/layouts.lua base=quickstart --row 3 --steps 1"
    local found = core.json.decode(text:match "[^\n]+")
    assert.same({ "ok", 8 }, { found.status, found.ranks })
    assert.is_true(found.comm > 0 and found.comm < 1)
  end)
end)

describe("the rows of a sweep", function()
  it("are cut where a write was cut, claimed, and looked at", function()
    local folder = new_folder()
    local path = folder:write("a.jsonl", '{"id":"1","x":1}\n{"id":"2"')
    local file = rows.open(path)
    assert.equal(9, file.cut)
    assert.equal('{"id":"1","x":1}\n', core.files.read_all(path))
    assert.equal(1, file:find("1").x)
    local good, problem = pcall(rows.open, path)
    assert.is_false(good)
    assert.matches("in use by another sweep", problem.message)
    file:add { id = "2", y = 0 / 0 } -- what JSON cannot hold is left out
    file:close()
    assert.equal('{"id":"1","x":1}\n{"id":"2"}\n', core.files.read_all(path))
    good, problem = pcall(rows.open, folder:write("b.jsonl", "{}\n"))
    assert.is_false(good)
    assert.matches("b.jsonl:1: this is no row of a sweep", problem.message)
    good, problem = pcall(rows.open, folder:write("c.jsonl", '{"id":"1"}\na letter'))
    assert.is_false(good)
    assert.matches("c.jsonl:2: this is no row of a sweep", problem.message)
    assert.equal('{"id":"1"}\na letter', core.files.read_all(folder:path "c.jsonl"))
    good, problem = pcall(rows.open, folder.root)
    assert.is_false(good)
    assert.equal(2, problem.status)
    assert.matches("^tidelock: %-%-jsonl: .*: cannot open it: Is a directory$", problem.message)
    folder:remove()
  end)

  it("have a middle and a spread", function()
    assert.same({ 3, 1 / 3 }, { sweep_point.middle { 5, 1, 4, 2, 3 } })
    assert.same({ 7 }, { sweep_point.middle { 7 } })
  end)

  it("stand best first, below 100 columns", function()
    local text = sweep_table.text {
      { point = 1, label = "a", status = "refused", reason = "a/b.lua:9: layout.cp: "
        .. ("long "):rep(50) },
      { point = 2, label = "b", status = "ok", ms = 2, tokens_per_s = 10, peak_bytes = 1 << 20,
        bits = "0123456789abcdef" },
      { point = 3, label = "c", status = "ok", ms = 1, tokens_per_s = 20, peak_bytes = 1 << 20,
        bits = "0123456789abcdef" },
    }
    local order = {}
    for number, label in text:gmatch "\n +(%d) +(%a)" do order[#order + 1] = number .. label end
    assert.same({ "3c", "2b", "1a" }, order)
    assert.matches("1.0  +%-  +20  +1.00 .* 1.0  =\n", text)
    assert.matches("a +refused: layout%.cp: long long", text) -- the file has the place
    for line in text:gmatch "[^\n]+" do assert.is_true(#line < 100, line) end
  end)
end)

describe("a child process", function()
  local function ends(code, seconds)
    local folder = new_folder()
    local path = folder:write("a.lua", "-- a\n" .. code)
    local text, ended = child.run({ "lua", path }, seconds)
    folder:remove()
    return text, child.reason(ended)
  end

  it("says how it ended", function()
    assert.same({ "hello\n" }, { ends "print 'hello'" })
    assert.same({ "", "exit status 3" }, { ends "os.exit(3)" })
    assert.same({ "", "killed by signal 6 (SIGABRT)" }, { ends "os.execute 'kill -ABRT $PPID'" })
    assert.same({ "", "killed by signal 9 (SIGKILL)" },
      { ends("os.execute 'kill -KILL $PPID'", nil) })
    assert.same({ "", "no end within 0.2 s" },
      { ends("require('tidelock.core').files.sleep(60)", 0.2) })
  end)

  it("does not outlive the one that started it", function()
    local folder = new_folder()
    local inner = folder:write("inner.lua", ([[-- inner
      local core = require "tidelock.core"
      core.files.append(%q, core.files.getpid() .. "\n")
      core.files.sleep(60)]]):format(folder:path "pid"))
    local outer = folder:write("outer.lua", ([[-- outer
      require("tidelock.machine.child").run({ "lua", %q }, 60)]]):format(inner))
    local pipe = io.popen(("sh -c '%s lua %s >/dev/null 2>&1 & echo $!'"):format(support.program,
      outer))
    local pid = pipe:read "n"
    local other
    pipe:close()
    local limit = core.files.seconds() + 20
    repeat
      core.files.sleep(0.05)
      other = (core.files.read_all(folder:path "pid") or ""):match "^(%d+)\n"
    until other or core.files.seconds() > limit
    os.execute("kill -9 " .. pid)
    repeat core.files.sleep(0.05)
    until not core.files.exists("/proc/" .. other) or core.files.seconds() > limit
    assert.is_false(core.files.exists("/proc/" .. other))
    folder:remove()
  end)
end)
