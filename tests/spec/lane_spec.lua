-- Lanes: calls in order on a thread of their own, while Lua goes on.
local core = require "tidelock.core"
local support = require "support"

local function message(...) return select(2, pcall(...)) end

--- A product that takes some milliseconds, so that what follows is queued behind it.
local big = { size = 384 }
big.x = support.filled("f32", { big.size, big.size }, 1)
big.attrs = { parts = 1, biases = 0, leaves = 1 }

local function start_big(lane, y)
  return lane:call("linear", { big.x, big.x }, { y }, big.attrs)
end

describe("a lane", function()
  it("runs calls in the order in which they were made", function()
    local lane <close> = core.lane()
    local x = core.tensor("f32", { 3 }, { 1, 2, 3 })
    local last
    for factor = 2, 9 do last = lane:call("scale", { x }, { x }, { factor = factor }) end
    assert.equal(8, last)
    lane:wait(last)
    assert.same({ 362880, 725760, 1088640 }, x:flat())
    assert.equal(8, lane:done())
  end)

  it("gives the bits of a call at once, with any number of threads", function()
    local expected = support.poison("f32", { big.size, big.size })
    core.call("linear", { big.x, big.x }, { expected }, big.attrs)
    for threads = 1, 3 do
      local lane <close> = core.lane(threads)
      local y = support.poison("f32", { big.size, big.size })
      lane:wait(start_big(lane, y))
      assert.bits(expected, y)
    end
  end)

  it("passes seeds and scalars on, copied when the call is made", function()
    local lane <close> = core.lane()
    local attrs = { key = 1, first = 0, length = 4, token_first = 0, tokens = 4, feature_first = 0,
      features = 8, rate = 0.5 }
    local x = support.filled("f32", { 4, 8 }, 3)
    local expected, y = core.tensor("f32", { 4, 8 }), core.tensor("f32", { 4, 8 })
    core.call("dropout", { x }, { expected }, attrs, { seed = 7, step = 3 })
    local options = { seed = 7, step = 3 }
    lane:call("dropout", { x }, { y }, attrs, options)
    attrs.rate, options.seed = 0, 8
    lane:wait()
    assert.bits(expected, y)
  end)

  it("keeps tensors that are closed before it has come to them", function()
    local lane <close> = core.lane()
    local y, z = core.tensor("f32", { big.size, big.size }), core.tensor("f32", { 4 })
    start_big(lane, y)
    do
      local x <close> = core.tensor("f32", { 4 }, { 1, 2, 3, 4 })
      lane:call("scale", { x }, { z }, { factor = 2 })
    end
    collectgarbage()
    lane:wait()
    assert.same({ 2, 4, 6, 8 }, z:flat())
  end)

  it("raises what went wrong at the wait, and skips what was behind it", function()
    local lane <close> = core.lane()
    local x, y = core.tensor("f32", { 2 }, { 1, 2 }), core.tensor("f32", { 2 })
    local short = core.tensor("f32", { 3 })
    local good = lane:call("scale", { x }, { y }, { factor = 2 })
    local bad = lane:call("scale", { x }, { short }, { factor = 2 })
    lane:call("scale", { x }, { y }, { factor = 100 })
    lane:wait(good) -- it went well: nothing to report
    assert.same({ 2, 4 }, y:flat())
    local _, text = pcall(function() lane:wait(bad) end)
    assert.matches("lane_spec.lua:%d+: call 2 of the lane: scale: y has 3 elements, must have 2",
      text)
    lane:wait() -- reported once
    assert.same({ 2, 4 }, y:flat())
    lane:wait(lane:call("scale", { x }, { y }, { factor = 3 })) -- and the lane goes on
    assert.same({ 3, 6 }, y:flat())
  end)

  it("refuses at the call what it can see there", function()
    local lane <close> = core.lane()
    local x = core.tensor("f32", { 2 })
    local function call(...) return message(lane.call, lane, ...) end
    assert.matches("no operator scal; did you mean scale", call("scal", {}, {}))
    assert.matches("scale: factor is missing", call("scale", { x }, { x }))
    assert.matches("entry 1 of the inputs %(x%) is missing", call("scale", {}, { x },
      { factor = 1 }))
    assert.matches("operator all_reduce has no host kernel", call("all_reduce", { x }, { x },
      { group = 0 }))
    assert.matches("threads is an option of core.call",
      call("scale", { x }, { x }, { factor = 1 }, { threads = 2 }))
    assert.matches("a lane calls host kernels",
      call("scale", { x }, { x }, { factor = 1 }, { device = "cuda" }))
    assert.matches("threads must be 1 to 1024", message(core.lane, 0))
    assert.matches("event 5; the lane has 0", message(lane.wait, lane, 5))
    assert.equal(0, lane:done())
  end)

  it("can be closed twice, also while it works, and not used afterwards", function()
    local lane = core.lane()
    local y = core.tensor("f32", { big.size, big.size })
    for _ = 1, 50 do start_big(lane, y) end
    lane:close() -- ends with the call that runs
    lane:close()
    assert.matches("lane is closed", message(lane.wait, lane))
    assert.matches("lane is closed", message(lane.call, lane, "fill", {}, { y }, { value = 1 }))
    assert.equal("tidelock.Lane", getmetatable(lane))
  end)

  it("may be left to the collector while it works", function()
    local y = core.tensor("f32", { big.size, big.size })
    do
      local lane = core.lane()
      for _ = 1, 3 do start_big(lane, y) end
    end
    collectgarbage()
    collectgarbage()
    assert.equal(big.size, #y)
  end)
end)

describe("two lanes", function()
  it("work at once, and one waits for an event of the other", function()
    local a <close> = core.lane()
    local b <close> = core.lane()
    local y = support.poison("f32", { big.size, big.size })
    local expected = core.tensor("f32", { big.size, big.size })
    core.call("linear", { big.x, big.x }, { expected }, big.attrs)
    core.call("scale", { expected }, { expected }, { factor = 2 })
    for _ = 1, 5 do
      b:after(a, start_big(a, y))
      a:after(b, b:call("scale", { y }, { y }, { factor = 2 }))
    end
    a:wait()
    assert.bits(expected, y)
  end)

  it("share a failure: what waits for a failed call is skipped", function()
    local a <close> = core.lane()
    local b <close> = core.lane()
    local x, y = core.tensor("f32", { 2 }, { 1, 2 }), core.tensor("f32", { 2 })
    local bad = a:call("scale", { x }, { core.tensor("f32", { 3 }) }, { factor = 2 })
    b:after(a, bad)
    b:call("scale", { x }, { y }, { factor = 2 })
    assert.matches("the lane that this one waits for: scale: y has 3 elements",
      message(b.wait, b))
    assert.matches("call 1 of the lane: scale", message(a.wait, a))
    assert.same({ 0, 0 }, y:flat())
    assert.matches("event 9; the lane has 1", message(b.after, b, a, 9))
    a:after(a, bad) -- it stands behind it anyway
  end)

  it("may be closed in any order while one waits for the other", function()
    for _ = 1, 5 do
      local a, b = core.lane(), core.lane()
      local y = core.tensor("f32", { big.size, big.size })
      b:after(a, start_big(a, y))
      b:call("scale", { y }, { y }, { factor = 2 })
      a:close()
      b:close()
    end
  end)
end)
