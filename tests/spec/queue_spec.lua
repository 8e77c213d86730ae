-- Runs that are queued, with what goes in before them and comes out behind them.
local support = require "support"
local programs = require "support.programs"
local message = programs.message

describe("ranks", function()
  it("run what is queued, with what goes in and comes out", function()
    local p <close> = programs.summing():program()
    local ranks <close> = programs.ranks(p, 2)
    local expected <close> = programs.ranks(p, 2)
    for step = 0, 2 do
      local place, ins = step % 2, {}
      for rank = 0, 1 do
        local x = support.filled("f32", { 64 }, 10 * step + rank)
        expected:write(rank, 1, x)
        table.move({ rank, 1, x }, 1, 3, #ins + 1, ins)
      end
      ranks:queue(place, "step", { step = step }, ins, { 1, 1, 0, 2 })
      assert.matches("the run at place " .. place .. " was not awaited", message(function()
        ranks:queue(place, "step", { step = step }, {}, {})
      end))
      expected:run("step", { step = step })
      local x, y = ranks:await(place)
      assert.bits(expected:read(1, 1), x)
      assert.bits(expected:read(0, 2), y)
    end
    assert.matches("nothing is queued at place 1", message(function() ranks:await(1) end))
    assert.is_false(ranks:queues()) -- ranks of the host
    assert.error_matches(function() ranks:queue(2, "step", {}, {}, {}) end, "no such place")
  end)

  it("keep of a queued run what it was queued with", function()
    local p <close> = programs.summing():program()
    local ranks <close> = programs.ranks(p, 1)
    local x, outs = support.filled("f32", { 64 }, 1), { 0, 1 }
    ranks:queue(0, "step", {}, { 0, 1, x }, outs)
    for i = 3, 40 do outs[i] = i % 2 == 1 and 0 or 1 end -- more than a place has
    local found = { ranks:await(0) }
    assert.equal(1, #found)
    assert.bits(ranks:read(0, 1), found[1])
  end)

  it("are queued with whole entries of ranks and tensors that are there", function()
    local p <close> = programs.summing():program()
    local ranks <close> = programs.ranks(p, 1)
    local x = support.filled("f32", { 64 }, 1)
    for _, case in ipairs {
      { { 0, 1 }, {}, "half an entry" }, { {}, { 0 }, "half an entry" },
      { { 1 << 32, 1, x }, {}, "no such rank" }, { {}, { 0, (1 << 32) + 1 }, "no such tensor" },
      { { 0, 3, x }, {}, "tensor 2; rank 0 has 2" },
    } do
      assert.matches(case[3], message(function()
        ranks:queue(0, "step", {}, case[1], case[2])
      end))
    end
    assert.matches("nothing is queued at place 0", message(function() ranks:await(0) end))
  end)
end)
