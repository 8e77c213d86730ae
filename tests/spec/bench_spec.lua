-- `./tl bench`: the commands run on tiny sizes and print well-formed tables. Nothing here looks at
-- a time: how fast a machine is, is not a test.
local bench = require "tidelock.bench"
local commands = require "tidelock.commands"
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local new_folder = require "support.folder"
local records = require "tidelock.bench.records"
local rounds = require "tidelock.bench.rounds"
local support = require "support"

local tiny = "recipes/quickstart.lua batch.samples=8 batch.micro=4 batch.length=16 " ..
  "--rounds 2 --steps 1 --threads 2"

local function run(words)
  local text, status = support.run("bench --alone " .. words)
  assert.equal(0, status, text)
  return text
end

--- The tables of Markdown text: { columns, rows } each.
local function tables_of(text)
  local tables, current = {}, nil
  for line in text:gmatch "[^\n]+" do
    local cells = {}
    for cell in (line:match "^|(.*)$" or ""):gmatch "%s*([^|]-)%s*|" do cells[#cells + 1] = cell end
    if line:find "^### " then
      current = { rows = {} }
      tables[#tables + 1] = current
    elseif #cells > 0 and not current.columns then
      current.columns = cells
    elseif #cells > 0 and not line:find "^| %-%-" then
      table.insert(current.rows, cells)
    end
  end
  return tables
end

local function well_formed(text, count)
  local tables = tables_of(text)
  assert.equal(count, #tables, text)
  for _, found in ipairs(tables) do
    assert.is_true(#found.rows > 0, text)
    for _, row in ipairs(found.rows) do assert.equal(#found.columns, #row, text) end
  end
  return tables
end

describe("bench", function()
  it("measures products", function()
    local tables = well_formed(run "matmul --size 64 --rounds 2", 1)
    assert.equal("f32", tables[1].rows[1][1])
    assert.equal("bf16", tables[1].rows[2][1])
  end)

  it("measures planning", function()
    assert.equal("1024", well_formed(run "plan --rounds 1", 1)[1].rows[1][1])
  end)

  it("measures generation", function()
    local tables = well_formed(run("serve " .. tiny .. " --count 4 --rate 1000"), 2)
    assert.equal("1", tables[1].rows[1][1])
    assert.same({ "batched", "plain" }, { tables[2].rows[1][1], tables[2].rows[2][1] })
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write '{"at": 0, "prompt": 3, "max_tokens": 2}\n{"at": 0.01, "prompt": 5, "max_tokens": 1}'
    file:close()
    assert.matches("both gave the same tokens", run("serve " .. tiny .. " --requests " .. path))
    os.remove(path)
  end)

  it("refuses a load that never ends, and a context without room", function()
    local function refused(words, pattern)
      local out, status = support.run(("bench serve %s %s"):format(tiny, words))
      assert.equal(2, status, out)
      assert.matches(pattern, out)
    end
    refused("--rate 0", "^tidelock: bench: %-%-rate: expected a positive number, got \"0\"\n$")
    refused("serve.context=1 --count 2", "tidelock: bench serve: a context of 1 has no room")
    refused("serve.contxt=3", "^command line: serve.contxt: no such key") -- before the header
  end)

  it("says at once all that is wrong with a file of requests", function()
    local folder = new_folder()
    local function refused(text)
      local path = folder:write("load.jsonl", text)
      local out, status = support.run(("bench serve %s --requests %s serve.context=64"):format(tiny,
        path))
      assert.equal(2, status, out)
      return out:match "(tidelock: .*)$"
    end
    assert.matches("load.jsonl: no request\n$", refused "\n \n")
    local out = refused('{"at": 0, "prompt": 60, "max_tokens": 30}\n\n{"at": 0, "prompt": 0, '
      .. '"max_tokens": 1}\n{"at": 0, "prompt": 60, "max_tokens": 4}\nhello\n')
    assert.matches("jsonl:1: prompt 60 and max_tokens 30 are more than the context of 64; fewer, "
      .. "or serve.context=90\n[^\n]*jsonl:3: expected {\"at\": [^\n]*\n[^\n]*jsonl:5: expected ",
      out)
    out = refused(('{"at": 0, "prompt": %d, "max_tokens": %d}\n'):rep(2):format(math.maxinteger,
      math.maxinteger, 0x7fffffff, 0x7fffffff)) -- no sum of them is below 0
    assert.matches("jsonl:1: expected [^\n]*\n[^\n]*jsonl:2: prompt 2147483647 .*=4294967294\n$",
      out)
    assert.matches("jsonl:8: expected [^\n]*\nand 3 more like this\n$", refused(("x\n"):rep(11)))
    folder:remove()
  end)

  it("measures ranks", function()
    local rows = well_formed(run("ranks " .. tiny), 1)[1].rows
    assert.same({ "1 rank", "dp 8", "tp 2 pp 2 dp 2" }, { rows[1][1], rows[2][1], rows[3][1] })
  end)

  it("measures a step, and its operators, as JSON too", function()
    local all = core.json.decode((run("step -o json " .. tiny):match "%b{}"))
    assert.equal(3, #all.tables)
    assert.equal("Tidelock", all.tables[1].rows[1][1])
    local last = all.tables[3].rows[#all.tables[3].rows]
    assert.equal("Lua", last[1])
  end)

  it("splits the gap between a step and its ceiling, the worst first", function()
    local all = core.json.decode((run("step -o json " .. tiny .. " layout.dp=2"):match "%b{}"))
    local missing = all.tables[2]
    assert.matches("^The gap between a step and its ceiling: [%d.]+ ms, of which ", missing.title)
    assert.matches("^of the gap: %a+ [%d.]+%%, %a+ [%d.]+%%, ", missing.notes[1])
    local last, kinds = math.huge, {}
    for _, row in ipairs(missing.rows) do
      assert.is_true(tonumber(row[3]) <= last)
      last, kinds[row[1]] = tonumber(row[3]), true
    end
    assert.is_true(kinds.kernels)
  end)

  it("takes the planned bytes of messages where a device counts none, and they are the counted",
    function()
      local requests = require "tidelock.plan.requests"
      for _, layout in ipairs { "layout.tp=2", "layout.dp=2", "layout.pp=2" } do
        local one_run <close> = driver.start(requests.recipe("recipes/quickstart.lua",
          { "batch.samples=8", "batch.micro=4", "batch.length=16", layout }))
        one_run:step()
        local sums = {}
        for i, device in ipairs { "host", "cuda" } do
          one_run.spec.device, sums[i] = device, 0
          for _, one in ipairs((records.of(one_run, 1))) do sums[i] = sums[i] + one.moved end
        end
        assert.is_true(sums[1] > 0, layout)
        assert.equal(sums[1], sums[2], layout)
      end
    end)

  it("puts every operator and shape below its ceiling", function()
    local rows = well_formed(run("roofline " .. tiny), 1)[1].rows
    local limits = {}
    for _, row in ipairs(rows) do limits[row[9]] = true end
    assert.is_true(limits.memory or limits.products)
    for limit in pairs(limits) do assert.matches("^%a+$", limit) end
    assert.matches("^%d+%%$", rows[1][10])
    for _, row in ipairs(well_formed(run("roofline " .. tiny .. " --op rms_norm"), 1)[1].rows) do
      assert.equal("rms_norm", row[1])
    end
    local text, status = support.run("bench roofline " .. tiny .. " --op rms_nrom")
    assert.equal(2, status)
    assert.matches("the step has no such operator; nearest: rms_norm", text)
  end)

  it("measures collectives, and finds what is wrong in them", function()
    local text = run "collectives --ranks 2 -b 1K -e 4K -f 4 --rounds 2"
    local rows = well_formed(text, 1)[1].rows
    assert.equal(6, #rows)
    assert.same({ "all_reduce", "1024", "256", "float", "sum" }, { table.unpack(rows[1], 1, 5) })
    assert.same({ "0", "0", "-" }, { rows[1][9], rows[1][13], rows[3][13] })
    assert.matches("out of bounds values: 0 OK\n%- average bus bandwidth: [%d.]+ GB/s", text)
    local collectives = require "tidelock.bench.collectives"
    assert.same({ 8192, 128 << 20, 512 }, { collectives.bytes "8K", collectives.bytes "128M",
      collectives.bytes "512" })
    assert.is_nil(collectives.bytes "8T")
  end)

  it("counts what one rank has wrong in a collective, and fails", function()
    local real = core.ranks
    core.ranks = function(...) -- rank 1 reads one element that is off
      local ranks = real(...)
      local function read(_, rank, y)
        local t = ranks:read(rank, y)
        if rank == 1 then t:narrow(1, 3, 1):fill(-1) end
        return t
      end
      return setmetatable({ read = read }, {
        __index = function(_, name) return function(_, ...) return ranks[name](ranks, ...) end end,
        __close = function() ranks:close() end,
      })
    end
    local good, found = pcall(require "tidelock.bench.collectives".tables,
      { ranks = 2, from = "1K", to = "1K", rounds = 1 })
    core.ranks = real
    assert.is_true(good, found)
    local result = found[1]
    for i, row in ipairs(result.rows) do assert.equal("1", row[9], i) end
    assert.equal("1", result.rows[1][13])
    assert.equal("out of bounds values: 4 FAILED", result.notes[1])
    assert.is_true(result.differs)
  end)

  it("says what it ran on, in every form", function()
    local text = run "plan --rounds 1"
    assert.matches("^machine: [^\n]+ cores, load [^\n]+\nbuild: tidelock %d", text)
    assert.matches("\nflags: plan %-%-alone, threads %d+, rounds 1, steps 2\n", text)
    local csv = run "plan --rounds 1 -o csv"
    assert.matches("^# machine: [^\r\n]+ cores, load [^\r\n]+\r\n", csv)
    assert.matches("\r\n# build: tidelock %d[^\r\n]*\r\n", csv)
    assert.matches("\r\n# flags: plan %-%-alone, threads %d+, rounds 1, steps 2\r\ntable,", csv)
    assert.matches("^table,ranks,best s,median s,cpu s,peak MiB\r\n[^\r]-,1024,",
      (csv:gsub("#[^\n]*\n", "")))
    local first, second = run("plan --rounds 1 -o jsonl"):match "^([^\n]+)\n([^\n]+)\n$"
    assert.matches("^plan %-%-alone, ", core.json.decode(first).flags)
    assert.equal(1024, core.json.decode(second).ranks)
    text = run "collectives --rounds 1 --ranks 2 -b 4K -e 4K -f 2"
    assert.matches("\nflags: collectives %-%-alone %-%-ranks 2 %-%-from 4K %-%-to 4K "
      .. "%-%-factor 2, threads", text)
  end)

  it("measures what a trace costs, of a sample and of everything", function()
    local rows = well_formed(run("trace " .. tiny), 1)[1].rows
    assert.same({ "as it is", "traced", "traced, --full" }, { rows[1][1], rows[2][1], rows[3][1] })
  end)

  it("says why attention and kernels that move bytes are not measured without a GPU", function()
    local gpus, why = core.cuda_count()
    if gpus > 0 then return pending "there is a GPU" end
    for _, topic in ipairs { "attention", "rowwise" } do
      assert.is_true(run(topic):gsub("%s+", " "):find("not measured: " .. why, 1, true) ~= nil)
    end
  end)

  it("measures a captured step beside an eager one, or says why it cannot", function()
    local text = run("capture " .. tiny)
    if core.cuda_count() > 0 and #core.manifest.images() > 0 then
      assert.matches("| captured |", text)
      assert.matches("%d losses and gradient norms and the weights are equal in every bit", text)
    else
      assert.matches('%- not measured: .-device: "cuda"', text)
    end
  end)

  it("says why there is no peer", function()
    local pipe = io.popen("TIDELOCK_PYTHON=./no-such-python " .. support.program
      .. " bench matmul --size 64 --rounds 1 2>/dev/null")
    local text = pipe:read "a"
    pipe:close()
    assert.matches("no peer: matmul.py ended without an answer", text)
  end)
end)

describe("the words of bench", function()
  it("are a topic, a recipe, overrides and options, all optional", function()
    local request = commands.parse { "bench" }
    assert.is_nil(request.topic)
    request = commands.parse { "bench", "step", "my.lua", "batch.micro=2", "-o", "json" }
    assert.equal("step", request.topic)
    assert.equal("my.lua", request.recipe)
    assert.same({ "batch.micro=2" }, request.overrides)
    assert.equal("json", request.options.output)
    assert.same({ "batch.micro=2" }, commands.parse({ "bench", "batch.micro=2" }).overrides)
  end)
end)

describe("a baseline", function()
  local baseline = require "tidelock.bench.baseline"

  local function table_of(value, low, high)
    return { { title = "Products, 3.4 s", columns = { "x" }, rows = {}, notes = {}, measures = {
      { name = "linear f32 512 x 512 x 512", unit = "GFLOP/s", value = value, low = low,
        high = high },
      { name = "all_reduce 4096 bytes", unit = "us", value = 1000 / value, smaller = true },
    } } }
  end

  it("names kernel and shape of what became slower, the worst first", function()
    local lines, others = baseline.compare(table_of(100, 98, 102), table_of(80, 79, 83))
    assert.same({}, others)
    assert.same({
      "slower by 25.0%: all_reduce 4096 bytes: 12.5 us, was 10 us (Products, 3.4 s)",
      "slower by 20.0%: linear f32 512 x 512 x 512: 80 GFLOP/s, was 100 (Products, 3.4 s)",
    }, { (lines[1]:gsub("was 10 ", "was 10 us ")), lines[2] })
  end)

  it("prints = for what is within the noise of both, and a gain only beyond it", function()
    local function compared(a, b)
      local slower, others = baseline.compare(a, b)
      assert.same({}, slower)
      return others[1]:match "^[^:]*"
    end
    assert.equal("=", compared(table_of(100, 98, 102), table_of(100, 98, 102)))
    assert.equal("=", compared(table_of(100, 90, 105), table_of(96.5, 90, 101)))
    assert.equal("=", compared(table_of(100, 99, 101), table_of(98, 97, 98.5)))
    assert.equal("=", compared(table_of(100, 90, 105), table_of(104.5, 101, 106)))
    assert.equal("faster by 20.0%", compared(table_of(100, 99, 101), table_of(120, 119, 121)))
    local _, others = baseline.compare(table_of(100, 99, 101), table_of(100, 99, 101))
    assert.same({ "=: linear f32 512 x 512 x 512: 100 GFLOP/s, was 100 (Products, 3.4 s)",
      "=: all_reduce 4096 bytes: 10 us, was 10 (Products, 3.4 s)" }, others)
  end)

  it("reads the speeds of tables that state no measures", function()
    local function of(speed)
      return { { title = "Causal attention", columns = { "segments", "pass", "ms", "TFLOP/s" },
        rows = { { "8 x 4096", "both", "3.210", speed } }, notes = {} } }
    end
    local lines = baseline.compare(of "480", of "440")
    assert.same({ "slower by 8.3%: 8 x 4096 both: 440 TFLOP/s, was 480 (Causal attention)" }, lines)
    assert.equal(0, #(baseline.compare(of "480", of "460")))
  end)

  it("ends the command with 1, and is an output of bench", function()
    local path = os.tmpname()
    local text = run "collectives --ranks 2 -b 4K -e 4K --rounds 2 -o json"
    local found = core.json.decode(text:match "%b{}")
    for _, one in ipairs(found.tables[1].measures) do -- as if it had been so much faster
      one.value, one.low, one.high = one.value / 1e4, one.low / 1e4, one.high / 1e4
    end
    local file <close> = assert(io.open(path, "w"))
    file:write(core.json.encode(found))
    file:close()
    local words = "bench collectives --ranks 2 -b 4K -e 4K --rounds 2 --baseline " .. path
    local report, status = support.run(words)
    assert.equal(1, status)
    assert.matches("slower by [%d.]+%%: all_reduce 4096 bytes: [%d.]+ us, was [%d.]+ ", report)
    assert.matches("3 of 3 measures are slower than in ", report)
    report, status = support.run("bench plan --rounds 1 --baseline " .. path)
    assert.equal(2, status)
    assert.matches("it has no measure of what was measured now", report)
    for place, change in pairs { -- told before anything is measured
      ["table 1, measure 2 is"] = function(t) t.measures[2].low = "x" end,
      ["table 1, measure 1 is"] = function(t) t.measures[1].value = core.json.null end,
      ["table 1 is"] = function(t) t.title = nil end,
    } do
      local damaged = core.json.decode(core.json.encode(found))
      change(damaged.tables[1])
      core.files.write_atomic(path, core.json.encode(damaged))
      report, status = support.run(words)
      assert.equal(2, status, report)
      assert.matches(place .. " damaged; measure it again", report)
    end
    os.remove(path)
    report, status = support.run "bench plan --rounds 1 --baseline LICENSE"
    assert.equal(2, status)
    assert.matches("LICENSE: it is no output of %./tl bench %-o json", report)
  end)
end)

describe("what bench makes of turns", function()
  it("is ratios inside a round, and their middle", function()
    local a = { turns = { { seconds = 1 }, { seconds = 2 }, { seconds = 4 } } }
    local b = { turns = { { seconds = 2 }, { seconds = 2 }, { seconds = 12 } } }
    assert.equal("2.00 (1.00 to 3.00)", (rounds.ratio(a, b, "seconds")))
    local best, middle = rounds.rate(a, 8)
    assert.same({ 8, 4 }, { best, middle })
  end)

  it("leaves an entrant out once it cannot go on", function()
    local left, count = { turn = function() return nil, "no compiler" end }, 0
    local stays = { turn = function()
      count = count + 1
      return { seconds = 1, cpu = 1 }
    end }
    rounds.run({ left, stays }, 3)
    assert.equal("no compiler", left.skip)
    assert.equal(3, count)
  end)

  it("is Markdown with columns of one width", function()
    local text = bench.markdown {
      title = "t", columns = { "name", "n" }, rows = { { "a", 1 }, { "long name", 12345 } },
      notes = { "note", ("word "):rep(25) .. "end" },
    }
    assert.equal(table.concat({ "### t", "", "| name      |     n |", "| --------- | ----: |",
      "| a         |     1 |", "| long name | 12345 |", "", "- note",
      "- " .. ("word "):rep(19):sub(1, -2), "  " .. ("word "):rep(6) .. "end", "" }, "\n"), text)
  end)
end)
