local core = require "tidelock.core"
local support = require "support"
local programs = require "support.programs"
local message = programs.message

--- Groups of a tp x dp x pp grid, tp with stride 1: by axis, the list that holds `rank`.
local function grid(rank, tp, dp, pp)
  local t, d, p = rank % tp, rank // tp % dp, rank // (tp * dp)
  local groups = { tp = {}, dp = {}, pp = {} }
  for i = 0, tp - 1 do groups.tp[i + 1] = i + tp * (d + dp * p) end
  for i = 0, dp - 1 do groups.dp[i + 1] = t + tp * (i + dp * p) end
  for i = 0, pp - 1 do groups.pp[i + 1] = t + tp * (d + dp * i) end
  return groups
end

describe("ranks", function()
  it("run a section as often as asked", function()
    local p <close> = programs.summing():program()
    local ranks <close> = programs.ranks(p, 4)
    for rank = 0, 3 do ranks:write(rank, 1, support.filled("f32", { 64 }, rank)) end
    for step = 0, 2 do assert.is_number(ranks:run("step", { step = step }).ms) end
    for rank = 1, 3 do assert.bits(ranks:read(0, 1), ranks:read(rank, 1)) end
    assert.equal(4, ranks:count())
    assert.equal(0, ranks:run("eval").count or 0) -- a section without instructions
  end)

  it("sum over every group of a grid with the tree's order", function()
    local b = programs.new { "tp", "dp", "pp" }
    local x = b:tensor("f32", { 4097 }, { persistent = true })
    local y = {}
    for axis = 0, 2 do
      y[axis] = b:tensor("f32", { 4097 })
      b:add("step", "all_reduce", { x }, { y[axis] }, { group = axis })
    end
    local p <close> = b:program()
    for _, shape in ipairs { { 2, 2, 2 }, { 4, 2, 1 }, { 1, 8, 1 }, { 1, 1, 4 }, { 8, 1, 1 } } do
      local n, list = shape[1] * shape[2] * shape[3], {}
      for rank = 0, n - 1 do list[rank + 1] = { groups = grid(rank, table.unpack(shape)) } end
      local ranks <close> = core.ranks { programs = { p }, ranks = list }
      local given = {}
      for rank = 0, n - 1 do
        given[rank] = support.filled("f32", { 4097 }, rank + 1)
        ranks:write(rank, 1, given[rank])
      end
      ranks:run("step")
      for rank = 0, n - 1 do
        for axis, name in pairs { [0] = "tp", "dp", "pp" } do
          local members, sums = grid(rank, table.unpack(shape))[name], {}
          for i, member in ipairs(members) do sums[i] = given[member]:flat() end
          while #sums > 1 do
            local next_level = {}
            for i = 1, #sums, 2 do
              local sum = {}
              for k, value in ipairs(sums[i]) do sum[k] = core.f32(value + sums[i + 1][k]) end
              next_level[#next_level + 1] = sum
            end
            sums = next_level
          end
          assert.bits(core.tensor("f32", { 4097 }, sums[1]), ranks:read(rank, y[axis]))
        end
      end
    end
  end)

  it("carry messages in order through each channel", function()
    local sender, receiver = programs.new { "pp" }, programs.new { "pp" }
    local given, taken = {}, {}
    for i = 1, 12 do
      given[i] = sender:tensor("bf16", { i % 3 + 1, 5 }, { persistent = true })
      taken[i] = receiver:tensor("bf16", { i % 3 + 1, 5 })
    end
    for i = 1, 12 do sender:add("step", "send", { given[i] }, {}, { group = 0, peer = 1,
      channel = i % 2 }) end
    for i = 1, 12, 4 do -- pairs of a channel, the other channel first
      for _, k in ipairs { i, i + 1, i + 3, i + 2 } do
        receiver:add("step", "recv", {}, { taken[k] }, { group = 0, peer = 0, channel = k % 2 })
      end
    end
    local p <close> = sender:program()
    local q <close> = receiver:program()
    local pair = { pp = { 0, 1 } }
    local ranks <close> = core.ranks {
      programs = { p, q }, delay_us = 200,
      ranks = { { program = 1, groups = pair }, { program = 2, groups = pair } },
    }
    for i = 1, 12 do ranks:write(0, given[i], support.filled("bf16", { i % 3 + 1, 5 }, i)) end
    for step = 0, 3 do ranks:run("step", { step = step }) end
    for i = 1, 12 do assert.bits(ranks:read(0, given[i]), ranks:read(1, taken[i])) end
  end)

  it("hand out results, from the ranks that have them", function()
    local b = programs.new { "pp" }
    local loss, norm = b:tensor("f32", { 1 }), b:tensor("f32", { 1 })
    local control, count = b:tensor("f32", { 2 }), b:tensor("i64", { 1 }, { persistent = true })
    b:add("step", "fill", {}, { loss }, { value = 1.5 })
    b:add("step", "fill", {}, { norm }, { value = 0.1 })
    b:add("step", "fill", {}, { control }, { value = 1 })
    b:add("step", "all_reduce_count", { count }, { count }, { group = 0 })
    b:add("eval", "fill", {}, { loss }, { value = 2 })
    b.tables.results = { loss = loss, grad_norm = norm, control = control, count = count }
    local p <close> = b:program()
    local empty = programs.new { "pp" }
    local own = empty:tensor("i64", { 1 }, { persistent = true })
    empty:add("step", "all_reduce_count", { own }, { own }, { group = 0 })
    local q <close> = empty:program()
    local all = { pp = { 0, 1, 2 } }
    local ranks <close> = core.ranks {
      programs = { p, q },
      ranks = { { program = 2, groups = all }, { groups = all }, { groups = all } },
    }
    for rank = 0, 2 do ranks:write(rank, rank == 0 and own or count, core.tensor("i64", { 1 },
      { 5 })) end
    local step = ranks:run("step")
    assert.equal(1.5, step.loss)
    assert.equal("3fc00000", step.loss_bits)
    assert.equal("3dcccccd", step.grad_norm_bits)
    assert.same({ 1, 1 }, step.control)
    assert.is_true(step.skipped)
    assert.equal(15, step.count)
    local eval = ranks:run("eval")
    assert.equal(2, eval.loss)
    assert.is_nil(eval.grad_norm)
    assert.is_nil(eval.count)
  end)

  it("must agree on results", function()
    local b, list = { programs.new {}, programs.new {} }, {}
    for i = 1, 2 do
      local loss = b[i]:tensor("f32", { 1 })
      b[i]:add("step", "fill", {}, { loss }, { value = i })
      b[i].tables.results = { loss = loss }
      list[i] = b[i]:program()
    end
    local ranks <close> = core.ranks { programs = list, ranks = { { program = 1 },
      { program = 2 } } }
    assert.matches("loss differs between ranks: rank 0 has bits 3f800000, rank 1 has 40000000",
      message(ranks.run, ranks, "step"))
  end)

  it("read, write and hash tensors; shares of shards add up", function()
    local b = programs.new {}
    local x = b:tensor("f32", { 2, 3 }, { persistent = true })
    local p <close> = b:program()
    local ranks <close> = programs.ranks(p, 2, { group = "none", ranks = { {}, {} } })
    local whole = support.filled("f32", { 2, 6 }, 1)
    local values = whole:flat()
    for rank = 0, 1 do
      local shard = {}
      for row = 0, 1 do
        for col = 1, 3 do shard[#shard + 1] = values[row * 6 + rank * 3 + col] end
      end
      ranks:write(rank, x, core.tensor("f32", { 2, 3 }, shard))
    end
    local sum = ranks:hash(0, x, "w", { cols_full = 6 }) + ranks:hash(1, x, "w", { cols_full = 6,
      col_first = 3 })
    assert.equal(whole:hash "w", ("%016x"):format(sum))
    assert.equal(ranks:read(0, x):hash "w", ("%016x"):format(ranks:hash(0, x, "w")))
    assert.matches("tensor of another size", message(ranks.write, ranks, 0, x, whole))
    assert.matches("tensor of another dtype", message(ranks.write, ranks, 0, x,
      core.tensor("bf16", { 2, 3 })))
    assert.matches("no such rank", message(ranks.read, ranks, 2, x))
    assert.matches("tensor 1; rank 0 has 1", message(ranks.read, ranks, 0, 2))
    assert.matches("columns past cols_full", message(ranks.hash, ranks, 0, x, "w",
      { cols_full = 6, col_first = 4 }))
    assert.matches("rows times cols", message(ranks.hash, ranks, 0, x, "w", { rows = 4 }))
  end)

  it("count memory: one arena a rank", function()
    core.memory(true)
    local before = core.memory().arena.current
    local p <close> = programs.summing():program()
    local ranks = programs.ranks(p, 4)
    assert.equal(before + 4 * p:arena_bytes(), ranks:memory().arena)
    assert.equal(before + 4 * p:arena_bytes(), ranks:memory().peak.arena)
    ranks:close()
    ranks:close()
    assert.equal(before, core.memory().arena.current)
    assert.equal(0, core.memory().comm.current)
    assert.matches("ranks are closed", message(ranks.run, ranks, "step"))
  end)

  it("take times when asked", function()
    local p <close> = programs.summing():program()
    local ranks <close> = programs.ranks(p, 2)
    assert.matches("tracing is off", message(ranks.times, ranks, 0))
    for rank = 0, 1 do ranks:write(rank, 1, support.filled("f32", { 64 }, rank)) end
    ranks:trace(true)
    ranks:run("step")
    local times, spans = ranks:times(1), ranks:spans(1)
    assert.equal(3, #times)
    for i = 1, 3 do assert.equal(times[i], spans[i][2] - spans[i][1]) end
    ranks:trace(false)
    assert.matches("tracing is off", message(ranks.spans, ranks, 0))
  end)
end)

describe("a failure", function()
  it("of one rank ends the run on all, with its place", function()
    for _, failing in ipairs { 0, 3, 7 } do
      local p <close> = programs.summing():program()
      local ranks <close> = programs.ranks(p, 8,
        { faults = { { rank = failing, instruction = 1, kind = "fail" } } })
      assert.matches(("rank %d of 8: step 6, micro%%-batch 0, instruction 0 scale " ..
        "%%(by_hand.lua:0%%): " ..
        "a test made it fail"):format(failing), message(ranks.run, ranks, "step", { step = 5 }))
      assert.matches("these ranks have failed before", message(ranks.run, ranks, "step"))
    end
  end)

  it("of a kernel is handed on with its message", function()
    local b = programs.new {}
    local x, gain = b:tensor("f32", { 4, 4 }, { persistent = true }), b:tensor("f32", { 3 },
      { persistent = true })
    b:add("step", "rms_norm", { x, gain }, { b:tensor("f32", { 4, 4 }), b:tensor("f32", { 4 }) },
      { eps = 1e-5 })
    local p <close> = b:program()
    local ranks <close> = programs.ranks(p, 1, { ranks = { {} } })
    assert.matches("rank 0 of 1: step 1, micro%-batch 0, instruction 0 rms_norm " ..
      "%(by_hand.lua:0%): .+",
      message(ranks.run, ranks, "step"))
  end)

  it("to answer is found by those who wait, within the limit", function()
    for _, stalling in ipairs { 0, 2 } do
      local p <close> = programs.summing():program()
      local ranks <close> = programs.ranks(p, 4,
        { timeout_s = 0.2, faults = { { rank = stalling, instruction = 1, kind = "stall" } } })
      local text = message(ranks.run, ranks, "step", { step = 1 })
      assert.matches(("rank %%d waits for rank %d: silent for 0.2 s in instruction 1 " ..
        "all_reduce over all " ..
        "%%(by_hand.lua:1%%), step 2, micro%%-batch 3; rank %d is in instruction 0 scale " ..
        "%%(by_hand.lua:0%%)"):format(stalling, stalling), text)
    end
  end)

  it("to send, or to receive, is found too", function()
    local a, b = programs.new { "pp" }, programs.new { "pp" }
    local x, y = a:tensor("f32", { 4 }, { persistent = true }), b:tensor("f32", { 4 })
    for i = 1, 4 do
      a:add("step", "send", { x }, {}, { group = 0, peer = 1, channel = 0 })
      b:add("step", "recv", {}, { y }, { group = 0, peer = 0, channel = 0 })
      if i == 3 then a:add("step", "scale", { x }, { x }, { factor = 1 }) end
    end
    local p <close> = a:program()
    local q <close> = b:program()
    local pair = { pp = { 0, 1 } }
    local function open(rank, instruction)
      return core.ranks {
        programs = { p, q }, ranks = { { program = 1, groups = pair }, { program = 2,
          groups = pair } },
        timeout_s = 0.2, faults = { { rank = rank, instruction = instruction, kind = "stall" } },
      }
    end
    local ranks <close> = open(0, 4)
    assert.matches("rank 1 waits for rank 0: silent for 0.2 s in instruction 3 recv over pp " ..
      ".*; rank 0 is " ..
      "in instruction 3 scale", message(ranks.run, ranks, "step"))
    local others <close> = open(1, 1)
    assert.matches("rank 0 waits for rank 1: silent for 0.2 s in instruction 2 send over pp " ..
      ".*; rank 1 is " ..
      "in instruction 0 recv", message(others.run, others, "step"))
  end)

  it("is not seen in a rank that waits for one that is slow", function()
    local a, b, c = programs.new { "pair", "pp" }, programs.new { "pair", "pp" },
      programs.new { "pp" }
    local x, y = a:tensor("f32", { 4 }, { persistent = true }), c:tensor("f32", { 4 })
    b:tensor("f32", { 4 }, { persistent = true })
    for _ = 1, 40 do a:add("step", "scale", { x }, { x }, { factor = 1 }) end
    a:add("step", "all_reduce", { x }, { x }, { group = 0 })
    b:add("step", "all_reduce", { x }, { x }, { group = 0 })
    b:add("step", "send", { x }, {}, { group = 1, peer = 1, channel = 0 })
    c:add("step", "recv", {}, { y }, { group = 0, peer = 0, channel = 0 })
    local list = { a:program(), b:program(), c:program() }
    local pair, pp = { 0, 1 }, { 1, 2 }
    local function open(more)
      local options = {
        programs = list, timeout_s = 0.5, delay_us = 40000,
        ranks = {
          { program = 1, groups = { pair = pair } },
          { program = 2, groups = { pair = pair, pp = pp } },
          { program = 3, groups = { pp = pp } },
        },
      }
      for name, value in pairs(more) do options[name] = value end
      return core.ranks(options)
    end
    local slow <close> = open {}
    assert.is_true(slow:run("step").ms > 500) -- more than any wait may last
    local stuck <close> = open { faults = { { rank = 0, instruction = 40, kind = "stall" } } }
    assert.matches("rank 1 waits for rank 0: silent for 0.5 s in instruction 0 all_reduce over " ..
      "pair .*; rank 0 is in instruction 39 scale", message(stuck.run, stuck, "step"))
  end)

  it("leaves tensors readable", function()
    local p <close> = programs.summing():program()
    local ranks <close> = programs.ranks(p, 2, { faults = { { rank = 1, instruction = 3,
      kind = "fail" } } })
    for rank = 0, 1 do ranks:write(rank, 1, core.tensor("f32", { 64 }, support.filled("f32",
      { 64 }, 1):flat())) end
    assert.matches("instruction 2 scale", message(ranks.run, ranks, "step"))
    assert.equal(4 * ranks:read(1, 1):flat()[7], ranks:read(1, 2):flat()[7])
  end)
end)

describe("check", function()
  it("names the first instruction, tensor and element that is not finite", function()
    local p <close> = programs.summing():program()
    local ranks <close> = programs.ranks(p, 2, { faults = { { rank = 1, instruction = 1,
      kind = "nan" } } })
    for rank = 0, 1 do ranks:write(rank, 1, support.filled("f32", { 64 }, rank)) end
    assert.matches("rank 1 of 2: step 3, micro%-batch 0, instruction 0 scale " ..
      "%(by_hand.lua:0%): element " ..
      "%[0%] of y %(y, tensor 1%) is NaN", message(ranks.run, ranks, "step", { step = 2,
        check = true }))
  end)

  it("sees infinities of both dtypes, in any element", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local b = programs.new {}
      local x = b:tensor(dtype, { 3, 5 }, { persistent = true })
      b:add("step", "scale", { x }, { b:tensor(dtype, { 3, 5 }, { name = "out" }) }, { factor = 2 })
      local p <close> = b:program()
      local ranks <close> = programs.ranks(p, 1, { ranks = { {} } })
      local values = support.filled(dtype, { 3, 5 }, 1):flat()
      ranks:write(0, x, core.tensor(dtype, { 3, 5 }, values))
      ranks:run("step", { check = true })
      values[13] = -math.huge
      ranks:write(0, x, core.tensor(dtype, { 3, 5 }, values))
      ranks:run("step")
      assert.matches("element %[2, 2%] of y %(out, tensor 1%) is %-Inf",
        message(ranks.run, ranks, "step", { check = true }))
    end
  end)

  it("lets the maximum of no columns be", function()
    local b = programs.new {}
    local z = b:tensor("f32", { 2, 4 }, { persistent = true })
    b:add("step", "row_max", { z }, { b:tensor("f32", { 2 }) }, { columns = 0 })
    local p <close> = b:program()
    local ranks <close> = programs.ranks(p, 1, { ranks = { {} } })
    ranks:write(0, z, core.tensor("f32", { 2, 4 }))
    ranks:run("step", { check = true })
    assert.same({ -math.huge, -math.huge }, ranks:read(0, 2):flat())
  end)
end)

describe("poison", function()
  it("fills what a section may not expect, before each run", function()
    for _, byte in ipairs { 0, 255 } do
      local b = programs.new {}
      local kept, rest = b:tensor("i32", { 16 }), b:tensor("i32", { 16 })
      local outside = b:tensor("i32", { 16 }, { persistent = true })
      b:add("init", "position_ids", { outside }, { b:tensor("i32", { 15 }, { offset = 0 }) })
      local p <close> = b:program()
      local ranks <close> = programs.ranks(p, 1, { poison = byte, ranks = { {} } })
      local cu = { 0, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15 }
      ranks:write(0, outside, core.tensor("i32", { 16 }, cu))
      ranks:write(0, rest, core.tensor("i32", { 16 }))
      ranks:run("init")
      local all = byte == 0 and 0 or -1
      assert.equal(14, ranks:read(0, kept):flat()[15])
      assert.equal(all, ranks:read(0, kept):flat()[16])
      assert.equal(all, ranks:read(0, rest):flat()[1])
      assert.same(cu, ranks:read(0, outside):flat())
      ranks:write(0, rest, core.tensor("i32", { 16 }))
      ranks:run("step")
      assert.equal(all, ranks:read(0, rest):flat()[1])
      assert.equal(14, ranks:read(0, kept):flat()[15])
    end
  end)

  it("changes no result of a verified program", function()
    local seen = {}
    for _, byte in ipairs { 0, 255, -1 } do
      local p <close> = programs.summing():program()
      local ranks <close> = programs.ranks(p, 4, { poison = byte })
      for rank = 0, 3 do ranks:write(rank, 1, support.filled("f32", { 64 }, rank)) end
      for step = 0, 2 do ranks:run("step", { step = step }) end
      seen[#seen + 1] = ranks:read(3, 1)
    end
    assert.bits(seen[1], seen[2])
    assert.bits(seen[1], seen[3])
  end)
end)

describe("delays", function()
  it("between instructions change no bit", function()
    local first
    for _, delay in ipairs { 0, 100, 2000 } do
      local p <close> = programs.summing():program()
      local ranks <close> = programs.ranks(p, 8, { delay_us = delay })
      for rank = 0, 7 do ranks:write(rank, 1, support.filled("f32", { 64 }, rank)) end
      for step = 0, 4 do ranks:run("step", { step = step }) end
      first = first or ranks:read(0, 1)
      for rank = 0, 7 do assert.bits(first, ranks:read(rank, 1)) end
    end
  end)
end)

describe("data", function()
  local function source(samples)
    local list = {}
    for s = 1, samples do
      list[s] = { tokens = { s, s + 10, s + 20, s + 30 }, targets = { s, -1, -1,
        s == 2 and 5 or -1 } }
    end
    return assert(core.data.given(list, { length = 4, vocab = 100, seed = 1 }))
  end

  local function feeding(first, samples, index)
    local b = programs.new { "dp" }
    local t = samples * 4
    local tokens, count = b:tensor("i32", { t }), b:tensor("i64", { 1 })
    b:add("step", "load_micro", {}, { tokens, b:tensor("i32", { t }), b:tensor("i32", { t + 1 }) },
      { first = first, samples = samples, length = 4, source = index })
    b:add("step", "count_targets", {}, { count }, { samples = samples, length = 4, source = index })
    b:add("step", "all_reduce_count", { count }, { count }, { group = 0 })
    b.tables.results = { count = count }
    return b:program()
  end

  local function open(p, options)
    local settings = {
      programs = { p },
      ranks = { { groups = { dp = { 0, 1 } }, sample_base = 0 }, { groups = { dp = { 0, 1 } },
        sample_base = 2 } },
    }
    for name, value in pairs(options) do settings[name] = value end
    return core.ranks(settings)
  end

  it("gives each rank its samples of the step", function()
    local p <close> = feeding(1, 1, 0)
    local ranks <close> = open(p, { data = { source(8) }, samples = 4 })
    local step = ranks:run("step", { step = 0 })
    assert.same({ 2, 12, 22, 32 }, ranks:read(0, 1):flat())
    assert.same({ 4, 14, 24, 34 }, ranks:read(1, 1):flat())
    assert.equal(2, step.count) -- count_targets starts at the rank's first sample
    ranks:run("step", { step = 1 })
    assert.same({ 6, 16, 26, 36 }, ranks:read(0, 1):flat())
  end)

  it("scales the rank's first sample for a further source", function()
    local p <close> = feeding(0, 1, 1)
    local ranks <close> = open(p, { data = { false, source(8) }, samples = 4,
      eval_samples = { 2 } })
    ranks:run("step", { step = 1 })
    assert.same({ 3, 13, 23, 33 }, ranks:read(0, 1):flat())
    assert.same({ 4, 14, 24, 34 }, ranks:read(1, 1):flat())
  end)

  it("is refused where it is not there", function()
    local p <close> = feeding(1, 2, 0)
    assert.matches("rank 0: instruction 0 load_micro %(by_hand.lua:0%): source 0; there are 0",
      message(open, p, {}))
    assert.matches("rank 0: instruction 0 load_micro .*: source 0 is not there",
      message(open, p, { data = { false }, samples = 4 }))
    assert.matches("rank 1: instruction 0 load_micro .*: samples 3 to 4 of a global batch of 4",
      message(open, p, { data = { source(8) }, samples = 4 }))
    assert.matches("eval_samples has no entry 1",
      message(open, p, { data = { source(8), source(8) }, samples = 4 }))
  end)
end)

describe("options", function()
  it("are refused with their names", function()
    local p <close> = programs.summing():program()
    assert.matches("ranks: no option thread", message(core.ranks, { programs = { p },
      ranks = { {} }, thread = 1 }))
    assert.matches("programs is empty", message(core.ranks, { ranks = { {} } }))
    assert.matches("0 ranks, must be 1 to 4096", message(core.ranks, { programs = { p } }))
    assert.matches("rank 0: there is no such program",
      message(core.ranks, { programs = { p }, ranks = { { program = 2 } } }))
    assert.matches("poison is 256", message(core.ranks, { programs = { p }, ranks = { {} },
      poison = 256 }))
    assert.matches("no fault crash; there are fail, stall, nan", message(core.ranks,
      { programs = { p }, ranks = { {} }, faults = { { rank = 0, instruction = 1,
        kind = "crash" } } }))
    local ranks <close> = programs.ranks(p, 1)
    assert.matches("no section train", message(ranks.run, ranks, "train"))
    local many = {}
    for i = 1, 257 do many[i] = 0 end
    assert.matches("more than 256 scalars", message(ranks.run, ranks, "step", { scalars = many }))
  end)
end)
