-- Ranks find each other though anybody may dial the port where they meet (tests/support/meet.c).
local support = require "support"

describe("ranks meet", function()
  for _, case in ipairs {
    { "silent", 70, "more strangers than are let in say nothing" },
    { "slow", 1, "a message does not go on" }, { "magic", 1, "a message has another magic" },
    { "size", 1, "a message says that it has 2^62 bytes" },
    { "world", 1, "a rank of another run dials" }, { "twice", 1, "a second rank 0 dials" },
  } do
    it("though " .. case[3], function()
      assert.equal(case[2] .. " strangers: good\n", (support.run(case[1], "meet")))
    end)
  end
end)
