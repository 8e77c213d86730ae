-- Communication in a lane of its own: every wait that the planner states is needed, and none lacks.
local core = require "tidelock.core"
local lanes = require "tidelock.plan.lanes"
local mixtures = require "support.mixtures"
local models = require "support.models"
local planner = require "tidelock.plan"

--- The message of the verifier, or nil.
local function complaint(program)
  local ok, problem = pcall(core.program, program)
  if ok then problem:close() end
  return not ok and problem or nil
end

local function plan_of(layout)
  local options = { heads = 8, kv_heads = 4 }
  for axis, size in pairs(layout) do options["layout." .. axis] = size end
  return planner(models.recipe(options):with { device = "cuda" })
end

local layouts = { { tp = 2 }, { dp = 2 }, { pp = 2 }, { tp = 2, dp = 2, pp = 2 },
  { tp = 2, sequence_parallel = false } }

describe("lanes of a program for GPUs", function()
  it("are apart, and the verifier finds every dependency stated", function()
    for _, layout in ipairs(layouts) do
      for _, program in ipairs(plan_of(layout).programs) do
        local apart = 0
        for _, made in ipairs(program.instructions) do
          local talks = made.attrs.group ~= nil
          assert.equal(talks and 1 or 0, made.lane)
          if talks then apart = apart + 1 end
        end
        assert.is_true(apart > 0)
        assert.is_nil(complaint(program))
      end
    end
  end)

  it("need every wait of the kernels' lane: without one the program is refused", function()
    local removed = 0
    for _, layout in ipairs(layouts) do
      local program = plan_of(layout).programs[1]
      for _, made in ipairs(program.instructions) do
        if made.lane == 0 and #made.waits > 0 then
          local waits = made.waits
          made.waits = {}
          assert.matches("in lane %d without waiting for", complaint(program))
          made.waits = waits
          removed = removed + 1
        end
      end
    end
    assert.is_true(removed > 20)
  end)

  it("let kernels run beside communication", function()
    local program = plan_of({ tp = 2 }).programs[1]
    local beside = 0
    for i, made in ipairs(program.instructions) do
      local follower = program.instructions[i + 1]
      if made.lane == 1 and follower and follower.lane == 0 and #follower.waits == 0 then
        beside = beside + 1
      end
    end
    assert.is_true(beside > 0)
  end)

  --- Whether an instruction writes where the rows lie that an exchange sends.
  local function writes_over(program, made, sent)
    local x = program.tensors[sent.inputs[1]]
    for _, index in ipairs(made.outputs) do
      local y = program.tensors[index]
      local bytes = function(t) return t.shape[1] * (t.shape[2] or 1) * (t.dtype == "f32" and 4
        or 2) end
      if y and y.offset < x.offset + bytes(x) and x.offset < y.offset + bytes(y) then
        return true
      end
    end
    return false
  end

  it("let rows of experts travel beside the products of another wave", function()
    for _, layout in ipairs { { dp = 2, ep = 2 }, { tp = 2, ep = 2 }, { dp = 4, ep = 4 } } do
      local options = mixtures.with({ experts = 16, top_k = 2, hidden = 64, shared = 1 },
        { layers = 3 })
      for axis, size in pairs(layout) do options["layout." .. axis] = size end
      local recipe = models.recipe(options):with { device = "cuda", ["blocks.moe.waves"] = 4 }
      for _, program in ipairs(planner(recipe).programs) do
        assert.is_nil(complaint(program))
        local sent, products = nil, 0
        for i, made in ipairs(program.instructions) do
          if made.op == "exchange" then
            assert.equal(1, made.lane)
            sent = made
          elseif sent and made.lane == 0 then
            products = products + (made.op == "grouped_linear" and 1 or 0)
            assert.is_false(writes_over(program, made, sent), "instruction " .. i - 1)
          end
        end
        assert.is_true(products > 0)
      end
    end
  end)

  it("are one on the host", function()
    local recipe = models.recipe { heads = 8, kv_heads = 4, ["layout.tp"] = 2 }
    local program = planner(recipe).programs[1]
    for _, made in ipairs(program.instructions) do assert.equal(0, made.lane) end
  end)

  it("wait for bytes, not for tensors", function()
    local program = {
      tensors = {
        { offset = 0, dtype = "f32", shape = { 4 } }, { offset = 64, dtype = "f32", shape = { 4 } },
        { offset = 8, dtype = "bf16", shape = { 4 } },
        { offset = 16, dtype = "f32", shape = { 4 } },
      },
      instructions = {
        { op = "fill", inputs = {}, outputs = { 1 } },
        { op = "all_reduce", inputs = { 1 }, outputs = { 1 } },
        { op = "fill", inputs = {}, outputs = { 2 } }, -- far away
        { op = "fill", inputs = {}, outputs = { 4 } }, -- begins where the sum ends
        { op = "fill", inputs = {}, outputs = { 3 } }, -- the same bytes by another name
      },
      sections = { step = { 1, 5 } },
    }
    for _, made in ipairs(program.instructions) do made.waits = {} end
    lanes.assign(program)
    local waits = {}
    for i, made in ipairs(program.instructions) do waits[i] = made.waits end
    assert.same({ {}, { 1 }, {}, {}, { 2 } }, waits)
  end)

  it("let a message overtake what it does not need", function()
    local function f32(offset) return { offset = offset, dtype = "f32", shape = { 4 } } end
    local program = {
      tensors = { f32(0), f32(64), f32(128), f32(192) },
      instructions = {
        { op = "scale", inputs = { 1 }, outputs = { 2 } }, -- dx
        { op = "scale", inputs = { 1 }, outputs = { 3 } }, -- dw
        { op = "scale", inputs = { 2 }, outputs = { 4 } },
        { op = "all_reduce", inputs = { 4 }, outputs = { 4 } },
        { op = "scale", inputs = { 4 }, outputs = { 1 } },
      },
      sections = { step = { 1, 5 } },
    }
    for _, made in ipairs(program.instructions) do made.waits = {} end
    assert.same({ 1, 4, 2, 3, 5 }, lanes.assign(program))
    local found = {}
    for i, made in ipairs(program.instructions) do
      found[i] = { made.outputs[1], made.lane or 0, table.unpack(made.waits) }
    end
    assert.same({ { 2, 0 }, { 4, 0 }, { 4, 1, 2 }, { 3, 0 }, { 1, 0, 3 } }, found)
  end)
end)
