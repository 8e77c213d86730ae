local support = require "support"
local broken = require "support.broken"

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
