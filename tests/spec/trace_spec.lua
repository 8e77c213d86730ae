-- Traces: what is recorded, the table, Chrome events, the arena as a picture and as a snapshot.
local chrome = require "tidelock.trace.chrome"
local core = require "tidelock.core"
local logical = require "tidelock.plan.logical"
local models = require "support.models"
local new_folder = require "support.folder"
local planted = require "support.planted"
local programs = require "support.programs"
local recorder = require "tidelock.run.recorder"
local snapshot = require "tidelock.forecast.snapshot"
local support = require "support"
local trace = require "tidelock.trace"
local traces = require "tidelock.trace.traces"

local grid = { ["layout.tp"] = 2, ["layout.pp"] = 2 }

local function message(fn, ...)
  local _, problem = pcall(fn, ...)
  return type(problem) == "table" and problem.message or problem
end

describe("a trace", function()
  it("holds the steps of its window and changes no bit", function()
    local expected = models.trace(grid, nil, 4)
    local dir = new_folder().root
    local options = recorder.new { dir = dir, first = 2, last = 3, full = true }
    assert.equal(expected, models.trace(grid, { recorder = options }, 4))
    local t <close> = traces.open(dir)
    assert.equal(2, #t.steps)
    assert.equal(2, t.steps[1].step)
    local first, last = t:section(3, 2)
    local before = 0
    for i = first, last do
      local times = t:times(3, 2, i)
      assert.is_true(times.start_ns >= before and times.end_ns >= times.start_ns)
      assert.is_true(times.wait_ns <= times.end_ns - times.start_ns)
      before = times.end_ns
    end
  end)

  it("understands its window", function()
    assert.same({ 3, 5 }, { recorder.window "3:5" })
    assert.same({ 3, 3 }, { recorder.window "3" })
    assert.same({ 3, math.maxinteger }, { recorder.window "3:" })
    for _, text in ipairs { "", "a", "5:3", "-1:2", "1:2:3" } do
      assert.is_nil(recorder.window(text))
    end
  end)

  it("samples the same elements in every layout", function()
    local usual = logical.sampled_above
    logical.sampled_above = 64
    local dirs = {}
    for i, options in ipairs { {}, grid, { ["layout.dp"] = 4, micro = 1 } } do
      dirs[i] = planted.trace(options, { recorder = { full = false, values = false } }, 1)
    end
    logical.sampled_above = usual
    local compare = require "tidelock.trace.compare"
    local a <close> = traces.open(dirs[1])
    local sums, keys = compare.groups(a, 1)
    local whole <close> = traces.open(planted.trace({}, { recorder = { values = false } }, 1))
    local all, fewer = compare.groups(whole, 1), 0
    for i = 2, 3 do
      local b <close> = traces.open(dirs[i])
      local others = compare.groups(b, 1)
      for _, key in ipairs(keys) do
        if others[key] then
          assert.equal(compare.sum_of(sums[key]), (compare.sum_of(others[key])), key)
        end
        if compare.sum_of(sums[key]) ~= compare.sum_of(all[key]) then fewer = fewer + 1 end
      end
    end
    assert.is_true(fewer > 50)
  end)

  it("names instructions that move more than planned", function()
    local fault = { op = "all_gather", rank = 0, nth = 2 }
    local index, list = planted.instruction(grid, fault), {}
    for rank = 0, 1 do
      list[rank + 1] = { rank = rank, instruction = index, kind = "twice", step = 2 }
    end
    local setting = { values = false }
    local t <close> = traces.open(planted.trace(grid, { recorder = setting }, 2))
    assert.same({}, trace.flags(t))
    local u <close> = traces.open(planted.trace(grid, { faults = list, recorder = setting }, 2))
    local flags = trace.flags(u)
    assert.equal(2, #flags)
    for rank, flag in ipairs(flags) do
      assert.same({ 2, rank - 1, index, 2 * flag.planned },
        { flag.step, flag.rank, flag.instruction, flag.moved })
    end
    assert.matches(("more than planned: step 2, rank 1, instruction %d all_gather over tp"):format(
      index - 1), trace.text(u))
    assert.matches("^[^\n]+, steps 1 to 2, all hashed\n  calls, times and bytes are those of a "
      .. "step, the mean\n", trace.text(u))
  end)

  it("hashes all of an output, whoever does it, and adds up the times of its steps", function()
    local rows = 40007 -- no whole number of tasks
    local b = programs.new { "all" }
    local x = b:tensor("f32", { rows, 2 }, { persistent = true })
    local y = b:tensor("f32", { rows, 2 })
    b:add("step", "scale", { x }, { y }, { factor = 3 })
    local p <close> = b:program()
    for _, threads in ipairs { 1, 2 } do
      local ranks <close> = programs.ranks(p, 1, { threads = threads })
      ranks:write(0, x, support.filled("f32", { rows, 2 }, 5))
      local output = { 1, 1, core.hash_int "y", rows, 2, 2, 0, rows, rows, 0, 2, 0, 0 }
      ranks:trace { { outputs = { output } } }
      ranks:run("step", { step = 0 })
      local once, record = ranks:times(0)[1], ranks:record(0, 1, 1)
      local start, stop = string.unpack("<i8i8", record)
      assert.equal(stop - start, once)
      assert.equal(ranks:read(0, y):hash "y", ("%016x"):format(string.unpack("<i8", record, 65)))
      ranks:run("step", { step = 1 })
      start, stop = string.unpack("<i8i8", ranks:record(0, 1, 1))
      assert.equal(once + (stop - start), ranks:times(0)[1])
    end
  end)

  it("refuses what is not in the program", function()
    local run <close> = models.start {}
    local row = { 1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 1, 0, 0 }
    local function try(at, value, captures)
      local own = { table.unpack(row) }
      if at then own[at] = value end
      return message(run.ranks.trace, run.ranks, { { outputs = { own }, captures = captures } })
    end
    assert.matches("instruction 0 has no output 99", try(2, 100))
    assert.matches("1000000000 rows of 1 in an output", try(4, 1000000000))
    assert.matches("a capture of output 99 of instruction 0",
      try(nil, nil, { { 1, 100, 1, 1, 0 } }))
    assert.matches("record: instructions", message(function()
      run.ranks:trace(true)
      run.ranks:record(0, 1, 1 << 20)
    end))
  end)
end)

describe("Chrome events", function()
  --- Checks an event against the format: fields by phase. Returns its phase.
  local function checked(e)
    assert.is_true(math.type(e.pid) == "integer" and math.type(e.tid) == "integer")
    assert.equal("string", type(e.name))
    if e.ph == "M" then
      assert.is_truthy(e.args.name or e.args.sort_index)
      return e.ph
    end
    assert.is_true(type(e.ts) == "number" and e.ts >= 0)
    if e.ph == "X" then assert.is_true(e.dur >= 0 and type(e.cat) == "string")
    elseif e.ph == "i" then assert.equal("p", e.s)
    else
      assert.is_true(e.ph == "s" or e.ph == "t" or e.ph == "f")
      assert.is_true(math.type(e.id) == "integer" and e.cat == "message")
      assert.equal(e.ph == "f" and "e" or nil, e.bp)
    end
    return e.ph
  end

  --- Every receive waits a second longer.
  local function receive_early(t)
    local times, late = t.times, 2000000000
    function t.times(self, rank, step, i)
      local x, first = times(self, rank, step, i), self:section(rank, step)
      local early = self:program(rank).instructions[i].op == "recv" and late // 2 or 0
      x.end_ns, x.wait_ns = x.end_ns + late, x.wait_ns + early
      if i > first then x.start_ns = x.start_ns + late - early end
      return x
    end
  end

  it("are whole, and flows lead from sends to receives and through groups", function()
    local t <close> = traces.open(planted.trace(grid, { recorder = { values = false } }, 1))
    receive_early(t)
    local path = t.dir .. "/chrome.json"
    chrome.write(t, path)
    local events = core.json.decode((core.files.read_all(path))).traceEvents
    local slices, flows, count = {}, {}, {}
    for _, e in ipairs(events) do
      local ph = checked(e)
      count[ph] = (count[ph] or 0) + 1
      if ph == "X" and e.cat ~= "wait" then
        slices[e.pid] = slices[e.pid] or {}
        table.insert(slices[e.pid], e)
      elseif ph == "s" or ph == "t" or ph == "f" then
        flows[e.id] = flows[e.id] or {}
        table.insert(flows[e.id], e)
      end
    end
    assert.is_true(count.s > 20 and count.s == count.f and count.X > 1000)
    local sends = 0
    for _, flow in pairs(flows) do
      assert.equal("s", flow[1].ph)
      assert.equal("f", flow[#flow].ph)
      if flow[1].name == "send" then sends = sends + 1 end
      for k, e in ipairs(flow) do
        assert.is_true(k == 1 or flow[k - 1].ts <= e.ts) -- else it is not drawn
        local inside
        for _, slice in ipairs(slices[e.pid]) do
          local name = slice.name == "recv" and "send" or slice.name
          inside = inside or name == e.name and slice.ts <= e.ts and e.ts <= slice.ts + slice.dur
        end
        assert.is_true(inside)
      end
    end
    assert.is_true(sends > 0)
  end)
end)

describe("the arena", function()
  it("is drawn as planned and as it was", function()
    local folder = new_folder()
    local t <close> = traces.open(planted.trace(grid, { recorder = { values = false } }, 1))
    local svg = folder:path "memory.svg"
    local text, status = support.run(("trace %s --memory %s --rank 3"):format(t.dir, svg))
    assert.equal(0, status, text)
    local picture = core.files.read_all(svg)
    assert.matches("^<svg .*planned: .*real: .* counted by the allocator.*</svg>\n$", picture)
    local buffers = #t:program(3).memory.buffers
    local _, rects = picture:gsub("<rect ", "")
    assert.equal(2 * buffers + 2 + 6, rects) -- two panels with frames, and the legend
    assert.matches("layers%.1%.swiglu%.down: 3,072 bytes at ", picture)
    text, status = support.run(("trace %s --memory %s"):format(t.dir, folder:path "memory.txt"))
    assert.equal(2, status)
    assert.matches("a name that ends in .svg", text)
    folder:remove()
  end)

  it("never holds two buffers at one place, in the snapshot too", function()
    local plan = models.plan(grid)
    local view = require("tidelock.forecast.memory_file").view_of_plan(plan, 2, "small")
    for i, a in ipairs(view.buffers) do
      for j = i + 1, #view.buffers do
        local b = view.buffers[j]
        local apart = a.last < b.first or b.last < a.first
          or a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
        assert.is_true(apart, a.name .. " and " .. b.name)
      end
      assert.is_true(a.offset + a.bytes <= view.bytes)
    end
  end)

  it("is a pickle that Python reads", function()
    assert.equal("\x80\x02}(X\1\0\0\0a](J\1\0\0\0\x88X\1\0\0\0xe"
      .. "X\1\0\0\0b\x8a\x08\0\0\0\0\x01\0\0\0u.",
      snapshot.pickle { a = { n = 3, 1, true, "x" }, b = 1 << 32 })
    if not os.execute "python3 -c 'import pickle' 2>/dev/null" then
      pending "no python3 to read it"
      return
    end
    local folder = new_folder()
    local t <close> = traces.open(planted.trace({}, { recorder = { values = false } }, 1))
    local path = folder:path "memory.pickle"
    support.run(("trace %s --memory %s"):format(t.dir, path))
    local program = folder:write("read.py", [==[
import pickle, sys
d = pickle.load(open(sys.argv[1], "rb"))
s = d["segments"][0]
at, alive, peak = s["address"], {}, 0
assert sum(b["size"] for b in s["blocks"]) == s["total_size"]
for b in s["blocks"]:
    assert b["address"] == at
    at += b["size"]
for e in d["device_traces"][0]:
    assert e["action"] in ("segment_alloc", "alloc", "free_requested", "free_completed")
    if e["action"] == "alloc":
        assert e["addr"] not in alive or e["size"] == 0
        alive[e["addr"]] = e["size"]
        assert e["frames"][0]["filename"].endswith(".lua") and e["frames"][0]["line"] > 0
    if e["action"] == "free_completed":
        del alive[e["addr"]]
    peak = max(peak, sum(alive.values()))
assert peak <= s["total_size"] and sum(alive.values()) == s["active_size"]
print("read", len(d["device_traces"][0]) > 100)
]==])
    local pipe = assert(io.popen(("python3 %s %s 2>&1"):format(program, path)))
    assert.equal("read True\n", pipe:read "a")
    pipe:close()
    folder:remove()
  end)
end)
