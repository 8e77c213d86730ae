--- promises.lua - what every operator outside gemm and attention keeps, tested from one table each.
---
---     case = {
---       op = "rms_norm", name = "width 7", rows = 5, attrs = { eps = 1e-5 },
---       inputs  = function(dtype, rows) return { tensor or false, .. } end,
---       outputs = function(dtype, rows) return { { dtype, shape [, start] }, .. } end,
---       by_row  = { true, false },     -- inputs with an entry for each row; nil: no row promise
---       oracle  = function(x, attrs, rows) return { flat table, .. } end,  -- f64; x: flat inputs
---       error   = 2e-6, floor = 1,     -- allowed: error * max(|expected|, floor), and bf16's own
---       options = { step = .. },       -- of core.call
---       part    = { first = 4, count = 6, attrs = { .. } },  -- rows that stand alone
---       smooth  = false,               -- the oracle rounds: it has no slopes
---     }
---
--- An output with a `start` (a function that makes a tensor) is read and written in place; all
--- others hold NaN before the call.
local assert = require "luassert"
local core = require "tidelock.core"
local support = require "support"

local promises = {}

function promises.count(shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return count
end

--- The fill F(stream), scaled and moved, rounded to the dtype.
function promises.spread(dtype, shape, stream, factor, offset)
  local values = {}
  for i = 1, promises.count(shape) do
    values[i] = support.fill_value(stream, i - 1) * (factor or 1) + (offset or 0)
  end
  return core.tensor(dtype, shape, values)
end

local function fresh(spec, clear)
  if spec[3] then return spec[3]() end
  return clear and core.tensor(spec[1], spec[2]) or support.poison(spec[1], spec[2])
end

--- Runs the case on `inputs` (its own unless given) and returns the outputs.
function promises.run(case, dtype, more)
  more = more or {}
  local rows = more.rows or case.rows
  local inputs = more.inputs or case.inputs(dtype, rows)
  local outputs = {}
  for i, spec in ipairs(case.outputs(dtype, rows)) do outputs[i] = fresh(spec, more.clear) end
  local options = { threads = more.threads or 1 }
  for key, value in pairs(case.options or {}) do options[key] = value end
  core.call(case.op, inputs, outputs, case.attrs or {}, options)
  return outputs, inputs
end

local function flats(tensors)
  local list = {}
  for i, t in ipairs(tensors) do list[i] = t and t:flat() end
  return list
end

--- The first element that is too far from what was expected, as text; nil when all are near.
function promises.far(case, expected, actual, dtype)
  local floor, allowed = case.floor or 1, case.error or 2e-6
  local rounding = dtype == "bf16" and 2 ^ -8 or 0
  if #expected ~= #actual then return ("%d values, expected %d"):format(#actual, #expected) end
  for i, want in ipairs(expected) do
    local got = actual[i]
    local limit = allowed * math.max(math.abs(want), floor) + rounding * math.abs(want)
    local close = math.abs(got - want) <= limit -- false for NaN
    if got ~= want and not close then
      return ("element %d is %.9g, expected %.9g"):format(i, got, want)
    end
  end
  return nil
end

local function near(case, dtype)
  local outputs, inputs = promises.run(case, dtype)
  local expected = case.oracle(flats(inputs), case.attrs or {}, case.rows)
  for i, output in ipairs(outputs) do
    assert.is_nil(promises.far(case, expected[i], output:flat(), output:dtype()))
  end
end

local function same(expected, actual)
  for i, output in ipairs(expected) do assert.bits(output, actual[i]) end
end

--- Rows first .. first + count - 1 alone give the bits that they have beside the others.
local function alone(case, dtype, first, count)
  local whole, inputs = promises.run(case, dtype)
  local part = {}
  for i, t in ipairs(inputs) do
    part[i] = case.by_row[i] and t:narrow(1, first, count) or t
  end
  local outputs = promises.run(case, dtype, { inputs = part, rows = count })
  for i, output in ipairs(whole) do assert.bits(output:narrow(1, first, count), outputs[i]) end
end

local function describe_case(describe, it, case, dtype)
  describe(("%s, %s, %s"):format(case.op, case.name, dtype), function()
    it("is close to the f64 oracle", function() near(case, dtype) end)

    it("writes every element, whatever was there", function()
      same(promises.run(case, dtype), promises.run(case, dtype, { clear = true }))
    end)

    it("gives the same bits on 1, 2 and 3 threads", function()
      local one = promises.run(case, dtype)
      same(one, promises.run(case, dtype, { threads = 2 }))
      same(one, promises.run(case, dtype, { threads = 3 }))
    end)

    if case.by_row then
      it("gives a row the same bits in any batch", function()
        alone(case, dtype, 1, 1)
        alone(case, dtype, case.rows, 1)
        alone(case, dtype, 2, case.rows - 2)
      end)
    end
  end)
end

--- Specs of all cases, in f32 and bf16 (a case with `dtypes` names its own). `describe` and `it`
--- are busted's, which only spec files see.
function promises.describe(describe, it, cases)
  for _, case in ipairs(cases) do
    for _, dtype in ipairs(case.dtypes or { "f32", "bf16" }) do
      describe_case(describe, it, case, dtype)
    end
  end
end

--- Hashes of all outputs of a case, for comparisons between processes.
function promises.hash(case, dtype)
  local list = {}
  for i, output in ipairs((promises.run(case, dtype))) do list[i] = output:hash() end
  return table.concat(list, " ")
end

--- Central differences of sum(dy * forward(x)) in f64, at element `at` of x.
function promises.slope(forward, x, dy, at)
  local step, kept = 1e-5, x[at]
  local function loss(value)
    x[at] = value
    local sum = 0.0
    for i, y in ipairs(forward(x)) do sum = sum + y * dy[i] end
    return sum
  end
  local slope = (loss(kept + step) - loss(kept - step)) / (2 * step)
  x[at] = kept
  return slope
end

--- The oracle of a gradient agrees with central differences of the oracle of its operator.
function promises.check_slopes(forward, x, dy, gradient)
  for at = 1, #x do
    local slope = promises.slope(forward, x, dy, at)
    assert.near(slope, gradient[at], 1e-6 * math.max(1, math.abs(slope)))
  end
end

return promises
