local core = require "tidelock.core"
local support = require "support"
local model = require "support.attention_model"
local oracle = require "support.attention_oracle"

local defaults = {
  heads = 4, kv_heads = 2, width = 8, value_width = 8, dtype = "f32",
  window = 0, kv_block = 16, split = 8192, leaves = 1, scale = 0.35, rows = false,
}

local function make_case(fields)
  local case = {}
  for name, value in pairs(defaults) do case[name] = value end
  for name, value in pairs(fields) do case[name] = value end
  case.scale = core.f32(case.scale)
  case.dk_scale = core.f32(fields.dk_scale or case.scale)
  case.rows = fields.rows or case.cu[#case.cu]
  return case
end

--- q, k, v, do and cu: filled by `stream`, scores spread over several powers of two.
local function make_inputs(case, stream)
  local function filled(heads, width, number, factor)
    local t = support.filled("f32", { case.rows, heads, width }, stream + number):flat()
    for i = 1, #t do t[i] = t[i] * factor end
    return core.tensor(case.dtype, { case.rows, heads, width }, t)
  end
  return {
    q = filled(case.heads, case.width, 1, 4.0), k = filled(case.kv_heads, case.width, 2, 1.5),
    v = filled(case.kv_heads, case.value_width, 3, 1.0),
    grad = filled(case.heads, case.value_width, 4, 1.0),
    cu = core.tensor("i32", { #case.cu }, case.cu),
  }
end

local function poisoned(dtype, shape, clear)
  if clear then return core.tensor(dtype, shape) end
  return support.poison(dtype, shape)
end

local function forward(case, inputs, options)
  options = options or {}
  local o = poisoned(options.dtype or case.dtype, { case.rows, case.heads, case.value_width },
    options.clear)
  local lse = poisoned("f32", { case.rows, case.heads }, options.clear)
  core.call("attention", { inputs.q, inputs.k, inputs.v, inputs.cu }, { o, lse },
    { window = case.window, kv_block = case.kv_block, split = case.split, scale = case.scale },
    { threads = options.threads or 1 })
  return { o = o, lse = lse }
end

local function backward(case, inputs, out, options)
  options = options or {}
  local dtype, clear = options.dtype or case.dtype, options.clear
  local dq = poisoned(dtype, { case.rows, case.heads, case.width }, clear)
  local dk = poisoned(dtype, { case.rows, case.kv_heads, case.width }, clear)
  local dv = poisoned(dtype, { case.rows, case.kv_heads, case.value_width }, clear)
  core.call("attention_grad",
    { inputs.q, inputs.k, inputs.v, out.o, out.lse, inputs.grad, inputs.cu }, { dq, dk, dv },
    { window = case.window, kv_block = case.kv_block, split = case.split,
      head_leaves = case.leaves, scale = case.scale, dk_scale = case.dk_scale },
    { threads = options.threads or 1 })
  return { dq = dq, dk = dk, dv = dv }
end

--- o, lse, dq, dk, dv.
local function both(case, inputs, options)
  local out = forward(case, inputs, options)
  for name, t in pairs(backward(case, inputs, out, options)) do out[name] = t end
  return out
end

local names = { "o", "lse", "dq", "dk", "dv" }

local function assert_same(expected, actual)
  for _, name in ipairs(names) do assert.bits(expected[name], actual[name]) end
end

--- Rows first .. first + count - 1 (from 0) of every tensor of `set`.
local function cut(set, first, count)
  local part = {}
  for name, t in pairs(set) do
    if name ~= "cu" then part[name] = t:narrow(1, first + 1, count) end
  end
  return part
end

local cases = {
  { "one segment", cu = { 0, 37 } },
  { "several segments, some empty", cu = { 0, 0, 5, 5, 38, 39, 39 } },
  { "unequal widths", cu = { 0, 20 }, width = 5, value_width = 19 },
  { "one query head a KV head", cu = { 0, 18 }, kv_heads = 4 },
  { "a window", cu = { 0, 41, 50 }, window = 7 },
  { "a window of one", cu = { 0, 9 }, window = 1 },
  { "parts of 16 keys", cu = { 0, 50 }, split = 16 },
  { "parts and a window", cu = { 0, 50 }, split = 16, window = 20 },
  { "two leaves of heads", cu = { 0, 21 }, leaves = 2 },
  { "four leaves of heads", cu = { 0, 17 }, heads = 8, kv_heads = 1, leaves = 4 },
  { "another scale for dk", cu = { 0, 11 }, dk_scale = 1.0 },
}

describe("attention", function()
  for _, fields in ipairs(cases) do
    for _, dtype in ipairs { "f32", "bf16" } do
      local case = make_case(fields)
      case.dtype = dtype
      it(("has the specification's bits: %s, %s"):format(fields[1], dtype), function()
        local inputs = make_inputs(case, 7)
        local got = both(case, inputs)
        local q, k, v, grad = inputs.q:flat(), inputs.k:flat(), inputs.v:flat(), inputs.grad:flat()
        local o, lse = model.forward(case, q, k, v)
        local dq, dk, dv = model.backward(case, q, k, v, o, lse, grad)
        local want = { o = o, lse = lse, dq = dq, dk = dk, dv = dv }
        for _, field in ipairs(names) do
          local t = got[field]
          assert.bits(core.tensor(t:dtype(), t:shape(), want[field]), t)
        end
      end)
    end
  end

  it("has the specification's bits with blocks of 8 in f32", function()
    local case = make_case { cu = { 0, 30 }, kv_block = 8, split = 8, heads = 2, kv_heads = 1 }
    local inputs = make_inputs(case, 9)
    local o, lse = model.forward(case, inputs.q:flat(), inputs.k:flat(), inputs.v:flat())
    local got = forward(case, inputs)
    assert.bits(core.tensor("f32", got.o:shape(), o), got.o)
    assert.bits(core.tensor("f32", got.lse:shape(), lse), got.lse)
  end)
end)

--- The largest difference, relative to the largest value.
local function distance(want, got)
  local largest, off = 0.0, 0.0
  for i = 1, #want do
    largest = math.max(largest, math.abs(want[i]))
    off = math.max(off, math.abs(want[i] - got[i]))
    if got[i] ~= got[i] then return math.huge end
  end
  return off / math.max(largest, 1e-30)
end

describe("attention", function()
  -- f32: about sqrt(200) roundings of 2^-24; bf16: a few of 2^-9.
  local tolerance = { f32 = 4e-6, bf16 = 2e-2 }
  for _, dtype in ipairs { "f32", "bf16" } do
    it("is close to the f64 oracle, forward and backward, in " .. dtype, function()
      local case = make_case { cu = { 0, 150, 160, 210 }, width = 32, value_width = 24,
        kv_block = 64, split = 64, window = 100, leaves = 2, scale = 32 ^ -0.5, dtype = dtype }
      local inputs = make_inputs(case, 3)
      local got = both(case, inputs)
      local q, k, v, grad = inputs.q:flat(), inputs.k:flat(), inputs.v:flat(), inputs.grad:flat()
      local want = {}
      want.o, want.lse = oracle.forward(case, q, k, v)
      want.dq, want.dk, want.dv = oracle.backward(case, q, k, v, grad)
      for _, name in ipairs(names) do
        local off = distance(want[name], got[name]:flat())
        assert.is_true(off < tolerance[dtype], ("%s is off by %g"):format(name, off))
      end
    end)
  end

  it("has the oracle's slopes as gradients", function()
    local case = make_case { cu = { 0, 6, 13 }, window = 4 }
    local inputs = make_inputs(case, 5)
    local got = both(case, inputs)
    local flat = { q = inputs.q:flat(), k = inputs.k:flat(), v = inputs.v:flat() }
    local grad = inputs.grad:flat()
    for name, gradient in pairs { q = "dq", k = "dk", v = "dv" } do
      local values = got[gradient]:flat()
      for element = 1, #values, 17 do
        local slope = oracle.slope(case, flat, flat[name], element, grad)
        assert.near(slope, values[element], 2e-5)
      end
    end
  end)
end)

describe("a segment's bits", function()
  for _, dtype in ipairs { "f32", "bf16" } do
    local case = make_case { cu = { 0, 3, 3, 70, 103, 104 }, dtype = dtype, window = 45,
      split = 32, leaves = 2 }
    local inputs = make_inputs(case, 11)
    local packed = both(case, inputs)

    it("are those of the segment alone, in " .. dtype, function()
      for s = 1, #case.cu - 1 do
        local first, count = case.cu[s], case.cu[s + 1] - case.cu[s]
        if count > 0 then
          local alone = make_case { cu = { 0, count }, dtype = dtype, window = 45, split = 32,
            leaves = 2 }
          local part = cut(inputs, first, count)
          part.cu = core.tensor("i32", { 2 }, alone.cu)
          assert_same(cut(packed, first, count), both(alone, part))
        end
      end
    end)

    it("do not see NaN in other segments, in " .. dtype, function()
      local segment = 3 -- rows 3 to 69
      local spoiled = { cu = inputs.cu }
      for _, name in ipairs { "q", "k", "v", "grad" } do
        local values = inputs[name]:flat()
        local row = #values // case.rows
        for i = 1, #values do
          local at = (i - 1) // row
          if at < case.cu[segment] or at >= case.cu[segment + 1] then values[i] = 0 / 0 end
        end
        spoiled[name] = core.tensor(dtype, inputs[name]:shape(), values)
      end
      assert_same(cut(packed, 3, 67), cut(both(case, spoiled), 3, 67))
    end)

    it("do not depend on what outputs held before, in " .. dtype, function()
      assert_same(packed, both(case, inputs, { clear = true }))
    end)

    it("do not depend on threads, in " .. dtype, function()
      for threads = 2, 3 do assert_same(packed, both(case, inputs, { threads = threads })) end
    end)
  end

  it("are those of the row in any batch", function()
    local count, bits = 29, nil
    local needle = make_inputs(make_case { cu = { 0, count } }, 21)
    for _, before in ipairs { 0, 1, 2, 15, 16, 31, 32, 33, 64, 100 } do
      local rows = before + count + 7
      local case = make_case { cu = { 0, before, before + count, rows }, kv_block = 32 }
      local inputs = make_inputs(case, 30 + before)
      for _, name in ipairs { "q", "k", "v", "grad" } do
        local values, row = inputs[name]:flat(), #needle[name]:flat() // count
        table.move(needle[name]:flat(), 1, count * row, before * row + 1, values)
        inputs[name] = core.tensor("f32", inputs[name]:shape(), values)
      end
      local part = cut(both(case, inputs, { threads = 2 }), before, count)
      bits = bits or part
      assert_same(bits, part)
    end
  end)
end)

describe("the knobs", function()
  local case = make_case { cu = { 0, 90 }, leaves = 2 }
  local inputs = make_inputs(case, 41)
  local first = both(case, inputs)

  local function with(fields)
    local other = { cu = case.cu, leaves = 2 }
    for name, value in pairs(fields) do other[name] = value end
    return both(make_case(other), inputs)
  end

  it("kv_block, split, window and scale reach the forward pass", function()
    local changes = { { kv_block = 32 }, { split = 16 }, { window = 40 }, { scale = 0.3 } }
    for _, fields in ipairs(changes) do
      assert.is_false((core.equal(first.o, with(fields).o)))
    end
  end)

  it("head_leaves reaches dk and dv, and dk_scale dk alone", function()
    local one, unscaled = with { leaves = 1 }, with { dk_scale = 1.0 }
    assert.bits(first.dq, one.dq)
    assert.is_false((core.equal(first.dk, one.dk)))
    assert.is_false((core.equal(first.dv, one.dv)))
    assert.is_false((core.equal(first.dk, unscaled.dk)))
    assert.bits(first.dv, unscaled.dv)
  end)
end)

describe("ranks that share a KV head", function()
  it("add their roots to the bits of one rank", function()
    local case = make_case { cu = { 0, 40 }, kv_heads = 1, leaves = 2, dtype = "bf16" }
    local inputs = make_inputs(case, 51)
    local whole = both(case, inputs)
    local sum = {}
    for rank = 0, 1 do
      local half = make_case { cu = { 0, 40 }, heads = 2, kv_heads = 1, dtype = "bf16",
        dk_scale = 1.0 }
      local part = { k = inputs.k, v = inputs.v, cu = inputs.cu }
      for _, name in ipairs { "q", "grad" } do
        local t = inputs[name]:to_table()
        for i = 1, #t do t[i] = { t[i][2 * rank + 1], t[i][2 * rank + 2] } end
        part[name] = core.tensor("bf16", { 40, 2, 8 }, t)
      end
      local roots = backward(half, part, forward(half, part), { dtype = "f32" })
      for _, name in ipairs { "dk", "dv" } do
        local values = roots[name]:flat()
        for i = 1, #values do
          values[i] = rank == 0 and values[i] or core.f32(sum[name][i] + values[i])
        end
        sum[name] = values
      end
    end
    for i = 1, #sum.dk do sum.dk[i] = core.f32(case.scale * sum.dk[i]) end
    assert.bits(whole.dk, core.tensor("bf16", { 40, 1, 8 }, sum.dk))
    assert.bits(whole.dv, core.tensor("bf16", { 40, 1, 8 }, sum.dv))
  end)
end)

describe("levels of the processor", function()
  local script = [[
    package.path = "tests/?.lua;tests/?/init.lua;" .. package.path
    local core, support = require "tidelock.core", require "support"
    for _, dtype in ipairs { "f32", "bf16" } do
      for _, width in ipairs { 5, 16, 64 } do
        local function make(heads, stream)
          return support.filled(dtype, { 75, heads, width }, stream)
        end
        local q, k, v, grad = make(4, 1), make(2, 2), make(2, 3), make(4, 4)
        local cu = core.tensor("i32", { 4 }, { 0, 50, 50, 75 })
        local o, lse = make(4, 5), core.tensor("f32", { 75, 4 })
        local numbers = { window = 0, kv_block = 16, split = 32, scale = 0.5 }
        core.call("attention", { q, k, v, cu }, { o, lse }, numbers)
        local dq, dk, dv = make(4, 6), make(2, 7), make(2, 8)
        numbers.head_leaves, numbers.dk_scale = 2, 0.5
        core.call("attention_grad", { q, k, v, o, lse, grad, cu }, { dq, dk, dv }, numbers)
        for _, t in ipairs { o, lse, dq, dk, dv } do print(t:hash()) end
      end
    end]]

  it("give the same bits", function()
    support.same_at_levels(script, 30)
  end)
end)

describe("empty segments", function()
  for _, width in ipairs { 64, 128, 256 } do
    it("change no bit, at width " .. width, function()
      local case = make_case { cu = { 0, 3, 10 }, width = width, value_width = width }
      local inputs = make_inputs(case, 61)
      local plain = both(case, inputs)
      case.cu = { 0, 0, 3, 3, 3, 10, 10 }
      inputs.cu = core.tensor("i32", { 7 }, case.cu)
      assert_same(plain, both(case, inputs))
    end)
  end

  it("may stand between segments of one row", function()
    local case = make_case { cu = { 0, 0, 1, 1, 2, 2 } }
    local inputs = make_inputs(case, 63)
    local values = {} -- with one key, o is v
    for row = 1, 2 do
      local v = inputs.v:to_table()[row]
      values[row] = { v[1], v[1], v[2], v[2] }
    end
    assert.bits(core.tensor("f32", { 2, 4, 8 }, values), forward(case, inputs).o)
  end)

  it("may be all there is", function()
    for _, cu in ipairs { { 0 }, { 0, 0 } } do
      local case = make_case { cu = cu, rows = 0 }
      local got = both(case, make_inputs(case, 65))
      assert.same({ 0, 4, 8 }, got.o:shape())
    end
  end)

  it("leave rows of no segment with o = 0, lse = -inf and no gradients", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local case = make_case { cu = { 0, 6 }, rows = 9, dtype = dtype }
      local got = both(case, make_inputs(case, 67))
      for name, t in pairs(cut(got, 6, 3)) do
        for _, bits in ipairs(t:bits()) do
          assert.equal(name == "lse" and 0xFF800000 or 0, bits)
        end
      end
    end
  end)
end)

describe("attention refuses", function()
  local function message(fields, change)
    local case = make_case(fields)
    local inputs = make_inputs(case, 71)
    if change then change(inputs, case) end
    local ok, text = pcall(both, case, inputs)
    return ok and "no error" or text
  end

  it("bad cu_seqlens, with the entry and its value", function()
    local function with(cu)
      return message { cu = cu, rows = 10 }
    end
    assert.matches("cu_seqlens: entry 0 is 1, must be 0", with { 1, 5, 9 })
    assert.matches("cu_seqlens: entry 2 is 4, less than 5", with { 0, 5, 4 })
    assert.matches("cu_seqlens: entry 2 is 12, but there are 10 rows", with { 0, 5, 12 })
    assert.matches("cu_seqlens is i64, wanted i32", message({ cu = { 0, 4 } }, function(inputs)
      inputs.cu = core.tensor("i64", { 2 }, { 0, 4 })
    end))
  end)

  it("numbers that do not fit", function()
    assert.matches("kv_block is 24; it is a multiple of 16", message { cu = { 0, 4 },
      kv_block = 24, split = 48, dtype = "bf16" })
    assert.matches("kv_block is 2048; .* up to 1024", message { cu = { 0, 4 }, kv_block = 2048 })
    assert.matches("split is 40; it is a multiple of kv_block 16", message { cu = { 0, 4 },
      split = 40 })
    assert.matches("window is %-1", message { cu = { 0, 4 }, window = -1 })
    assert.matches("scale is 0; it is a positive number", message { cu = { 0, 4 }, scale = 0.0 })
    assert.matches("head_leaves is 4; .* divides the 2 query heads", message { cu = { 0, 4 },
      leaves = 4 })
  end)

  it("shapes and dtypes that do not fit", function()
    assert.matches("3 KV heads do not divide 4 query heads", message { cu = { 0, 4 },
      kv_heads = 3 })
    assert.matches("head widths are 257 %(q, k%) and 8 %(v%); from 1 to 256", message {
      cu = { 0, 4 }, width = 257 })
    assert.matches("k must be %(4, 2, 8%)", message({ cu = { 0, 4 } }, function(inputs)
      inputs.k = core.tensor("f32", { 4, 2, 9 })
    end))
    assert.matches("v is bf16, wanted f32", message({ cu = { 0, 4 } }, function(inputs)
      inputs.v = core.tensor("bf16", { 4, 2, 8 })
    end))
  end)
end)
