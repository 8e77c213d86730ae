-- A run whose scratch is allocated anew: it leaves the arena alone.
local programs = require "support.programs"
local support = require "support"
local message = programs.message

describe("ranks", function()
  it("in memory of its own, keep what another section left in the arena", function()
    local b, made = programs.new { "all" }, {}
    local x = b:tensor("f32", { 64 }, { persistent = true })
    for i, section in ipairs { "step", "eval" } do
      made[i] = b:tensor("f32", { 64 })
      b:add(section, "scale", { x }, { made[i] }, { factor = i + 1 })
    end
    local p <close> = b:program()
    assert.equal(512, p:scratch())
    local ranks <close> = programs.ranks(p, 1)
    ranks:write(0, x, support.filled("f32", { 64 }, 7))
    ranks:run "eval"
    local kept = ranks:read(0, made[2])
    assert.is_nil(message(ranks.run, ranks, "step", { fresh = true }))
    local fresh = ranks:read(0, made[1])
    assert.bits(kept, ranks:read(0, made[2]))
    ranks:write(0, made[2], fresh) -- beside the block, not into it
    assert.bits(fresh, ranks:read(0, made[1]))
    ranks:run "step"
    assert.bits(fresh, ranks:read(0, made[1]))
    assert.bits(fresh, ranks:read(0, made[2]))
  end)
end)
