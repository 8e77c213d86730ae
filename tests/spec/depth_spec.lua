-- Planning is for deep models, too: twice the layers take twice the steps of the planner.
local arena = require "tidelock.plan.arena"
local core = require "tidelock.core"
local models = require "support.models"
local planner = require "tidelock.plan"

--- Thousands of steps of Lua's machine, all of planning included: how a loop is written decides it,
--- not the processor nor what else runs.
local function steps(fn)
  local count, lines = 0, core.lines
  core.lines = function() return true end -- the hook of recipes would take the place of this one
  local thread = coroutine.create(fn) -- on a stack of its own, of the same depth in every runner
  debug.sethook(thread, function() count = count + 1 end, "", 1000)
  local good, message = coroutine.resume(thread)
  core.lines = lines
  assert(good, message)
  return count
end

describe("planning", function()
  local few = arena.by_size_items_max
  before_each(function() arena.by_size_items_max = 0 end) -- of small plans alone, and quadratic
  after_each(function() arena.by_size_items_max = few end)

  for name, fields in pairs {
    ["one rank"] = {}, ["a pipeline"] = { ["layout.pp"] = 4, ["layout.tp"] = 2 },
  } do
    it("takes steps as the layers grow: " .. name, function()
      local function of(layers)
        local recipe = models.recipe { layers = layers }
        if next(fields) then recipe = recipe:with(fields) end
        return steps(function() planner(recipe) end)
      end
      of(4) -- what is loaded when it is first needed
      local half, whole = of(40), of(80)
      assert.is_true(half > 1000, half)
      assert.is_true(whole < 2.05 * half, ("%d of 40 layers, %d of 80"):format(half, whole))
    end)
  end

  it("has a place for everything in 512 layers", function()
    local plan = models.plan { layers = 512 }
    local program, place = plan.programs[1], plan.places[1]
    assert.same({ 512 }, plan.stages)
    assert.is_true(#program.instructions > 512 * 50)
    assert.is_true(place.bytes >= place.lower_bound)
    assert.is_true(place.bytes <= 1.05 * place.lower_bound)
  end)
end)
