-- Who has each moment of a step: kernels, messages that nothing hides, waits for other ranks.
local waits = require "tidelock.trace.waits"

describe("waits", function()
  it("share a moment among kernels; a message has what no kernel hides", function()
    local own, busy = waits.share {
      { start = 0, stop = 10, talks = false }, { start = 5, stop = 25, talks = true },
      { start = 12, stop = 20, talks = false }, { start = 30, stop = 30, talks = false },
      { start = 40, stop = 46, talks = false }, { start = 42, stop = 46, talks = false },
    }
    assert.same({ 10, 2 + 5, 8, 0, 2 + 2, 2 }, own)
    assert.equal(25 + 6, busy)
    assert.same({}, (waits.share {}))
  end)

  it("are what a member takes longer than the quickest of its message", function()
    local function rank(number, list)
      return { list = list, counter = waits.counter(number, { "tp", "alone" },
        { tp = { 0, 1 }, alone = { number } }) }
    end
    local sum = { op = "all_reduce", attrs = { group = 0 } }
    local own = { op = "all_reduce", attrs = { group = 1 } }
    local work = { op = "linear", attrs = {} }
    local sent = { op = "send", attrs = { group = 0, peer = 1, channel = 0 } }
    local read = { op = "recv", attrs = { group = 0, peer = 0, channel = 0 } }
    assert.same({ { 0, 6, 0, 0, 0 }, { 0, 0, 3, 5 } }, waits.of {
      rank(0, { { made = work, ns = 50 }, { made = sum, ns = 9 }, { made = sum, ns = 4 },
        { made = own, ns = 90 }, { made = sent, ns = 2 } }),
      rank(1, { { made = work, ns = 40 }, { made = sum, ns = 3 }, { made = sum, ns = 7 },
        { made = read, ns = 7 } }),
    })
  end)
end)
