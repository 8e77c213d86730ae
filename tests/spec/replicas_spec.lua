-- What several ranks hold alike is compared at the start and every log.replicas steps.
local core = require "tidelock.core"
local experts = require "tidelock.plan.experts"
local mixtures = require "support.mixtures"
local models = require "support.models"
local replicas = require "tidelock.run.replicas"

--- Changes one element of a tensor on one rank.
local function corrupt(run, rank, name)
  local at = run.table[rank + 1].coordinates
  local v = run.plan.ranks[experts.plan_index(run.spec.layout, at)].persistent[name]
  local t = run.ranks:read(rank, v.tensor)
  local values = t:flat()
  values[3] = values[3] + 2.0 ^ -20
  run.ranks:write(rank, v.tensor, core.tensor("f32", t:shape(), values))
end

local function failure(run)
  local good, message = pcall(run.step, run)
  assert.is_false(good)
  return message
end

local layout = { ["layout.dp"] = 4, ["layout.tp"] = 2, ["log.replicas"] = 2 }

describe("the replica check", function()
  it("is quiet when all is well", function()
    for _, options in ipairs { {}, { tied = true, ["layout.pp"] = 2 }, mixtures.zoo[2][2] } do
      local run <close> = models.start(models.with(options, layout, { micro = 1 }))
      for _ = 1, 2 do run:step() end
    end
  end)

  it("names tensor, step and ranks", function()
    local run <close> = models.start(models.with(layout, { micro = 1 }))
    run:step()
    corrupt(run, 5, "weight layers.1.swiglu.rms_norm.gain")
    assert.matches("replicas differ after step 2: weight of layers%.1%.swiglu%.rms_norm%.gain: "
      .. "ranks 0 to 4, 6, 7 have %x+; rank 5 has %x+", failure(run))
  end)

  it("compares shards and the optimizer's state", function()
    local run <close> = models.start(models.with(layout, { micro = 1 }))
    run:step()
    corrupt(run, 3, "m layers.0.attention.q")
    assert.matches("m of layers%.0%.attention%.q: ranks 1, 5, 7 have %x+; rank 3 has %x+",
      failure(run))
  end)

  it("compares experts with those of the other groups", function()
    local run <close> = models.start(models.with(mixtures.zoo[1][2], layout, { micro = 1,
      ["layout.ep"] = 4 }))
    run:step()
    corrupt(run, 6, "weight layers.0.moe.experts.5.up")
    assert.matches("layers%.0%.moe%.experts%.5%.up: rank 2 has %x+; rank 6 has %x+", failure(run))
  end)

  it("looks at the start", function()
    local run <close> = models.start(models.with(layout, { micro = 1 }))
    corrupt(run, 0, "weight embed")
    local good, message = pcall(replicas.check, run, 0)
    assert.is_false(good)
    assert.matches("replicas differ at the start: weight of embed", message)
  end)
end)
