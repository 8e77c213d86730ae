-- Every built-in pipeline schedule keeps its formula, and every bad one is named.

local schedules = require "tidelock.plan.schedules"

local function build(schedule, pp, micros, chunks, costs)
  return schedules.build(schedule, {
    pp = pp, micros = micros, virtual_stages = chunks, costs = costs,
  })
end

--- A schedule given as text, one string a rank: "F0 F1 B0 I1 W1", chunk after a dot: "F0.1".
local function written(...)
  local ranks = { ... }
  local phases = { F = "forward", B = "backward", I = "input", W = "weight" }
  return function(rank)
    local order = {}
    for phase, micro, chunk in ranks[rank + 1]:gmatch "(%a)(%d+)%.?(%d*)" do
      order[#order + 1] = {
        phase = phases[phase], micro = math.tointeger(micro), chunk = math.tointeger(chunk),
      }
    end
    return order
  end
end

local function problems_of(schedule, pp, micros, chunks)
  local lists, problems = build(schedule, pp, micros, chunks)
  assert.is_nil(lists)
  return table.concat(problems, "\n")
end

local function has(text, part)
  assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
end

describe("a built-in schedule", function()
  local F, I, W = 1, 1.25, 0.75 -- unequal, so that a swapped I and W would show
  local costs = { forward = F, input = I, weight = W }

  local function each(fn)
    for pp = 1, 8 do
      for micros = 1, 12 do fn(pp, micros) end
    end
  end

  local function expect(name, pp, micros, chunks, bubble, peak)
    local lists, report = build(name, pp, micros, chunks, costs)
    local case = ("%s pp %d, %d micro-batches, %d chunks"):format(name, pp, micros, chunks)
    assert.is_truthy(lists, case)
    assert.near(bubble, report.bubble, 1e-9, case)
    for rank = 0, pp - 1 do assert.equal(peak(rank), report.peak[rank + 1], case) end
  end

  it("gpipe has the bubble and the peak of its formula", function()
    each(function(pp, micros)
      expect("gpipe", pp, micros, 1, (pp - 1) * (F + I + W), function() return micros end)
    end)
  end)

  it("1f1b has the bubble and the peak of its formula", function()
    each(function(pp, micros)
      expect("1f1b", pp, micros, 1, (pp - 1) * (F + I + W),
        function(rank) return math.min(pp - rank, micros) end)
    end)
  end)

  it("zb-h1 has the bubble and the peak of its formula", function()
    each(function(pp, micros)
      local bubble = (pp - 1) * (F + I - W) + math.max(0, pp - micros) * W
      expect("zb-h1", pp, micros, 1, bubble, function() return math.min(pp, micros) end)
    end)
  end)

  it("interleaved has the bubble and the peak of its formula when pp divides the micros", function()
    each(function(pp, micros)
      for chunks = 1, 3 do
        if pp > 1 and micros % pp == 0 then
          expect("interleaved", pp, micros, chunks, (pp - 1) * (F + I + W) / chunks, function(rank)
            return math.min(2 * (pp - rank - 1) + (chunks - 1) * pp + 1, micros * chunks)
          end)
        end
      end
    end)
  end)

  it("interleaved runs with any number of micro-batches and never holds more", function()
    each(function(pp, micros)
      for chunks = 1, 3 do
        local lists, report = build("interleaved", pp, micros, chunks)
        assert.equal(pp > 1, lists ~= nil)
        for rank = 0, lists and pp - 1 or -1 do
          assert.is_true(report.peak[rank + 1]
            <= math.min(2 * (pp - rank - 1) + (chunks - 1) * pp + 1, micros * chunks))
        end
      end
    end)
    assert.equal(4.5, select(2, build("interleaved", 4, 8, 2)).bubble)
    assert.equal(6.5, select(2, build("interleaved", 4, 6, 2)).bubble)
  end)

  it("is the table of the documentation for pp 3 and 4 micro-batches", function()
    local letters = { forward = "F", backward = "B", input = "i", weight = "w" }
    local function text(name)
      local rows = {}
      for rank, list in ipairs((build(name, 3, 4))) do
        local words = {}
        for i, op in ipairs(list) do words[i] = letters[op.phase] .. op.micro end
        rows[rank] = table.concat(words, " ")
      end
      return rows
    end
    assert.same({
      "F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3",
    }, text "1f1b")
    assert.same({
      "F0 F1 F2 i0 w0 F3 i1 w1 i2 w2 i3 w3", "F0 F1 i0 F2 i1 w0 F3 i2 w1 i3 w2 w3",
      "F0 i0 F1 i1 F2 i2 w0 F3 i3 w1 w2 w3",
    }, text "zb-h1")
  end)

  it("reports the fraction of a step that waits", function()
    local _, report = build("1f1b", 2, 4)
    assert.near(1 / 5, report.bubble_fraction, 1e-12)
  end)

  it("takes a cost for every pipeline stage", function()
    local _, report = build("1f1b", 2, 2, 1, {
      forward = { 1, 3 }, input = { 1, 3 }, weight = { 1, 3 },
    })
    assert.equal(18, report.ideal)
    assert.equal(21, report.time)
  end)
end)

