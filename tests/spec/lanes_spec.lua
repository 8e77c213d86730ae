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

local function plan_of(layout, dtype)
  local options = { heads = 8, kv_heads = 4, dtype = dtype }
  for axis, size in pairs(layout) do options["layout." .. axis] = size end
  return planner(models.recipe(options):with { device = "cuda" })
end

local layouts = { { tp = 2 }, { dp = 2 }, { pp = 2 }, { tp = 2, dp = 2, pp = 2 },
  { tp = 2, sequence_parallel = false }, { tp = 2, schedule = "gpipe" },
  { tp = 4, dp = 2, schedule = "gpipe", sequence_parallel = false } }

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

  it("keep the order of instructions that touch the same bytes", function()
    local sizes, assign = { f32 = 4, bf16 = 2, i32 = 4, i64 = 8, u8 = 1 }, lanes.assign
    local function ranges(program, operands)
      local list = {}
      for _, index in ipairs(operands) do
        local t = program.tensors[index]
        local bytes = t and sizes[t.dtype]
        for _, size in ipairs(t and t.shape or {}) do bytes = bytes * size end
        if t then list[#list + 1] = { t.offset, t.offset + bytes } end
      end
      return list
    end
    local function touch(a, b)
      for _, x in ipairs(a) do
        for _, y in ipairs(b) do
          if x[1] < y[2] and y[1] < x[2] then return true end
        end
      end
      return false
    end
    local swapped, compared = {}, 0
    function lanes.assign(program)
      local before, range = {}, program.sections.step
      for i = range[1], range[1] + range[2] - 1 do
        local made = program.instructions[i]
        before[i] = { made.op, ranges(program, made.inputs), ranges(program, made.outputs) }
      end
      local position = assign(program)
      for i = range[1], range[1] + range[2] - 1 do
        for k = i + 1, range[1] + range[2] - 1 do
          local one, other = before[i], before[k]
          if position[k] < position[i] then
            compared = compared + 1
            if touch(one[3], other[3]) or touch(one[3], other[2]) or touch(one[2], other[3]) then
              swapped[#swapped + 1] = ("%d %s, %d %s"):format(i, one[1], k, other[1])
            end
          end
        end
      end
      return position
    end
    for _, dtype in ipairs { "f32", "bf16" } do
      for _, layout in ipairs(layouts) do
        local good, problem = pcall(plan_of, layout, dtype)
        if not good then swapped[#swapped + 1] = tostring(problem) end
      end
    end
    lanes.assign = assign
    assert.same({}, swapped)
    assert.is_true(compared > 1000)
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

  it("let two micro-batches pass together, each beside the messages of the other", function()
    --- Messages behind which no kernel of another micro-batch stands before one that waits for it.
    local function bare(layout)
      local list, count, all = plan_of(layout).programs[1].instructions, 0, 0
      for i, made in ipairs(list) do
        if made.lane == 1 and made.phase ~= "finish" and made.phase ~= "norm" then
          local k, beside = i + 1, false
          while list[k] and not (list[k].lane == 0 and list[k].waits[1] == i) do
            beside = beside or list[k].lane == 0 and list[k].micro ~= made.micro
            k = k + 1
          end
          all, count = all + 1, count + (beside and 0 or 1)
        end
      end
      return count, all
    end
    local apart, all = bare { tp = 2 }
    local woven, same = bare { tp = 2, schedule = "gpipe" }
    assert.equal(all, same)
    assert.is_true(woven < apart // 3, ("%d of %d, %d woven"):format(apart, all, woven))
  end)

  it("let the sums of later layers over replicas travel beside earlier ones' backward passes",
    function()
      local program, early, all, last = plan_of({ dp = 2 }).programs[1], 0, 0, nil
      for i, made in ipairs(program.instructions) do
        if made.op == "linear_grad_weight" then last = i end
      end
      for i, made in ipairs(program.instructions) do
        local group = made.op == "all_reduce" and program.groups[made.attrs.group + 1]
        if group == "dp" then
          all, early = all + 1, early + (i < last and 1 or 0)
        end
      end
      assert.is_true(all > 10)
      assert.is_true(early > all - 8, ("%d of %d"):format(early, all)) -- embedding, first layer
    end)

  it("let rows of experts travel beside the products of another wave", function()
    for _, layout in ipairs { { dp = 2, ep = 2 }, { tp = 2, ep = 2 }, { dp = 4, ep = 4 } } do
      local options = mixtures.with({ experts = 16, top_k = 2, hidden = 64, shared = 1 },
        { layers = 3 })
      for axis, size in pairs(layout) do options["layout." .. axis] = size end
      local recipe = models.recipe(options):with { device = "cuda", ["blocks.moe.waves"] = 4 }
      for _, program in ipairs(planner(recipe).programs) do
        assert.is_nil(complaint(program))
        local sent, products = nil, 0
        for _, made in ipairs(program.instructions) do
          if made.op == "exchange" then
            assert.equal(1, made.lane)
            sent = made
          elseif sent and made.lane == 0 then
            products = products + (made.op == "grouped_linear" and 1 or 0)
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
