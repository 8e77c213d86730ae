local core = require "tidelock.core"
local optimizer = require "support.optimizer_cases"
local promises = require "support.promises"
local support = require "support"

promises.describe(describe, it, optimizer.cases)

local hyper = { scalar_first = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, lr_scale = 1 }

local function fields(changes)
  local all = {}
  for name, value in pairs(hyper) do all[name] = value end
  for name, value in pairs(changes or {}) do all[name] = value end
  return all
end

describe("adamw", function()
  local count, numbers = 300, { 0.01, 2, 3 }
  local function vector(stream, offset)
    return promises.spread("f32", { count }, stream, 0.1, offset)
  end

  it("changes nothing when control says skip", function()
    local w, m, v = vector(1), vector(2), vector(3, 1)
    core.call("adamw", { vector(4), core.tensor("f32", { 2 }, { 1, 1 }) }, { w, m, v }, hyper,
      { scalars = numbers })
    assert.bits(vector(1), w)
    assert.bits(vector(2), m)
    assert.bits(vector(3, 1), v)
  end)

  it("and set_state do so", function()
    local state = vector(1)
    core.call("set_state", { vector(4), core.tensor("f32", { 2 }, { 1, 1 }) }, { state }, {})
    assert.bits(vector(1), state)
    core.call("set_state", { vector(4), core.tensor("f32", { 2 }, { 0.5, 0 }) }, { state }, {})
    assert.bits(vector(4), state)
  end)

  it("updates slices as the whole", function()
    local go = core.tensor("f32", { 2 }, { 0.5, 0 })
    local grad = vector(4)
    local w, m, v = vector(1), vector(2), vector(3, 1)
    core.call("adamw", { grad, go }, { w, m, v }, hyper, { scalars = numbers })
    local w2, m2, v2 = vector(1), vector(2), vector(3, 1)
    for _, range in ipairs { { 1, 7 }, { 8, 200 }, { 208, 93 } } do
      local function part(t) return t:narrow(1, range[1], range[2]) end
      core.call("adamw", { part(grad), go }, { part(w2), part(m2), part(v2) }, hyper,
        { scalars = numbers })
    end
    assert.bits(w, w2)
    assert.bits(m, m2)
    assert.bits(v, v2)
  end)

  it("rounds a bf16 weight from its master, which keeps small updates", function()
    local weight, master = core.tensor("bf16", { 1 }, { 1 }), core.tensor("f32", { 1 }, { 1 })
    local m, v = core.tensor("f32", { 1 }), core.tensor("f32", { 1 })
    local grad, go = core.tensor("f32", { 1 }, { 1 }), core.tensor("f32", { 2 }, { 1, 0 })
    for _ = 1, 10 do
      core.call("adamw", { grad, go }, { weight, m, v, master },
        fields { decay = 0, beta1 = 0, beta2 = 0 }, { scalars = { 1e-3, 1, 1 } })
    end
    assert.near(0.99, master:flat()[1], 1e-6)
    assert.equal(core.bf16(master:flat()[1]), weight:flat()[1])
  end)

  it("refuses a step without its numbers", function()
    local one = core.tensor("f32", { 1 })
    local _, message = pcall(core.call, "adamw", { one, core.tensor("f32", { 2 }) },
      { one, one, one }, hyper, { scalars = { 1, 2 } })
    assert.matches("adamw: scalar_first is 0, must be 0 to %-1", message)
  end)
end)

describe("initial values", function()
  local attrs = { kind = 1, name_hash = core.hash_int "embed", row_first = 0, col_first = 0,
    cols_full = 60, first = 0, second = 1 }

  local function draw(rows, cols, changes, options)
    local a = {}
    for name, value in pairs(attrs) do a[name] = value end
    for name, value in pairs(changes or {}) do a[name] = value end
    local y = support.poison("f32", { rows, cols })
    core.call("init", {}, { y }, a, options or { seed = 1, threads = 2 })
    return y
  end

  local whole = draw(40, 60)

  it("of shards are shards of the whole", function()
    assert.bits(whole:narrow(1, 11, 20), draw(20, 60, { row_first = 10 }))
    local values, part = whole:to_table(), draw(40, 15, { col_first = 30 }):to_table()
    for r = 1, 40 do
      for c = 1, 15 do assert.equal(values[r][30 + c], part[r][c]) end
    end
  end)

  it("hang on the name and the seed, not on the step", function()
    assert.is_false(core.equal(whole, draw(40, 60, { name_hash = core.hash_int "other" })))
    assert.is_false(core.equal(whole, draw(40, 60, {}, { seed = 2 })))
    assert.bits(whole, draw(40, 60, {}, { seed = 1, step = 9 }))
  end)

  it("have the moments of their distribution", function()
    local n, sum, square = 200000, 0.0, 0.0
    for _, x in ipairs(draw(200, 1000, { cols_full = 1000 }):flat()) do
      sum, square = sum + x, square + x * x
    end
    assert.near(0, sum / n, 5 / math.sqrt(n))
    assert.near(1, square / n, 5 * math.sqrt(2 / n))
    local low, high = math.huge, -math.huge
    local even = draw(200, 1000, { kind = 2, cols_full = 1000, first = 2, second = 3 })
    for _, x in ipairs(even:flat()) do
      low, high = math.min(low, x), math.max(high, x)
    end
    assert.is_true(low >= 2 and low < 2.0001 and high > 2.9999 and high <= 3)
  end)

  it("have pinned bits", function()
    assert.equal("bb0d121a4d9c7716", whole:hash())
  end)
end)
