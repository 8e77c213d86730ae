-- Every row of kernels/ops.def with a host kernel has the same tests, made from the row.
local core = require "tidelock.core"
local operators = require "support.operators"

local rows, by_op = {}, operators.cases()
for _, row in ipairs(core.ops()) do rows[row.name] = row end

for _, row in ipairs(core.ops()) do
  if row.host then operators.describe(describe, it, row, rows, by_op) end
end

describe("cases", function()
  it("are of operators that there are", function()
    local lost = {}
    for op in pairs(by_op) do
      if not rows[op] then lost[#lost + 1] = op end
    end
    assert.same({}, lost)
  end)
end)

describe("a row that nothing else knows", function()
  --- The names of the tests that a row gets, and the message of the first.
  local function made(row, cases)
    local names, message = {}, nil
    local function it_(name, body)
      names[#names + 1] = name
      if #names == 1 then message = not pcall(body) and tostring(select(2, pcall(body))) or nil end
    end
    operators.describe(function(_, body) body() end, it_, row, { [row.name] = row }, cases)
    return names, message
  end

  local row = { name = "tide", inputs = "x", outputs = "y", ints = "columns", floats = "",
    gradient = "tide", traits = { rowwise = true }, host = true }

  it("fails with what it lacks", function()
    local names, message = made(row, {})
    assert.equal(1, #names)
    assert.matches("tide is a row of kernels/ops.def without a case: put one", message, 1, true)
  end)

  it("has all tests of its traits as soon as there is a case", function()
    local case = { op = "tide", name = "one", rows = 3, dtypes = { "f32" }, by_row = { true },
      oracle = print }
    local names = made(row, { tide = { case } })
    assert.same({ "has a case with an oracle",
      "one, f32: is close to its f64 oracle, for 1 to 4 threads, whatever was there",
      "one, f32: is the same alone, and beside rows of NaN", "one, f32: takes no rows",
      "one, f32: reads no padding", "refuses operands of another dtype",
      "refuses operands of another size",
      "has the gradient of its oracle's slopes, by tide" }, names)
  end)
end)
