-- Versions of contracts: they move keys, and nothing goes on under another one in silence.
local checkpoint = require "tidelock.run.checkpoint"
local contracts = require "tidelock.language.contracts"
local core = require "tidelock.core"
local key = require "tidelock.language.key"

local changes = {
  { 2, "swiglu", "one rounding fewer" }, { 2, "rope", "angles in f64" },
  { 3, "attention", "blocks of 64" },
}

describe("contracts", function()
  after_each(function() contracts.changes = {} end)

  it("have the version of their last change, which is the one of keys", function()
    assert.equal(contracts.version(), key.contracts)
    contracts.changes = changes
    assert.equal(3, contracts.version())
  end)

  it("name what lies between two versions, both ways", function()
    contracts.changes = changes
    assert.equal("swiglu (version 2: one rounding fewer), rope (version 2: angles in f64)",
      contracts.between(1, 2))
    assert.equal("attention (version 3: blocks of 64)", contracts.between(3, 2))
    assert.equal("operators that this program does not know", contracts.between(3, 4))
  end)

  it("refuse a checkpoint of another version, with the operators and both numbers", function()
    contracts.changes = changes
    local known, mine = key.contracts, { contracts = "new" }
    for _, name in ipairs(key.parts) do mine[name] = mine[name] or "same" end
    local parts = {}
    for name, value in pairs(mine) do parts[name] = name == "contracts" and "old" or value end
    local plan = { key = ("1"):rep(16), key_parts = mine, fields_text = "",
      spec = { site = function() end } }
    local found = { folder = "step-1", state = { key = ("2"):rep(16), contracts = 1,
      parts = parts, fields = "" } }
    key.contracts = 3
    local good, problem = pcall(checkpoint.check, found, plan, {})
    key.contracts = known
    assert.is_false(good)
    assert.matches("version 1 of the operators' contracts %-> 3; other results: swiglu %(version 2",
      problem.message)
    key.contracts = 1
    found.state.contracts = 2
    good, problem = pcall(checkpoint.check, found, plan, {})
    key.contracts = known
    assert.is_false(good)
    assert.matches("version 2 of the operators' contracts; this program has 1", problem.message)
  end)

  it("stand in docs/numerics.md, row by row", function()
    local page = core.files.read_all "docs/numerics.md"
    assert.matches("\nContract version " .. key.contracts .. " ", page)
    local rows = {}
    for version, operator, what in page:match "\n## 19 Versions\n(.*)$":gmatch
      "\n| (%d+) | ([^|]+) | ([^|]+) |" do
      if tonumber(version) > 1 then rows[#rows + 1] = { tonumber(version), operator, what } end
    end
    assert.same(contracts.changes, rows)
    local ops = {}
    for _, row in ipairs(core.ops()) do ops[row.name] = true end
    for _, change in ipairs(contracts.changes) do assert.is_true(ops[change[2]], change[2]) end
  end)
end)
