--- linear and its gradients: the order of every sum, whatever is around it.
local core = require "tidelock.core"
local model = require "support.gemm_model"
local support = require "support"

local dtypes = { "f32", "bf16" }

local function linear(x, weights, options)
  options = options or {}
  local inputs, outputs = { x }, {}
  for i, weight in ipairs(weights) do
    inputs[1 + i] = weight
    outputs[i] = support.poison(options.dtype or "f32", { x:shape()[1], weight:shape()[1] })
  end
  for _, bias in ipairs(options.biases or {}) do inputs[#inputs + 1] = bias end
  core.call("linear", inputs, outputs, { parts = #weights, biases = options.biases and 1 or 0,
    leaves = options.leaves or 1 }, options.run)
  return table.unpack(outputs)
end

local function grad_input(grads, weights, options)
  local inputs, ranges = {}, options.ranges
  for i, grad in ipairs(grads) do inputs[i], inputs[#grads + i] = grad, weights[i] end
  if not ranges then
    ranges = {}
    for i, grad in ipairs(grads) do ranges[2 * i - 1], ranges[2 * i] = 0, grad:shape()[2] end
  end
  local out = support.poison(options.dtype or "f32",
    { grads[1]:shape()[1], weights[1]:shape()[2] })
  core.call("linear_grad_input", inputs, { out },
    { parts = #grads, leaves = options.leaves or 1, ranges = ranges }, options.run)
  return out, ranges
end

--- pieces: { first, samples, length [, stride [, leaves]] }. `out` is made when absent.
local function grad_weight(grad, x, pieces, mode, out, run)
  out = out or support.poison("f32", { grad:shape()[2], x:shape()[2] })
  core.call("linear_grad_weight", { grad, x }, { out }, { first = pieces[1], samples = pieces[2],
    length = pieces[3], stride = pieces[4] or pieces[3], mode = mode or 0,
    leaves = pieces[5] or 1 }, run)
  return out
end

--- A tensor of the same shape, element by element from f(row, column), counted from 1.
local function expected(like, f)
  local rows, columns = table.unpack(like:shape())
  local values = {}
  for t = 1, rows do
    for n = 1, columns do values[#values + 1] = f(t, n) end
  end
  return core.tensor(like:dtype(), { rows, columns }, values)
end

local function copy(tensor)
  return core.tensor_from_bits(tensor:dtype(), tensor:shape(), tensor:bits())
end

local function columns(tensor, first, count)
  local rows, values = tensor:to_table(), {}
  for _, row in ipairs(rows) do table.move(row, first, first + count - 1, #values + 1, values) end
  return core.tensor(tensor:dtype(), { #rows, count }, values)
end

describe("the specification, number by number:", function()
  for _, dtype in ipairs(dtypes) do
    for i, shape in ipairs { { 1, 1, 1, 1 }, { 3, 17, 33, 1 }, { 17, 3, 1, 2 }, { 33, 33, 40, 4 },
      { 2, 35, 70, 8 }, { 5, 9, 3, 4 }, { 15, 34, 300, 1 }, { 4, 7, 270, 2 } } do
      local rows, width, depth, leaves = table.unpack(shape)
      local name = ("%s, %d x %d, K = %d, leaves %d"):format(dtype, rows, width, depth, leaves)

      it("linear, " .. name, function()
        local x = support.filled(dtype, { rows, depth }, 10 * i)
        local weight = support.filled(dtype, { width, depth }, 10 * i + 1)
        local second = support.filled(dtype, { 3, depth }, 10 * i + 2)
        local bias = support.filled(i % 2 == 0 and "f32" or "bf16", { width }, 10 * i + 3)
        local other = support.filled("f32", { 3 }, 10 * i + 4)
        local added = bias:flat()
        local mx, mw, ms = model.matrix(x), model.matrix(weight), model.matrix(second)
        for _, out in ipairs(dtypes) do
          local y, z = linear(x, { weight, second }, { leaves = leaves, dtype = out })
          local function plain(t, n) return model.linear(mx, mw, t, n, leaves) end
          assert.bits(expected(y, plain), y)
          assert.bits(expected(z, function(t, n) return model.linear(mx, ms, t, n, leaves) end), z)
          y = linear(x, { weight, second },
            { leaves = leaves, dtype = out, biases = { bias, other } })
          assert.bits(expected(y, function(t, n) return core.f32(plain(t, n) + added[n]) end), y)
        end
      end)

      it("linear_grad_input, " .. name, function()
        -- parts of different widths, of which some features are left out
        local widths, ranges = { depth, 5, 19 }, { 0, depth, 1, 3, 2, 17 }
        local grads, weights, ms, mw = {}, {}, {}, {}
        for part, count in ipairs(widths) do
          grads[part] = support.filled(dtype, { rows, count }, 20 * i + part)
          weights[part] = support.filled(dtype, { count, width }, 20 * i + 10 + part)
          ms[part], mw[part] = model.matrix(grads[part]), model.matrix(weights[part])
        end
        for _, out in ipairs(dtypes) do
          local dx = grad_input(grads, weights, { leaves = leaves, ranges = ranges, dtype = out })
          assert.bits(expected(dx, function(t, k)
            return model.grad_input(ms, mw, ranges, t, k, leaves)
          end), dx)
        end
      end)

      it("linear_grad_weight, " .. name, function()
        local pieces = { { 1, 2, depth // 4, depth // 4 + 3 }, { 0, 1, depth },
          { 0, 5, depth // 5 }, { 0, 0, 3 }, { depth, 3, 0 } }
        local grad = support.filled(dtype, { depth + 8, rows }, 30 * i)
        local x = support.filled(dtype, { depth + 8, width }, 30 * i + 1)
        local mg, mx = model.matrix(grad), model.matrix(x)
        local stored = support.filled("f32", { rows, width }, 30 * i + 2)
        local before = model.matrix(stored)
        for _, piece in ipairs(pieces) do
          local lists = {}
          for s = 1, piece[2] do
            lists[s] = {}
            for r = 1, piece[3] do
              lists[s][r] = piece[1] + (s - 1) * (piece[4] or piece[3]) + r
            end
          end
          local function sum(n, k, start) return model.grad_weight(mg, mx, n, k, lists, start) end
          local out = grad_weight(grad, x, piece, 0)
          assert.bits(expected(out, function(n, k) return sum(n, k, 0.0) end), out)
          out = grad_weight(grad, x, piece, 1, copy(stored))
          assert.bits(expected(out, function(n, k) return sum(n, k, before[n][k]) end), out)
          out = grad_weight(grad, x, piece, 2, copy(stored))
          assert.bits(expected(out, function(n, k)
            return core.f32(before[n][k] + sum(n, k, 0.0))
          end), out)
        end
      end)
    end
  end
end)

describe("an f64 sum", function()
  -- A chain of K roundings of values below 1 errs by less than K^2 / 2 units of 2^-24; steps of the
  -- tensor core cut, which doubles it.
  for _, dtype in ipairs(dtypes) do
    it("is close to all three, " .. dtype, function()
      local rows, width, depth = 19, 37, 150
      local x = support.filled(dtype, { rows, depth }, 1)
      local weight = support.filled(dtype, { width, depth }, 2)
      local grad = support.filled(dtype, { rows, width }, 3)
      local mx, mw, mg = x:to_table(), weight:to_table(), grad:to_table()
      local function near(result, count, f)
        for t, row in ipairs(result:to_table()) do
          for n, value in ipairs(row) do
            local exact = 0
            for i = 1, count do exact = exact + f(t, n, i) end
            assert.near(exact, value, count * count * 2 ^ -24)
          end
        end
      end
      for _, leaves in ipairs { 1, 4 } do
        near(linear(x, { weight }, { leaves = leaves }), depth,
          function(t, n, k) return mx[t][k] * mw[n][k] end)
        near(grad_input({ grad }, { weight }, { leaves = leaves }), width,
          function(t, k, n) return mg[t][n] * mw[n][k] end)
      end
      near(grad_weight(grad, x, { 0, 1, rows }), rows,
        function(n, k, t) return mg[t][n] * mx[t][k] end)
    end)
  end
end)

describe("order probes:", function()
  local function sum(dtype, values, leaves, out)
    local ones = {}
    for k = 1, #values do ones[k] = 1 end
    local x = core.tensor(dtype, { 1, #values }, values)
    local y = linear(x, { core.tensor(dtype, { 1, #values }, ones) },
      { leaves = leaves, dtype = out })
    return y:flat()[1]
  end

  it("T16 tells leaves apart", function()
    local values = {}
    for k = 0, 255 do values[k + 1] = k % 16 == 0 and 1 or 0 end
    values[2 * 16 + 1], values[15 * 16 + 1] = 2 ^ 24, -2 ^ 24
    for dtype, results in pairs { f32 = { 4, 11, 15, 13 }, bf16 = { 2, 9, 13, 13 } } do
      for i, leaves in ipairs { 1, 2, 4, 8 } do
        assert.equal(results[i], sum(dtype, values, leaves), dtype .. ", leaves " .. leaves)
      end
    end
  end)

  it("P4, Q4, P8 are trees with a leaf for each value, and chains with one leaf", function()
    local p8 = { 2 ^ 24, 1, 1, 1, -2 ^ 24, 1, 1, 1 }
    assert.equal(0, sum("f32", { 1e8, 1, -1e8, 1 }, 4))
    assert.equal(1, sum("f32", { 1e8, 1, -1e8, 1 }, 1))
    assert.equal(1, sum("f32", { 2 ^ 24, 1, 1, -2 ^ 24 }, 4))
    assert.equal(0, sum("f32", { 2 ^ 24, 1, 1, -2 ^ 24 }, 1))
    assert.equal(5, sum("f32", p8, 8))
    assert.equal(3, sum("f32", p8, 1))
  end)

  it("H4, H8 stay in f32 until the end", function()
    local small = 2 ^ -9
    for _, dtype in ipairs(dtypes) do
      assert.equal(1.0078125, sum(dtype, { 1, small, small, small }, 4, "bf16"))
      assert.equal(1.015625,
        sum(dtype, { 1, small, small, small, small, small, small, small }, 8, "bf16"))
    end
  end)

  it("leaves change bits on ordinary numbers", function()
    for _, dtype in ipairs(dtypes) do
      local x = support.filled(dtype, { 8, 640 }, 1)
      local weight = support.filled(dtype, { 16, 640 }, 2)
      local seen, first = 0, linear(x, { weight })
      for _, leaves in ipairs { 2, 4, 8, 16, 1024 } do
        local y = linear(x, { weight }, { leaves = leaves })
        if not core.equal(first, y) then seen = seen + 1 end
      end
      assert.equal(5, seen)
    end
  end)
end)

describe("a row", function()
  for _, dtype in ipairs(dtypes) do
    for _, leaves in ipairs { 1, 4 } do
      it(("has the bits it has alone, %s, leaves %d"):format(dtype, leaves), function()
        local x = support.filled(dtype, { 65, 300 }, 1)
        local weight = support.filled(dtype, { 40, 300 }, 2)
        local grad = support.filled(dtype, { 65, 40 }, 3)
        local options = { leaves = leaves }
        local y, dx = linear(x, { weight }, options), grad_input({ grad }, { weight }, options)
        for rows = 1, 64 do
          for _, first in ipairs { 1, 66 - rows } do
            assert.bits(copy(y:narrow(1, first, rows)),
              linear(copy(x:narrow(1, first, rows)), { weight }, options))
            assert.bits(copy(dx:narrow(1, first, rows)),
              grad_input({ copy(grad:narrow(1, first, rows)) }, { weight }, options))
          end
        end
      end)
    end

    it("does not see a NaN in another one, " .. dtype, function()
      local x = support.filled(dtype, { 20, 50 }, 1)
      local weight = support.filled(dtype, { 20, 50 }, 2)
      local clean = linear(x, { weight })
      x:narrow(1, 7, 1):fill(0 / 0)
      weight:narrow(1, 3, 1):fill(1 / 0)
      local before, after = clean:bits(), linear(x, { weight }):bits()
      for i = 1, #before do
        local t, n = (i - 1) // 20 + 1, (i - 1) % 20 + 1
        assert.equal(t ~= 7 and n ~= 3, before[i] == after[i])
      end
    end)
  end
end)

describe("a large product", function()
  for _, dtype in ipairs(dtypes) do
    it("has the bits of small ones, " .. dtype, function()
      local rows, width, depth = 100, 1030, 530
      local x = support.filled(dtype, { rows, depth }, 1)
      local weight = support.filled(dtype, { width, depth }, 2)
      for _, leaves in ipairs { 1, 2 } do
        local y = linear(x, { weight }, { leaves = leaves, run = { threads = 3 } })
        for _, first in ipairs { 1, 501, 1024 } do -- columns alone
          local part = linear(x, { copy(weight:narrow(1, first, 7)) }, { leaves = leaves })
          assert.bits(columns(y, first, 7), part)
        end
        for _, t in ipairs { 1, 14, 50, 100 } do
          assert.bits(copy(y:narrow(1, t, 1)), linear(copy(x:narrow(1, t, 1)), { weight },
            { leaves = leaves }))
        end
        local mx, mw = model.matrix(x), model.matrix(weight)
        for _, place in ipairs { { 1, 1 }, { 99, 1029 }, { 51, 512 } } do
          local t, n = place[1], place[2]
          assert.equal(model.linear(mx, mw, t, n, leaves), y:to_table()[t][n])
        end
      end
    end)
  end
end)

describe("a chain of pieces", function()
  for _, dtype in ipairs(dtypes) do
    it("may be split between calls at any piece, " .. dtype, function()
      local grad = support.filled(dtype, { 210, 33 }, 1)
      local x = support.filled(dtype, { 210, 40 }, 2)
      local whole = grad_weight(grad, x, { 0, 7, 30 })
      for pieces = 1, 6 do
        local out = grad_weight(grad, x, { 0, pieces, 30 }, 0)
        grad_weight(grad, x, { 30 * pieces, 7 - pieces, 30 }, 1, out)
        assert.bits(whole, out)
      end
    end)
  end

  for _, dtype in ipairs(dtypes) do
    it("in leaves is a tree of chains, in one call as in several, " .. dtype, function()
      local grad = support.filled(dtype, { 300, 33 }, 1)
      local x = support.filled(dtype, { 300, 40 }, 2)
      for _, leaves in ipairs { 2, 4, 8 } do
        for _, length in ipairs { 9, 32 } do
          local sums = {}
          for i = 1, leaves do
            sums[i] = grad_weight(grad, x, { 3 + (i - 1) * length, 1, length })
          end
          while #sums > 1 do
            local halves = {}
            for i = 1, #sums, 2 do
              local sum = copy(sums[i])
              core.call("binary", { sum, sums[i + 1] }, { sum }, { kind = 0, broadcast = 0 })
              halves[#halves + 1] = sum
            end
            sums = halves
          end
          assert.bits(sums[1], grad_weight(grad, x, { 3, leaves, length, length, leaves }))
          local stored = support.filled("f32", { 33, 40 }, 3)
          local added = grad_weight(grad, x, { 3, leaves, length, length, leaves }, 2, copy(stored))
          core.call("binary", { stored, sums[1] }, { stored }, { kind = 0, broadcast = 0 })
          assert.bits(stored, added)
        end
      end
    end)
  end

  it("begins a new step of the tensor core with each piece", function()
    local values = {}
    for t = 1, 16 do values[t] = 1 end
    values[1], values[16] = 2 ^ 25, -2 ^ 25
    local grad, ones = core.tensor("bf16", { 16, 1 }, values), core.tensor("bf16", { 16, 1 })
    ones:fill(1)
    assert.equal(14, grad_weight(grad, ones, { 0, 1, 16 }):flat()[1])
    assert.equal(0, grad_weight(grad, ones, { 0, 16, 1 }):flat()[1])
    assert.equal(11, grad_weight(grad, ones, { 0, 2, 8 }):flat()[1]) -- 2^25 + 7 is cut to 2^25 + 4
  end)
end)

describe("nothing that is free changes a bit:", function()
  for _, dtype in ipairs(dtypes) do
    it("threads and what memory held before, " .. dtype, function()
      local x = support.filled(dtype, { 70, 90 }, 1)
      local weight = support.filled(dtype, { 50, 90 }, 2)
      local narrow = support.filled(dtype, { 3, 90 }, 3)
      local long = support.filled(dtype, { 70, 320 }, 4)
      local wide = support.filled(dtype, { 50, 320 }, 5)
      local first = {}
      for _, threads in ipairs { 1, 2, 3, 8 } do
        for _, scratch in ipairs { 0, 255 } do
          local run = { threads = threads, scratch = scratch }
          local y, z = linear(x, { weight, narrow }, { leaves = 4, dtype = "bf16", run = run })
          local grads = { support.filled(dtype, { 70, 50 }, 6),
            support.filled(dtype, { 70, 3 }, 7) }
          local results = { y, z, (linear(long, { wide }, { leaves = 2, run = run })),
            (grad_input(grads, { weight, narrow }, { leaves = 2, run = run })),
            grad_weight(x, long, { 2, 3, 20, 22 }, 0, nil, run) }
          for i, result in ipairs(results) do
            first[i] = first[i] or result
            assert.bits(first[i], result)
          end
        end
      end
    end)
  end

  local script = [[
    package.path = "tests/?.lua;tests/?/init.lua;" .. package.path
    local core, support = require "tidelock.core", require "support"
    for _, dtype in ipairs { "f32", "bf16" } do
      for _, shape in ipairs { { 1, 1, 1 }, { 31, 33, 65 }, { 130, 70, 300 }, { 7, 600, 40 } } do
        local rows, width, depth = table.unpack(shape)
        local x = support.filled(dtype, { rows, depth }, 1)
        local w = support.filled(dtype, { width, depth }, 2)
        local g = support.filled(dtype, { rows, width }, 3)
        for _, leaves in ipairs { 1, 4 } do
          local y = core.tensor("f32", { rows, width })
          local dx = core.tensor("bf16", { rows, depth })
          core.call("linear", { x, w }, { y }, { parts = 1, biases = 0, leaves = leaves })
          core.call("linear_grad_input", { g, w }, { dx },
            { parts = 1, leaves = leaves, ranges = { 0, width } })
          print(y:hash(), dx:hash())
        end
        local dw = support.filled("f32", { width, depth }, 4)
        core.call("linear_grad_weight", { g, x }, { dw },
          { first = 0, samples = 2, length = rows // 2, stride = rows // 2, mode = 1, leaves = 1 })
        print(dw:hash())
      end
    end]]

  it("the level of the processor", function()
    support.same_at_levels(script, 24)
  end)
end)

describe("an empty product", function()
  for _, dtype in ipairs(dtypes) do
    it("writes +0, or the bias, " .. dtype, function()
      local grad = support.filled(dtype, { 4, 6 }, 1)
      local weight = support.filled(dtype, { 6, 5 }, 2)
      local zero = core.tensor("f32", { 4, 5 })
      assert.bits(zero, (grad_input({ grad }, { weight }, { ranges = { 2, 0 }, leaves = 2 })))
      assert.bits(core.tensor("f32", { 6, 5 }),
        grad_weight(grad, weight:narrow(1, 1, 4), { 0, 0, 9 }))
      -- leaves of one feature: runs that are empty
      local x = core.tensor(dtype, { 2, 1 }, { -0.0, 3 })
      local y = linear(x, { core.tensor(dtype, { 1, 1 }, { 2 }) }, { leaves = 8 })
      assert.same({ 0, 0x40C00000 }, y:bits())
    end)
  end
end)

describe("a wrong call", function()
  local function message(...) return select(2, pcall(core.call, ...)) end
  local x, weight = core.tensor("f32", { 4, 8 }), core.tensor("f32", { 6, 8 })
  local y, half = core.tensor("f32", { 4, 6 }), core.tensor("bf16", { 4, 8 })
  local one = { parts = 1, biases = 0, leaves = 1 }
  local pieces = { first = 0, samples = 1, length = 4, stride = 4, mode = 0, leaves = 1 }

  local function with(numbers, fields)
    local result = {}
    for name, value in pairs(numbers) do result[name] = value end
    for name, value in pairs(fields) do result[name] = value end
    return result
  end

  it("says what does not fit", function()
    assert.matches("linear: weight is f32, but the other factor is bf16",
      message("linear", { half, weight }, { y }, one))
    assert.matches("linear: y is 4 x 8; expected 4 x 6",
      message("linear", { x, weight }, { x }, one))
    assert.matches("linear: leaves 3; expected a power of two from 1 to 65536",
      message("linear", { x, weight }, { y }, with(one, { leaves = 3 })))
    assert.matches("linear_grad_input: part 0: features 5 .. 6 of 6",
      message("linear_grad_input", { y, weight }, { x },
        { parts = 1, leaves = 1, ranges = { 5, 2 } }))
    assert.matches("linear_grad_weight: dweight is bf16; expected f32",
      message("linear_grad_weight", { y, x }, { core.tensor("bf16", { 6, 8 }) }, pieces))
    assert.matches("linear_grad_weight: rows from 1, 1 pieces of 4 every 4, of 4 rows",
      message("linear_grad_weight", { y, x }, { weight }, with(pieces, { first = 1 })))
    assert.matches("1 pieces, mode 0, in 2 leaves; leaves have equally many pieces",
      message("linear_grad_weight", { y, x }, { weight }, with(pieces, { leaves = 2 })))
    assert.matches("2 pieces, mode 1, in 2 leaves; .* a chain that resumes is one",
      message("linear_grad_weight", { y, x }, { weight },
        with(pieces, { samples = 2, length = 2, stride = 2, mode = 1, leaves = 2 })))
    assert.matches("linear_grad_weight: mode 3; expected 0, 1 or 2",
      message("linear_grad_weight", { y, x }, { weight }, with(pieces, { mode = 3 })))
  end)
end)
