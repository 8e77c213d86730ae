-- Faults that users of other systems reported, about kernels, collectives and memory.
local core = require "tidelock.core"
local models = require "support.models"
local support = require "support"

describe("H02, a collective that changes its algorithm with the size", function()
  local Q4 = { 2.0 ^ 24, 1, 1, -2.0 ^ 24 }

  --- All ranks' tensors (rows, width); column c holds +-Q4[rank].
  local function ranks_of(rows, width)
    local list = {}
    for rank = 1, 4 do
      local row = {}
      for c = 1, width do row[c] = (c % 2 == 1 and 1 or -1) * Q4[rank] end
      local one, pieces = core.tensor("f32", { 1, width }, row), {}
      for r = 1, rows do pieces[r] = { tensor = one, rows = 1, cols = width, row_first = r - 1 } end
      list[rank] = core.assemble("f32", { rows, width }, pieces)
    end
    return list
  end

  --- +-1 in every element, rounded to `dtype`.
  local function expected(rows, width, dtype)
    local row, pieces = {}, {}
    for c = 1, width do row[c] = c % 2 == 1 and 1 or -1 end
    local one = core.tensor(dtype, { 1, width }, row)
    for r = 1, rows do pieces[r] = { tensor = one, rows = 1, cols = width, row_first = r - 1 } end
    return core.assemble(dtype, { rows, width }, pieces)
  end

  for _, shape in ipairs {
    { 1, 8192 }, { 7, 8192 }, { 8, 8192 }, { 64, 8192 }, { 65, 8192 }, { 512, 8192 }, { 1, 8190 },
    { 4096, 64 },
  } do
    it(("gives the tree's sum for %d x %d"):format(shape[1], shape[2]), function()
      local x = ranks_of(shape[1], shape[2])
      core.comm("all_reduce", x, x)
      local want = expected(shape[1], shape[2], "f32")
      for rank = 1, 4 do assert.bits(want, x[rank]) end
      local y = core.tensor("bf16", shape)
      core.call("cast", { x[1] }, { y }, {})
      assert.bits(expected(shape[1], shape[2], "bf16"), y)
    end)
  end
end)

describe("H22, the flag is set, the order is not", function()
  local function attention(dtype, rows, heads, kv_heads, borders, threads)
    local function x(count, stream) return support.filled(dtype, { rows, count, 32 }, stream) end
    local q, k, v, upstream = x(heads, 1), x(kv_heads, 2), x(kv_heads, 3), x(heads, 4)
    local cu = { table.unpack(borders) }
    while #cu < rows + 1 do cu[#cu + 1] = rows end
    cu = core.tensor("i32", { rows + 1 }, cu)
    local o = support.poison(dtype, { rows, heads, 32 })
    local lse = support.poison("f32", { rows, heads })
    local attrs = { window = 0, kv_block = 16, split = 64, scale = 0.2 }
    core.call("attention", { q, k, v, cu }, { o, lse }, attrs, { threads = threads })
    attrs.dk_scale, attrs.head_leaves = 0.2, 2
    local dq = support.poison(dtype, { rows, heads, 32 })
    local dk = support.poison(dtype, { rows, kv_heads, 32 })
    local dv = support.poison(dtype, { rows, kv_heads, 32 })
    core.call("attention_grad", { q, k, v, o, lse, upstream, cu }, { dq, dk, dv }, attrs,
      { threads = threads })
    return table.concat({ o:hash(), lse:hash(), dq:hash(), dk:hash(), dv:hash() }, " ")
  end

  it("attention has one hash over repeats and thread counts", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      for _, case in ipairs { { 200, 4, 2, { 0, 1, 90, 200 } }, { 64, 4, 2, { 0, 64 } } } do
        local expected = attention(dtype, table.unpack(case))
        for repeats = 1, 10 do
          case[5] = repeats % 4 + 1
          assert.equal(expected, attention(dtype, table.unpack(case)))
        end
      end
    end
  end)

  it("a step has one hash in fresh processes", function()
    local command = support.program .. " lua tests/support/trace.lua bf16 2>&1"
    local expected = models.trace { dtype = "bf16" } .. "\n"
    for _ = 1, 3 do
      local pipe = assert(io.popen(command))
      local text = pipe:read "a"
      pipe:close()
      assert.equal(expected, text)
    end
  end)
end)

