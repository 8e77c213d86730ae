--- operators.lua - the tests that an operator has because it is a row of kernels/ops.def.
---
---     row       inputs  outputs  ints  floats  gradient  traits
---      |         |       |                      |        '-- ROWWISE: alone, and beside NaN
---      |         '-------'-- refused             '-- slopes of the forward oracle
---      '-- a case with an oracle: close, poison, threads; `mode` and `columns` add theirs
---
--- Cases are those of tests/support/*_cases.lua, in the form of promises.lua; the two smallest of a
--- row are used here, all of them in the specs of the families. A row without a case fails by name.
--- What follows from names needs no hint: dNAME is the gradient of NAME, `cu` cuts segments,
--- `columns` ends the true columns, `mode` resumes.
local assert = require "luassert"
local core = require "tidelock.core"
local promises = require "support.promises"
local support = require "support"
local spread = promises.spread

local operators = {}

--- Numbers of a gradient row that are not those of the forward row under the same name.
local gradient_numbers = {
  rope = function(a) return { inverse = 1 - a.inverse } end,
  linear = function(_, named) return { ranges = { 0, named.weight:shape()[1] } } end,
  attention = function(a) return { head_leaves = 1, dk_scale = a.scale } end,
  embedding = function(a, _, rows)
    return { first_id = a.first, first = 0, samples = rows, length = 1, mode = 0 }
  end,
  cross_entropy = function(a) return { columns = a.vocab, first = 0 } end,
  logsumexp = function() return { columns = 12 } end,
}

--- Rows whose gradient reaches past their own inputs, through rows before them: a case of the whole
--- way, and the values on it by name.
local ways = {}

local function logits_way(name, attrs, oracle)
  ways[name] = {
    op = name, rows = 3, attrs = attrs,
    names = { "z", "targets" },
    inputs = function(dtype, rows)
      return { spread(dtype, { rows, 16 }, 1, 3), core.tensor("i32", { rows }, { 4, -1, 11 }) }
    end,
    values = function(named, rows)
      for _, value in ipairs { "m", "s", "zt", "zsum" } do
        named[value] = core.tensor("f32", { rows })
      end
      core.call("row_max", { named.z }, { named.m }, { columns = 12 })
      core.call("row_sum_exp", { named.z, named.m, named.targets },
        { named.s, named.zt, named.zsum }, { columns = 12, first = 0, leaves = 1 })
    end,
    oracle = oracle,
  }
end

local loss = require "support.loss_cases"
logits_way("cross_entropy", { vocab = 12, smoothing = 0.125, z = 0.0625 }, function(x, a, rows)
  return { loss.direct(x[1], x[2], rows, 12, a.smoothing, a.z) }
end)
logits_way("logsumexp", {}, function(x, _, rows)
  local m, lse = loss.sums(x[1], { -1, -1, -1 }, rows, 12, 0), {}
  for r = 1, rows do lse[r] = m[1][r] + math.log(m[2][r]) end
  return { lse }
end)

--- Operands that may have any number of rows: what else the call has to fit then is tested where
--- the operator is.
local any_size = {
  fill = "y", init = "y", rope_table = "table", embedding = "table", embedding_grad = "dtable",
  rope = "table cu", rope_rows = "table", cache_write = "table keys",
  attention_cached = "table", position_ids = "cu",
  attention = "cu", attention_grad = "cu", fold = "x",
  grad_norm = "slots", square_sum = "g slots",
  square_sum_rows = "slots", sum_tokens = "dy x rstd mean",
  linear_grad_weight = "x dy", expert_load = "counts", take_rows = "starts rows",
  follow = "made", pick_rows = "x",
  expert_swiglu = "offsets", expert_swiglu_grad = "offsets", expert_scale_grad = "offsets",
}

local function words(text)
  local list = {}
  for word in text:gmatch "%S+" do list[#list + 1] = (word:gsub("[*?!.]", "")) end
  return list
end

--- Whether `name` is a word of the text.
local function has(text, name) return (" " .. text .. " "):find(" " .. name .. " ", 1, true) end

--- By operator, the smallest first.
function operators.cases()
  local by_op = {}
  for _, path in ipairs(support.files("tests/support", "_cases%.lua$")) do
    for _, case in ipairs(require("support." .. path:match "([^/]+)%.lua$").cases) do
      local size = 0
      for _, spec in ipairs(case.outputs((case.dtypes or { "f32" })[1], case.rows)) do
        size = size + promises.count(spec[2])
      end
      by_op[case.op] = by_op[case.op] or {}
      table.insert(by_op[case.op], { case = case, size = size, place = #by_op[case.op] })
    end
  end
  for op, list in pairs(by_op) do
    table.sort(list, function(a, b)
      if a.size ~= b.size then return a.size < b.size end
      return a.place < b.place
    end)
    for i, entry in ipairs(list) do list[i] = entry.case end
    by_op[op] = list
  end
  return by_op
end

local function dtypes_of(case) return case.dtypes or { "f32", "bf16" } end

--- A copy with NaN in every element that `hit(index from 0)` picks.
local function spoiled(t, hit)
  local nan = ({ f32 = 0x7FC00000, bf16 = 0x7FC0 })[t:dtype()]
  if not nan then return t end
  local bits = t:bits()
  for i in ipairs(bits) do
    if hit(i - 1) then bits[i] = nan end
  end
  return core.tensor_from_bits(t:dtype(), t:shape(), bits)
end

local function is_by_row(case, t, i)
  if case.by_row then return case.by_row[i] end
  return t and t:shape()[1] == case.rows and t:dtype() ~= "i32"
end

--- The inputs with NaN in all rows but first .. first + count - 1.
local function lonely(case, inputs, first, count)
  local list = {}
  for i, t in ipairs(inputs) do
    list[i] = is_by_row(case, t, i) and spoiled(t, function(at)
      local row = at // (promises.count(t:shape()) // case.rows) + 1
      return row < first or row >= first + count
    end) or t
  end
  return list
end

local function cut(case, inputs, first, count)
  local list = {}
  for i, t in ipairs(inputs) do
    list[i] = is_by_row(case, t, i) and t:narrow(1, first, count) or t
  end
  return list
end

local function with(attrs, more)
  local merged = {}
  for key, value in pairs(attrs or {}) do merged[key] = value end
  for key, value in pairs(more or {}) do merged[key] = value end
  return merged
end

local function run(case, dtype, more)
  local changed = setmetatable({ attrs = with(case.attrs, more.attrs) }, { __index = case })
  return promises.run(changed, dtype, more)
end

--- The parts of a batch that stand alone: { first, count, attrs, cu }, rows from 1.
local function parts_of(row, case, inputs)
  if case.part then return { case.part } end
  local names, list = words(row.inputs), {}
  for i, name in ipairs(names) do
    if name == "cu" then
      local cu = inputs[i]:flat()
      for s = 2, #cu do
        local count = cu[s] - cu[s - 1]
        if count > 0 and count < case.rows then
          list[#list + 1] = { first = cu[s - 1] + 1, count = count, cu = i }
        end
      end
      return list
    end
  end
  assert(case.by_row, row.name .. " is ROWWISE: its cases in tests/support say which inputs have an"
    .. " entry for each row (by_row), or which part stands alone (part)")
  return { { first = 1, count = 1 }, { first = 2, count = case.rows - 2 },
    { first = case.rows, count = 1 } }
end

local function same_rows(whole, part, first, count)
  for i, output in ipairs(whole) do assert.bits(output:narrow(1, first, count), part[i]) end
end

local function check_alone(row, case, dtype)
  local whole, inputs = promises.run(case, dtype)
  for _, part in ipairs(parts_of(row, case, inputs)) do
    local narrow = cut(case, inputs, part.first, part.count)
    if part.cu then narrow[part.cu] = core.tensor("i32", { 2 }, { 0, part.count }) end
    local got = run(case, dtype, { inputs = narrow, rows = part.count, attrs = part.attrs })
    same_rows(whole, got, part.first, part.count)
    if case.finite then goto continue end -- NaN is refused
    local beside = run(case, dtype, { inputs = lonely(case, inputs, part.first, part.count) })
    for i, output in ipairs(whole) do
      assert.bits(output:narrow(1, part.first, part.count),
        beside[i]:narrow(1, part.first, part.count))
    end
    ::continue::
  end
end

local function check_padding(case, dtype)
  local whole, inputs = promises.run(case, dtype)
  local width = promises.count(inputs[1]:shape()) // case.rows
  inputs[1] = spoiled(inputs[1], function(at) return at % width >= case.attrs.columns end)
  for i, output in ipairs((run(case, dtype, { inputs = inputs }))) do
    assert.bits(whole[i], output)
  end
end

local function check_no_rows(case, dtype)
  local _, inputs = promises.run(case, dtype)
  local outputs = run(case, dtype, { inputs = cut(case, inputs, 1, 0), rows = 0 })
  for _, output in ipairs(outputs) do assert.same({}, output:flat()) end
end

--- Half of the samples from the start, the rest resumed (mode 1), against all at once (mode 0).
local function check_resume(case, dtype)
  local a = case.attrs
  local stride = a.stride or a.length or 1
  local function call(outputs, inputs, more)
    core.call(case.op, inputs, outputs, with(a, more), { threads = 1 })
  end
  local inputs = case.inputs(dtype, case.rows)
  local spec = case.outputs(dtype, case.rows)[1]
  local once, twice = support.poison(spec[1], spec[2]), support.poison(spec[1], spec[2])
  call({ once }, inputs, { mode = 0 })
  call({ twice }, inputs, { mode = 0, samples = 1 })
  call({ twice }, inputs, { mode = 1, samples = a.samples - 1, first = a.first + stride })
  assert.bits(once, twice)
end

-- Gradients ---------------------------------------------------------------------------------------

local function numbers_of(row, forward_numbers, hint)
  local list = {}
  for _, name in ipairs(words(row.ints .. " " .. row.floats)) do
    list[name] = forward_numbers[name]
  end
  return with(list, hint)
end

local function flats(tensors)
  local list = {}
  for i, t in ipairs(tensors) do list[i] = t and t:flat() end
  return list
end

--- Up to a dozen elements of `count`, spread out.
local function picks(count)
  local list = {}
  for i = 1, math.min(count, 12) do list[i] = count <= 12 and i or (i * 7919) % count + 1 end
  return list
end

--- The kernel's gradient against central differences of sum(d * oracle) along input `at`.
local function compare(way, x, at, gradient, d, what)
  local values, step = x[at], 1e-4
  local function total()
    local sum, outputs = 0.0, way.oracle(x, way.attrs or {}, way.rows)
    for o, slopes in pairs(d) do
      for i, slope in ipairs(slopes) do sum = sum + slope * outputs[o][i] end
    end
    return sum
  end
  for _, i in ipairs(picks(#values)) do
    local kept = values[i]
    values[i] = kept + step
    local above = total()
    values[i] = kept - step
    local slope = (above - total()) / (2 * step)
    values[i] = kept
    assert.near(slope, gradient[i], 1e-4 * math.max(1, math.abs(slope)), what .. " " .. i)
  end
end

local function smooth_case(list)
  for _, case in ipairs(list) do
    if case.smooth ~= false and dtypes_of(case)[1] == "f32" then return case end
  end
end

--- Inputs, outputs and what lies between them by name; the names of inputs and outputs.
local function walk(row, way)
  local named, inputs = {}, way.inputs("f32", way.rows)
  local ins, outs = way.names or words(row.inputs), words(row.outputs)
  for i, name in ipairs(ins) do named[name] = inputs[i] end
  if way.values then
    way.values(named, way.rows)
  else
    for i, output in ipairs((promises.run(way, "f32", { inputs = inputs }))) do
      named[outs[i]] = output
    end
  end
  return named, inputs, ins, outs
end

local function check_gradient(row, grad, list)
  local way = ways[row.name] or assert(smooth_case(list), "no case in f32")
  local named, inputs, ins, outs = walk(row, way)
  local own, wanted, d = grad.name == row.name, {}, {}
  for o, name in ipairs(outs) do
    if own or has(table.concat(words(grad.inputs), " "), "d" .. name) then
      local shape = named[name] and named[name]:shape() or { way.rows }
      named["d" .. name] = spread("f32", shape, 40 + o)
      d[o] = named["d" .. name]:flat()
    end
  end
  if own then -- a linear operator: it turns dy into dx as it turns x into y
    named[ins[1]] = named["d" .. outs[1]]
  end
  for i, name in ipairs(words(grad.inputs)) do
    wanted[i] = assert(named[name], ("%s asks for %s, which is no operand of %s: describe the way "
      .. "in tests/support/operators.lua"):format(grad.name, name, row.name))
  end
  local at, results = {}, {}
  for i, name in ipairs(words(grad.outputs)) do
    local target = own and ins[1] or name:match "^d(.+)$"
    for k, input in ipairs(ins) do
      if input == target then at[i] = k end
    end
    assert(at[i], ("%s makes %s, and %s has no such input"):format(grad.name, name, row.name))
    results[i] = support.poison("f32", inputs[at[i]]:shape())
  end
  local hint = gradient_numbers[row.name]
  local numbers = numbers_of(grad, way.attrs or {}, hint and hint(way.attrs or {}, named, way.rows))
  core.call(grad.name, wanted, results, numbers, way.options)
  for i, result in ipairs(results) do
    compare(way, flats(inputs), at[i], result:flat(), d, words(grad.outputs)[i])
  end
end

-- Refusals ----------------------------------------------------------------------------------------

local function wrong_dtype(t)
  return core.tensor(t:dtype() == "i64" and "f32" or "i64", t:shape())
end

local function wrong_size(t)
  local shape = t:shape()
  shape[1] = shape[1] + 1
  return core.tensor(t:dtype(), shape)
end

--- Operands of a call: { inputs, outputs }.
local function operands_of(case, dtype)
  local operands = { case.inputs(dtype, case.rows), {} }
  for i, spec in ipairs(case.outputs(dtype, case.rows)) do
    operands[2][i] = spec[3] and spec[3]() or support.poison(spec[1], spec[2])
  end
  return operands
end

local function hashes(tensors)
  local list = {}
  for i, t in ipairs(tensors) do list[i] = t:hash() end
  return table.concat(list, " ")
end

--- Whether the call is accepted. A refusal names the operator and writes nothing.
local function is_accepted(row, case, operands)
  local before = hashes(operands[2])
  local good, text = pcall(core.call, row.name, operands[1], operands[2], case.attrs or {},
    case.options)
  if good then return true end
  local forward = row.name:gsub("_grad$", "") -- attention checks both under one name
  assert.is_truthy(text:find(row.name .. ": ", 1, true)
    or text:find(forward .. ": ", 1, true), text)
  assert.equal(before, hashes(operands[2]))
  return false
end

--- Every operand in turn is made wrong, those in `allowed` aside.
local function check_refused(row, case, wrong, allowed)
  local dtype, accepted = dtypes_of(case)[1], {}
  for side, names in ipairs { words(row.inputs), words(row.outputs) } do
    for i, name in ipairs(names) do
      local operands = operands_of(case, dtype)
      local list = operands[side]
      if list[i] and not has(allowed or "", name) then
        list[i] = wrong(list[i])
        if is_accepted(row, case, operands) then accepted[#accepted + 1] = name end
      end
    end
  end
  assert.equal("", table.concat(accepted, " "))
end

-- A row -------------------------------------------------------------------------------------------

local function describe_case(it, row, case, dtype)
  local lead = case.name .. ", " .. dtype .. ": "
  it(lead .. "is close to its f64 oracle, for 1 to 4 threads, whatever was there", function()
    local one, inputs = promises.run(case, dtype)
    local expected = case.oracle(flats(inputs), case.attrs or {}, case.rows)
    for i, output in ipairs(one) do
      assert.is_nil(promises.far(case, expected[i], output:flat(), output:dtype()))
    end
    for threads = 2, 4 do
      for i, output in ipairs((promises.run(case, dtype, { threads = threads, clear = true }))) do
        assert.bits(one[i], output)
      end
    end
  end)
  if row.traits.rowwise then
    it(lead .. "is the same alone, and beside rows of NaN", function()
      check_alone(row, case, dtype)
    end)
    if case.by_row then
      it(lead .. "takes no rows", function() check_no_rows(case, dtype) end)
    end
  end
  if has(row.ints, "columns") then
    it(lead .. "reads no padding", function() check_padding(case, dtype) end)
  end
  if has(row.ints, "mode") and (case.attrs.samples or 1) > 1 then
    it(lead .. "resumes to the bits of one call", function() check_resume(case, dtype) end)
  end
end

--- Specs of one row. `by_op` are operators.cases(), `rows` all rows by name.
function operators.describe(describe, it, row, rows, by_op)
  local list = by_op[row.name]
  describe("operator " .. row.name, function()
    it("has a case with an oracle", function()
      assert.is_truthy(list, row.name .. " is a row of kernels/ops.def without a case: put one into"
        .. " tests/support/FAMILY_cases.lua, in the form of tests/support/promises.lua")
      for _, case in ipairs(list) do assert.is_function(case.oracle, case.name) end
    end)
    if not list then return end
    for i = 1, math.min(2, #list) do
      for _, dtype in ipairs(dtypes_of(list[i])) do describe_case(it, row, list[i], dtype) end
    end
    it("refuses operands of another dtype", function()
      check_refused(row, list[1], wrong_dtype)
    end)
    it("refuses operands of another size", function()
      check_refused(row, list[1], wrong_size, any_size[row.name])
    end)
    if row.gradient ~= "-" then
      it("has the gradient of its oracle's slopes, by " .. row.gradient, function()
        check_gradient(row, assert(rows[row.gradient], "no such row"), list)
      end)
    end
  end)
end

return operators
