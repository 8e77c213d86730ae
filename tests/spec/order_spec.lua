-- The order of kernels where rows of experts travel beside them.
local mixtures = require "support.mixtures"
local models = require "support.models"
local order = require "tidelock.plan.order"
local planner = require "tidelock.plan"

-- a rank as pipeline.lua leaves it, from a table --------------------------------------------------

local mib = 1 << 20

--- rows: { name, inputs, outputs, "send" | "exchange" | phase }; buffers by name: MiB. A name in
--- capitals lives as long as the program.
local function rank_of(sizes, rows)
  local self = { spec = { device = "cuda", layout = { ep = 2 } }, rank = 0, buffers = {},
    l = { nodes = { { moe = { tokens = mib, top_k = 1, waves = 1, ep = 2, rows = {} } } },
      length = 16, t = 2 }, instructions = {} }
  local by_name = {}
  for name, size in pairs(sizes) do -- the order does not show
    by_name[name] = { bytes = size * mib, persistent = name:upper() == name, id = name }
    table.insert(self.buffers, by_name[name])
  end
  local function views(names, at)
    local list = {}
    for name in names:gmatch "%a+" do
      local buffer = by_name[name]
      buffer.first, buffer.last = buffer.first or at, at
      list[#list + 1] = { buffer = buffer, dtype = "f32", shape = { buffer.bytes // 4 } }
    end
    return list
  end
  for i, row in ipairs(rows) do
    local ops = { send = "all_reduce", exchange = "exchange" }
    self.instructions[i] = { op = ops[row[4]] or "scale", name = row[1],
      inputs = views(row[2], i), outputs = views(row[3], i),
      attrs = { group = ops[row[4]] and "tp" or nil },
      phase = ops[row[4]] and "forward" or row[4] }
  end
  self.sections = { step = { 1, #rows }, eval = { #rows + 1, 0 } }
  return self
end

local function ordered(sizes, rows)
  local self = rank_of(sizes, rows)
  order.run(self, {})
  local names = {}
  for i, made in ipairs(self.instructions) do names[i] = made.name end
  return table.concat(names, " "), self
end

describe("the order beside messages", function()
  local cases = {
    { "a ready kernel is pulled ahead of one that waits", { x = 1, r = 40, y = 1, z = 1 }, {
      { "make", "", "r" }, { "sum", "r", "r", "send" }, { "use", "r", "y" }, { "other", "x", "z" },
    }, "make sum other use" },
    { "but not one that takes longer than the wait", { x = 900, r = 10, y = 1, z = 900 }, {
      { "make", "", "r" }, { "sum", "r", "r", "send" }, { "use", "r", "y" }, { "long", "x", "z" },
    }, "make sum use long" },
    { "nor one with which more bytes live at once", { X = 10, r = 600, y = 4000, z = 600 }, {
      { "make", "", "r" }, { "sum", "r", "r", "send" }, { "use", "r", "y" }, { "other", "X", "z" },
      { "join", "y z", "y" },
    }, "make sum use other join" },
    { "nor what needs what it would overtake", { r = 40, y = 1, z = 1 }, {
      { "make", "", "r" }, { "sum", "r", "r", "send" }, { "use", "r", "y" }, { "then", "y", "z" },
    }, "make sum use then" },
    { "nor over what is no pass of a micro-batch", { x = 1, r = 40, y = 1, z = 1 }, {
      { "make", "", "r" }, { "sum", "r", "r", "send" }, { "use", "r", "y", "finish" },
      { "other", "x", "z" },
    }, "make sum use other" },
    { "what is needed later is put off", { X = 1, s = 40, r = 40, y = 1 }, {
      { "shared", "X", "s" }, { "rows", "X", "r" }, { "sum", "r", "r", "send" },
      { "use", "r s", "y" },
    }, "rows sum shared use" },
    { "but not what gives memory back", { X = 1, G = 4, dy = 40, a = 1, r = 40, y = 1 }, {
      { "early", "dy", "a" }, { "first", "a", "a", "send" }, { "grad", "dy", "G" },
      { "rows", "X", "r" }, { "sum", "r", "r", "send" }, { "use", "r a", "y" },
    }, "early first grad rows sum use" },
    { "nor is that overtaken", { X = 1, G = 4, dy = 40, a = 1, r = 40, s = 40, y = 1 }, {
      { "early", "dy", "a" }, { "first", "a", "a", "send" }, { "shared", "X", "s" },
      { "grad", "dy", "G" }, { "rows", "X", "r" }, { "sum", "r", "r", "send" },
      { "use", "r a s", "y" },
    }, "early first shared grad rows sum use" },
    { "a kernel does not overtake what reads where it writes", { x = 1, r = 40, y = 1 }, {
      { "make", "x", "r" }, { "sum", "r", "r", "send" }, { "use", "r x", "y" }, { "over", "", "x" },
    }, "make sum use over" },
    { "nor what adds to the same sum", { X = 1, G = 1, r = 40 }, {
      { "make", "", "r" }, { "sum", "r", "r", "send" }, { "use", "r", "G" }, { "more", "X", "G" },
    }, "make sum use more" },
    { "rows of a later wave are not made ahead", { X = 1, r = 40, t = 1, y = 1, z = 1 }, {
      { "make", "", "r" }, { "rows", "r", "r", "exchange" }, { "use", "r", "y" },
      { "take", "X", "t" }, { "later", "t", "t", "exchange" }, { "then", "t", "z" },
    }, "make rows use take later then" },
    { "messages keep their order", { a = 40, b = 1, y = 1 }, {
      { "make", "", "a" }, { "long", "", "y" }, { "first", "a y", "a", "send" },
      { "small", "", "b" }, { "second", "b", "b", "send" },
    }, "make long first small second" },
  }
  for _, case in ipairs(cases) do
    it(case[1], function()
      for _, row in ipairs(case[3]) do row[4] = row[4] or "forward" end
      assert.equal(case[4], (ordered(case[2], case[3])))
    end)
  end

  it("keeps the place of what travels until the kernels beside it have begun", function()
    local rows = { { "make", "", "r" }, { "sum", "r", "q", "send" } }
    for i = 1, 30 do rows[#rows + 1] = { "k" .. i, "X", "Y" } end
    rows[#rows + 1] = { "use", "q", "y" }
    for _, row in ipairs(rows) do row[4] = row[4] or "forward" end
    local function last_of(size)
      local _, self = ordered({ X = 40, Y = 40, y = 1, r = size, q = size }, rows)
      for _, buffer in ipairs(self.buffers) do
        if buffer.id == "r" then return buffer.last end
      end
    end
    -- 13 us on paper, which may be 117; a kernel takes 24 us
    assert.equal(2 + 5, last_of(1))
    assert.equal(2 + 12, last_of(40)) -- 127 us, which may be 265
    assert.equal(#rows, last_of(900))
  end)
end)

-- programs of the planner -------------------------------------------------------------------------

local layouts = { { dp = 2, ep = 2 }, { tp = 2, ep = 2 }, { dp = 2, ep = 2, pp = 2 } }

local function recipe_of(layout, waves)
  local options = mixtures.with({ experts = 16, top_k = 2, hidden = 64, shared = 1,
    balance = { "loss", weight = 0.05 } }, { layers = 2, micro = 4 })
  for axis, size in pairs(layout) do options["layout." .. axis] = size end
  return models.recipe(options):with { device = "cuda", ["blocks.moe.waves"] = waves }
end

--- Plans, and calls `look(self, before, moved)` for each rank: the instructions as written, and the
--- place that each has now.
local function each_rank(layout, waves, look)
  local run, count = order.run, 0
  function order.run(self, known)
    local before, place = table.move(self.instructions, 1, #self.instructions, 1, {}), {}
    run(self, known)
    for i, made in ipairs(self.instructions) do place[made] = i end
    local moved = {}
    for i, made in ipairs(before) do moved[i] = place[made] end
    count = count + 1
    look(self, before, moved)
  end
  local good, plan = pcall(planner, recipe_of(layout, waves))
  order.run = run
  assert.is_true(good, tostring(plan))
  return plan, count
end

--- Whether two instructions touch the same bytes of a buffer, and one of them writes.
local function meet(a, b)
  local sizes = { f32 = 4, bf16 = 2, i32 = 4, i64 = 8, u8 = 1 }
  local function over(one, other)
    for i = 1, #one do
      for k = 1, #other do
        local x, y = one[i], other[k]
        if x and y and x.buffer == y.buffer then
          local function stop(v)
            local bytes = sizes[v.dtype]
            for _, n in ipairs(v.shape) do bytes = bytes * n end
            return (v.offset or 0) + bytes
          end
          if (x.offset or 0) < stop(y) and (y.offset or 0) < stop(x) then return true end
        end
      end
    end
    return false
  end
  return over(a.outputs, b.outputs) or over(a.outputs, b.inputs) or over(a.inputs, b.outputs)
end

describe("the order of a mixture's program", function()
  it("keeps what touches the same bytes as it was written", function()
    local swapped, overtaken = {}, 0
    for _, layout in ipairs(layouts) do
      each_rank(layout, 4, function(_, before, moved)
        for i, one in ipairs(before) do
          for k = i + 1, #before do
            if moved[k] < moved[i] then
              overtaken = overtaken + 1
              if meet(one, before[k]) then swapped[#swapped + 1] = one.op .. " " .. before[k].op end
            end
          end
        end
      end)
    end
    assert.same({}, swapped)
    assert.is_true(overtaken > 500)
  end)

  it("has the messages of all ranks of a stage in the order in which they were written", function()
    for _, layout in ipairs(layouts) do
      local of_stage, ranks = {}, 0
      each_rank(layout, 2, function(self, before)
        local function messages(list)
          local names = {}
          for _, made in ipairs(list) do
            if made.attrs.group then
              names[#names + 1] = ("%s %s %s"):format(made.op, made.attrs.wave, made.attrs.home)
            end
          end
          return names
        end
        local now = messages(self.instructions)
        assert.same(messages(before), now)
        assert.same(of_stage[self.rank] or now, now)
        of_stage[self.rank], ranks = now, ranks + 1
      end)
      assert.equal((layout.pp or 1) * layout.ep, ranks)
    end
  end)

  it("has the shared expert beside the first rows that travel", function()
    local plan = each_rank({ dp = 2, ep = 2 }, 4, function() end)
    local list, first = plan.ranks[1].instructions, {}
    for i, made in ipairs(list) do
      if made.path == "layers.1.moe.shared" and made.phase == "forward" then
        first.shared = first.shared or i
      elseif made.path == "layers.1.moe" and made.phase == "forward" then
        first[made.op] = first[made.op] or i
      end
    end
    assert.is_true(first.exchange < first.shared and first.shared < first.grouped_linear)
  end)

  it("lets no kernel wait for rows that it does not need", function()
    local sizes, waits = { f32 = 4, bf16 = 2, i32 = 4, i64 = 8, u8 = 1 }, 0
    local function touch(program, operands, others)
      for _, a in ipairs(operands) do
        for _, b in ipairs(others) do
          local x, y = program.tensors[a], program.tensors[b]
          local function stop(t)
            local bytes = sizes[t.dtype]
            for _, n in ipairs(t.shape) do bytes = bytes * n end
            return t.offset + bytes
          end
          if x and y and x.offset < stop(y) and y.offset < stop(x) then return true end
        end
      end
      return false
    end
    for _, layout in ipairs(layouts) do
      for _, program in ipairs(planner(recipe_of(layout, 4)).programs) do
        local range = program.sections.step
        for i = range[1], range[1] + range[2] - 1 do
          local made = program.instructions[i]
          for _, other in ipairs(made.lane == 0 and made.waits or {}) do
            local message = program.instructions[other]
            waits = waits + 1
            assert.is_true(touch(program, made.inputs, message.outputs) or touch(program,
              made.outputs, message.outputs), ("%d %s, %d %s"):format(i, made.op, other,
              message.op))
          end
        end
      end
    end
    assert.is_true(waits > 100)
  end)
end)
