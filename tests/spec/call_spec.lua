local core = require "tidelock.core"
local support = require "support"

local function message(...) return select(2, pcall(core.call, ...)) end

describe("the table of operators", function()
  it("lists every row with its names and traits", function()
    local rows = {}
    for _, row in ipairs(core.ops()) do rows[row.name] = row end
    assert.equal("x weight* bias*?", rows.linear.inputs)
    assert.equal("parts biases leaves", rows.linear.ints)
    assert.equal("linear_grad_input", rows.linear.gradient)
    assert.same({ rowwise = true }, rows.linear.traits)
    assert.same({ comm = true }, rows.all_reduce.traits)
    assert.is_false(rows.all_reduce.host)
  end)

  it("names gradients that are rows themselves", function()
    local rows = {}
    for _, row in ipairs(core.ops()) do rows[row.name] = true end
    for _, row in ipairs(core.ops()) do
      if row.gradient ~= "-" then assert.is_true(rows[row.gradient], row.name) end
    end
  end)
end)

describe("a call", function()
  local t = core.tensor("f32", { 2, 2 })

  it("knows the operator, or the nearest one", function()
    assert.matches("no operator rms_nrm; did you mean rms_norm", message("rms_nrm", {}, {}))
  end)

  it("takes all numbers of the row, and no others", function()
    assert.matches("rms_norm: eps is missing", message("rms_norm", { t, t }, { t, t }))
    assert.matches("rms_norm: has no number epsilon",
      message("rms_norm", { t, t }, { t, t }, { eps = 1e-5, epsilon = 1 }))
    assert.matches("rms_norm: has no number a position",
      message("rms_norm", { t, t }, { t, t }, { eps = 1e-5, 7 }))
    assert.matches("rms_norm: eps is 1e%-5, must be a number",
      message("rms_norm", { t, t }, { t, t }, { eps = "1e-5" }))
    assert.matches("unary: kind is 1.5, must be an integer",
      message("unary", { t }, { t }, { kind = 1.5 }))
    assert.matches("fill: value is missing", message("fill", {}, { t }, {}))
  end)

  it("reads lists of numbers", function()
    local numbers = { parts = 1, leaves = 1 }
    assert.matches("ranges is missing", message("linear_grad_input", { t, t }, { t }, numbers))
    numbers.ranges = 3
    assert.matches("ranges is a number, must be a table",
      message("linear_grad_input", { t, t }, { t }, numbers))
    numbers.ranges = { 0, 0.5 }
    assert.matches("ranges is 0.5, must be an integer",
      message("linear_grad_input", { t, t }, { t }, numbers))
  end)

  it("counts operands, groups of them, and those that may be absent", function()
    local linear = { parts = 2, biases = 1, leaves = 1 }
    assert.matches("entry 4 of the inputs %(bias%) is missing; it takes 5: x weight%* bias%*%?",
      message("linear", { t, t, t }, { t, t }, linear))
    assert.matches("linear: 6 inputs, takes 5", message("linear", { t, t, t, t, t, t }, {}, linear))
    assert.matches("entry 2 of the outputs %(y%) is missing",
      message("linear", { t, t, t, t, t }, { t }, linear))
    assert.matches("parts is 0, must be 1 to 4096",
      message("linear", { t }, {}, { parts = 0, biases = 0, leaves = 1 }))
    assert.matches("entry 2 of the inputs %(gain%) is missing",
      message("rms_norm", { t, false }, { t, t }, { eps = 1 }))
    assert.matches("entry 1 of the inputs %(x%) is a string, must be a tensor",
      message("rms_norm", { "t", t }, { t, t }, { eps = 1 }))
  end)

  it("refuses closed tensors and unknown options", function()
    local closed = core.tensor("f32", { 1 })
    closed:close()
    assert.matches("tensor is closed", message("fill", {}, { closed }, { value = 1 }))
    assert.matches("invalid option 'thread'",
      message("fill", {}, { t }, { value = 1 }, { thread = 2 }))
    assert.matches("seed is 0.5, must be an integer",
      message("fill", {}, { t }, { value = 1 }, { seed = 0.5 }))
    assert.matches("threads is %-1, must be 1 to 1024",
      message("fill", {}, { t }, { value = 1 }, { threads = -1 }))
  end)

  it("says that an operator of the executor has no host kernel", function()
    assert.matches("operator all_reduce has no host kernel",
      message("all_reduce", { t }, { t }, { group = 0 }))
  end)
end)

describe("a team", function()
  it("runs every task once, also when several teams share a pool", function()
    assert.equal("3 teams, 400 loops each: good\n", (support.run("", "team_stress")))
  end)
end)

describe("a kernel", function()
  it("gives the same bits with any number of threads, whatever was in memory before", function()
    local x = support.filled("f32", { 64, 96 }, 5)
    local weight = support.filled("f32", { 40, 96 }, 6)
    local first
    for _, threads in ipairs { 1, 2, 3, 8 } do
      for _, scratch in ipairs { 0, 255 } do
        local y = support.poison("bf16", { 64, 40 })
        core.call("linear", { x, weight }, { y }, { parts = 1, biases = 0, leaves = 4 },
          { threads = threads, scratch = scratch })
        first = first or y
        assert.bits(first, y)
      end
    end
    assert.near(0, first:flat()[64 * 40], 100) -- a number: nothing of the poison is left
  end)

  it("says what it does not accept", function()
    local x = support.filled("f32", { 4, 8 }, 5)
    assert.matches("linear", message("linear", { x, core.tensor("f32", { 4, 9 }) },
      { core.tensor("f32", { 4, 4 }) }, { parts = 1, biases = 0, leaves = 1 }))
  end)
end)

describe("core.math", function()
  it("rounds its argument to f32 and gives exact values where there are some", function()
    local m = core.math
    assert.equal(8, m.exp2(3))
    assert.equal(-3, m.log2(0.125))
    assert.equal(1, m.exp(0))
    assert.equal(0, m.log(1))
    assert.equal(1, m.cos(0))
    assert.equal(0, m.sin(0))
    assert.equal(0, m.tanh(0))
    assert.equal(0.5, m.sigmoid(0))
    assert.equal(0.5, m.rsqrt(4))
    assert.equal(m.exp2(core.f32(0.1)), m.exp2(0.1))
    for _, name in ipairs { "exp", "cos", "sin", "tanh" } do
      local f = ({ exp = math.exp, cos = math.cos, sin = math.sin,
        tanh = function(x) return 1 - 2 / (math.exp(2 * x) + 1) end })[name]
      for i = -40, 40 do
        local x = core.f32(i * 0.173)
        assert.near(f(x), m[name](x), 2e-6 * math.max(1, math.abs(f(x))))
      end
    end
  end)
end)

describe("tl.matmul", function()
  it("names both shapes when they do not meet", function()
    local tl = require "tidelock"
    local a, b = core.tensor("f32", { 2, 3 }), core.tensor("f32", { 3 })
    for _, pair in ipairs { { a, a, "2, 3" }, { a, b, "3" } } do
      local _, text = pcall(tl.matmul, pair[1], pair[2])
      local shapes = ("a is %%(2, 3%%), b is %%(%s%%)"):format(pair[3])
      assert.matches("matmul: " .. shapes .. "; wanted %(rows, n%) and %(n, columns%)", text)
    end
  end)
end)