describe("a schedule that cannot be", function()
  it("is refused with what would work", function()
    has(problems_of("dualpipe", 2, 4), "no schedule is called dualpipe; there are gpipe, 1f1b")
    has(problems_of("interleaved", 1, 4, 2), "needs pp 2 or more, got pp 1")
    has(problems_of("1f1b", 2, 4, 2), "virtual_stages 2; try schedule = \"interleaved\"")
  end)

  it("names a function that fails or returns no list", function()
    has(problems_of(function() error("oh", 0) end, 1, 1),
      "rank 0: the schedule's function failed: oh")
    has(problems_of(function() return 3 end, 1, 1),
      "rank 0: the schedule's function must return a list")
    has(problems_of(function() return { 3 } end, 1, 1), "rank 0: operation 1: expected a table")
  end)

  it("names an operation that does not exist", function()
    has(problems_of(function() return { { phase = "rest", micro = 0 } } end, 1, 1),
      "rank 0, operation 1: rest of micro-batch 0: no such phase")
    has(problems_of(written "F0 B0 F2 B2", 1, 2), "forward of micro-batch 2: micro-batches are")
    has(problems_of(written "F0.1 B0.1 F0 B0", 1, 1), "chunk 1: chunks are the integers 0 to 0")
  end)

  it("names what is missing", function()
    local text = problems_of(written("F0 B0 F1", "F0 B0 F1 I1"), 2, 2)
    has(text, "rank 0: backward (or input and weight) of micro-batch 1 is missing")
    has(text, "rank 1: weight of micro-batch 1 is missing")
  end)

  it("names what stands twice or too early", function()
    has(problems_of(written "F0 F0 B0", 1, 1), "rank 0, operation 2: forward of micro-batch 0: "
      .. "it stands twice, first as operation 1")
    has(problems_of(written "B0 F0", 1, 1),
      "operation 1: backward of micro-batch 0: it needs the forward")
    has(problems_of(written "F0 W0 I0", 1, 1),
      "weight of micro-batch 0: it needs the input gradient")
    has(problems_of(written "F0 B0 W0", 1, 1), "operation 2 has already done it")
    has(problems_of(written "F0 I0 B0", 1, 1), "operation 2 has already made the input gradient")
  end)

  it("may not reorder forward passes, whose losses are summed", function()
    has(problems_of(written "F1 F0 B0 B1", 1, 2), "rank 0, operation 2: forward of micro-batch 0: "
      .. "its sum over tokens follows that of micro-batch 1; they must ascend")
  end)

  it("may not reorder weight gradients", function()
    has(problems_of(written "F0 F1 B1 B0", 1, 2), "rank 0, operation 4: backward of micro-batch 0: "
      .. "its weight gradient follows that of micro-batch 1; they must ascend")
    has(problems_of(written "F0 F1 I0 I1 W1 W0", 1, 2), "weight of micro-batch 0")
  end)

  it("may not reorder a channel", function()
    has(problems_of(written("F0 F1 I1 I0 W0 W1", "F0 F1 I0 I1 W0 W1"), 2, 2), "rank 0, operation "
      .. "3: input of micro-batch 1: message 1 of the channel gradient 1>0 is that of rank 1, "
      .. "operation 3")
  end)

  it("is named when it deadlocks", function()
    local text = problems_of(written("F0 F1 I0 I1 W0 W1", "F0 I0 I0 F1"), 2, 2)
    has(text, "stands twice")
    local stuck = problems_of(written("F0 F1 F2 F3 B0 B1 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"), 2, 4)
    has(stuck, "rank 0, operation 4: forward of micro-batch 3: deadlock; with one mailbox slot")
    has(stuck, "rank 1, operation 4: backward of micro-batch 1: deadlock")
  end)
end)

describe("random schedules", function()
  local seed = tonumber(os.getenv "TIDELOCK_SEED") or 20240601

  it("pass or are named, and pass again when given back (seed " .. seed .. ")", function()
    math.randomseed(seed)
    local passed, failed = 0, 0
    for _ = 1, 300 do
      local pp, micros = math.random(2, 3), math.random(1, 4)
      local lists, found = build(function()
        local order, f, b = {}, 0, 0
        while b < micros do -- any legal order of one rank: backward after its forward
          local forward = f < micros and (b == f or math.random() < 0.6)
          order[#order + 1] = forward and { phase = "forward", micro = f }
            or { phase = "backward", micro = b }
          if forward then f = f + 1 else b = b + 1 end
        end
        return order
      end, pp, micros)
      if lists then
        passed = passed + 1
        local _, again = build(function(rank) return lists[rank + 1] end, pp, micros)
        assert.same(found, again)
        assert.is_true(found.time >= found.ideal)
      else
        failed = failed + 1
        for _, problem in ipairs(found) do has(problem, "deadlock") end
      end
    end
    assert.is_true(passed > 0 and failed > 0)
  end)
end)
