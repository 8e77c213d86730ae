local support = require "support"
local broken = require "support.broken"
local fields = require "tidelock.fields"
local hints = require "tidelock.hints"
local plan = require "tidelock.plan"
local recipe = require "tidelock.recipe"

local function sorted(list)
  local copy = table.move(list, 1, #list, 1, {})
  table.sort(copy)
  return table.concat(copy, "\n")
end

describe("a broken recipe", function()
  for _, path in ipairs(support.files("tests/errors", "%.lua$")) do
    it("says what is wrong, all of it, and where: " .. path:match "([^/]*)%.lua$", function()
      local expected, ranks = broken.read(path)
      assert.is_true(#expected > 0, path .. " expects no error")
      local lines, count = broken.run(path, ranks)
      assert.equal(sorted(expected), sorted(lines))
      local noun = #expected == 1 and "1 error" or #expected .. " errors"
      assert.equal(noun .. "; nothing was started", count)
    end)
  end
end)

describe("a key from another program", function()
  it("gets a hint that says what to write here", function()
    for _, key in ipairs(hints.keys()) do
      if not fields.sections.train.by_name[key] then
        local small = recipe.load("tests/support/small.lua", { "train." .. key .. "=1" })
        local good, message = pcall(plan, small, "check")
        local text = "command line: train." .. key .. ": no such key; " .. hints.of(key)
        assert.is_false(good)
        assert.equal(text .. "\n1 error; nothing was started", tostring(message))
      end
    end
  end)

  it("is found in any case and with dashes", function()
    assert.equal(hints.of "num_layers", hints.of "Num-Layers")
    assert.is_nil(hints.of "tp")
  end)
end)
