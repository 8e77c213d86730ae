-- How layers are dealt to stages, what travels between them, and what every rank does in a step.
local models = require "support.models"
local pipeline = require "tidelock.plan.stages.pipeline"

local function planned(options) return models.plan(options, "pipeline") end

--- Instructions of a rank's step with this op.
local function instructions(plan, rank, op)
  local list, made = {}, plan.ranks[rank]
  local first, count = table.unpack(made.sections.step)
  for i = first, first + count - 1 do
    if made.instructions[i].op == op then list[#list + 1] = made.instructions[i] end
  end
  return list
end

describe("the balance of layers", function()
  it("is even, earlier stages first, and counts the head", function()
    assert.same({ 2, 2 }, pipeline.balance(4, 2, 0))
    assert.same({ 3, 3, 2 }, pipeline.balance(8, 3, 0))
    assert.same({ 3, 3, 3, 3, 3, 3, 2, 2 }, pipeline.balance(22, 8, 0.5))
    assert.same({ 3, 1 }, pipeline.balance(4, 2, 2))
    assert.same({ 1, 1, 1, 1 }, pipeline.balance(4, 4, 3))
  end)

  it("deals every layer once, leaves no stage empty, costs no more than it must", function()
    for layers = 1, 14 do
      for chunks = 1, layers do
        for _, head in ipairs { 0, 0.3, 1, 2.5, 9 } do
          local counts, sum, most = pipeline.balance(layers, chunks, head), 0, 0
          assert.equal(chunks, #counts)
          for c, count in ipairs(counts) do
            assert.is_true(count >= 1)
            sum, most = sum + count, math.max(most, count + (c == chunks and head or 0))
          end
          assert.equal(layers, sum)
          if chunks == 2 then -- brute force
            local best = math.huge
            for first = 1, layers - 1 do
              best = math.min(best, math.max(first, layers - first + head))
            end
            assert.is_true(most < best + 1, ("%d layers, head %g: %g, not %g"):format(layers, head,
              most, best))
          end
        end
      end
    end
  end)

  it("may be given", function()
    local given = { layers = 4, ["layout.pp"] = 2, ["layout.stages"] = { 1, 3 } }
    assert.same({ 1, 3 }, planned(given).stages)
  end)
end)

describe("a border", function()
  --- Sends of a rank, as "peer/channel", in the order of the step.
  local function sends(plan, rank)
    local list = {}
    for i, made in ipairs(instructions(plan, rank, "send")) do
      list[i] = made.attrs.peer .. "/" .. made.attrs.channel
    end
    return table.concat(list, " ")
  end

  it("is the residual stream: one tensor each way for each micro-batch", function()
    local plan = planned { ["layout.pp"] = 2, ["layout.schedule"] = "gpipe", micro = 4 }
    assert.equal("1/0 1/0", sends(plan, 1))
    assert.equal("0/1 0/1 0/2", sends(plan, 2)) -- two gradients; the loss
    assert.same({ 64, 32 }, instructions(plan, 1, "send")[1].inputs[1].shape)
  end)

  it("is a run of every sample under sequence parallelism", function()
    local plan = planned { ["layout.pp"] = 2, ["layout.tp"] = 2, micro = 4 }
    assert.same({ 32, 32 }, instructions(plan, 1, "send")[1].inputs[1].shape)
  end)

  it("of a value that later stages use goes stage by stage, on its own channel", function()
    local early
    local function layer(i)
      return { require("tidelock").nn.graph("g", function(g, x)
        if i == 1 then early = g.silu(x) end
        return i == 3 and x + early or x * 0.5
      end) }
    end
    local plan = planned { layer = layer, layers = 3, ["layout.pp"] = 3, micro = 8 }
    assert.equal("1/0 1/4", sends(plan, 1))
    assert.equal("2/0 2/8", sends(plan, 2):match "2/%d 2/%d")
    local expected = models.trace { layer = layer, layers = 3 }
    for _, schedule in ipairs { "1f1b", "gpipe", "zb-h1" } do
      assert.equal(expected, models.trace { layer = layer, layers = 3, ["layout.pp"] = 3,
        ["layout.schedule"] = schedule })
    end
  end)
end)

describe("a weight that two stages use", function()
  it("lies on both and is updated on both, from the same sum", function()
    local plan = planned { tied = true, ["layout.pp"] = 2, micro = 8 }
    for rank = 1, 2 do
      local updates = {}
      for _, made in ipairs(instructions(plan, rank, "adamw")) do updates[made.path] = true end
      assert.is_true(updates.embed)
      assert.is_table(plan.ranks[rank].persistent["weight embed"])
    end
    assert.is_nil(plan.ranks[2].persistent["weight layers.0.attention.q"])
  end)

  it("is squared for the gradient norm once", function()
    local plan = planned { tied = true, ["layout.pp"] = 2, micro = 8 }
    local count = 0
    for rank = 1, 2 do
      for _, made in ipairs(instructions(plan, rank, "square_sum")) do
        count = count + (made.path == "embed" and 1 or 0)
      end
    end
    assert.equal(1, count)
  end)
end)

describe("a schedule's function", function()
  it("that does not end the step is refused with what is missing", function()
    local function none() return {} end
    local good, message = pcall(planned, { ["layout.pp"] = 2, ["layout.schedule"] = none })
    assert.is_false(good)
    assert.matches("layout.schedule: ", message.message or message)
  end)
end)