describe("H25, more elements than 32 bits count #slow", function()
  local rows, width = 300000, 8192 -- 2,457,600,000 elements; 4.9 GB in bf16

  --- A tensor of random numbers, made in place.
  local function random(shape, stream)
    local t = core.tensor("bf16", shape)
    local attrs = { kind = 2, name_hash = stream, row_first = 0, col_first = 0,
      cols_full = shape[2], first = -1, second = 1 }
    core.call("init", {}, { t }, attrs)
    return t
  end

  local x, last
  setup(function()
    x = random({ rows, width }, 1)
    last = core.assemble("bf16", { 1, width }, { { tensor = x:narrow(1, rows, 1), rows = 1,
      cols = width } })
  end)
  teardown(function() x:close() end)

  --- The last row of `op` over all rows has the bits of that row alone.
  local function check(op, inputs, alone, attrs, more)
    local y <close> = core.tensor("bf16", { rows, width })
    local one = core.tensor("bf16", { 1, width })
    core.call(op, inputs, { y, more and core.tensor("f32", { rows }) or nil }, attrs)
    core.call(op, alone, { one, more and core.tensor("f32", { 1 }) or nil }, attrs)
    assert.bits(one, y:narrow(1, rows, 1))
  end

  it("rms_norm", function()
    local gain = random({ 1, width }, 2)
    gain = core.assemble("bf16", { width }, { { tensor = gain, rows = width, cols = 1 } })
    check("rms_norm", { x, gain }, { last, gain }, { eps = 1e-6 }, true)
  end)

  it("swiglu", function() check("swiglu", { x, x }, { last, last }, {}) end)

  it("residual", function()
    check("binary", { x, x }, { last, last }, { kind = 0, broadcast = 0 })
  end)

  it("rope, of documents of 16 tokens", function()
    local heads = width // 128
    local tables = core.tensor("f32", { 16, 64, 2 })
    core.call("rope_table", {}, { tables },
      { kind = 0, original = 0, base = 10000, factor = 1, low = 1, high = 4, magnitude = 1 })
    local starts = {}
    for i = 0, rows, 16 do starts[#starts + 1] = i end
    local function turn(from, to, borders)
      core.call("rope", { from, core.tensor("i32", { #borders }, borders), tables }, { to },
        { inverse = 0, interleaved = 0 })
    end
    local whole <close> = core.tensor("bf16", { rows, heads, 128 })
    core.call("scale", { x }, { whole }, { factor = 1 })
    local alone = core.tensor("bf16", { 16, heads, 128 })
    turn(whole:narrow(1, rows - 15, 16), alone, { 0, 16 })
    turn(whole, whole, starts)
    assert.bits(alone, whole:narrow(1, rows - 15, 16))
  end)

  it("embedding backward", function()
    local ids, table_grad = {}, core.tensor("f32", { 3, width })
    for i = 1, rows do ids[i] = i == rows and 2 or i % 2 end
    core.call("embedding_grad", { core.tensor("i32", { rows }, ids), x }, { table_grad },
      { first_id = 0, first = 0, samples = 1, length = rows, mode = 0 })
    local wide = core.tensor("f32", { 1, width })
    core.call("cast", { last }, { wide }, {})
    assert.bits(wide, table_grad:narrow(1, 3, 1))
  end)
end)

describe("H25, 20,000 rows of 128,256 logits #slow", function()
  it("give the last row the gradient that it has alone", function()
    local rows, vocab = 20000, 128256
    local z <close> = core.tensor("f32", { rows, vocab })
    core.call("init", {}, { z }, { kind = 2, name_hash = 3, row_first = 0, col_first = 0,
      cols_full = vocab, first = -4, second = 4 })
    local one = core.assemble("f32", { 1, vocab }, { { tensor = z:narrow(1, rows, 1), rows = 1,
      cols = vocab } })
    local function gradient(logits, count)
      local function column(dtype, value)
        local t = core.tensor(dtype or "f32", { count })
        if value then t:fill(value) end
        return t
      end
      local targets, m, s = column("i32", 128255), column(), column()
      core.call("row_max", { logits }, { m }, { columns = vocab })
      core.call("row_sum_exp", { logits, m, targets }, { s, column(), column() },
        { columns = vocab, first = 0, leaves = 1 })
      core.call("cross_entropy_grad", { logits, m, s, targets, column(nil, 1) }, { logits },
        { columns = vocab, first = 0, vocab = vocab, smoothing = 0, z = 0 })
      return logits:narrow(1, count, 1)
    end
    local expected = gradient(one, 1)
    assert.bits(expected, gradient(z, rows))
  end)
end)

describe("H30, two streams", function()
  it("a step that reads what another lane has not written is refused before it runs", function()
    local programs = require "support.programs"
    local b = programs.new { "all" }
    local x = b:tensor("f32", { 8 }, { persistent = true })
    local y = b:tensor("f32", { 8 })
    b:add("step", "scale", { x }, { y }, { factor = 2 }, { lane = 0 })
    b:add("step", "all_reduce", { y }, { y }, { group = 0 }, { lane = 1 })
    assert.matches("in lane 1 without waiting for instruction 0",
      programs.message(core.program, b.tables))
  end)

  it("one hash of a step over many runs of ranks that race each other", function()
    local options = { ["layout.tp"] = 2, ["layout.pp"] = 2, ["layout.dp"] = 2, micro = 1 }
    local expected = models.trace({}, nil, 12)
    for threads = 1, 3 do
      assert.equal(expected, models.trace(options, { threads = threads }, 12))
    end
  end)
end)

describe("H31, stale memory", function()
  it("changes no bit of a step, whatever the arenas held", function()
    for _, options in ipairs {
      { dtype = "bf16", tied = true, dropout = 0.1 },
      { heads = 8, kv_heads = 2, ["layout.tp"] = 4, ["layout.pp"] = 2, documents = true },
      { samples = 6, micro = 3, ["layout.tp"] = 2, ["layout.sequence_parallel"] = false },
    } do
      local expected = models.trace(options)
      for _, byte in ipairs { 0, 255, 0x7F } do
        assert.equal(expected, models.trace(options, { poison = byte }))
      end
    end
  end)
end)
