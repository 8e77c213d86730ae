local core = require "tidelock.core"
local support = require "support"
local programs = require "support.programs"

local function tensors(dtype, shape, count, value)
  local size, list = 1, {}
  for _, n in ipairs(shape) do size = size * n end
  for rank = 0, count - 1 do
    local values = {}
    for i = 0, size - 1 do values[i + 1] = value(rank, i) end
    list[rank + 1] = core.tensor(dtype, shape, values)
  end
  return list
end

--- The tree over values[first .. first + n - 1], in f32.
local function tree(values, first, n)
  if n == 1 then return values[first] end
  return core.f32(tree(values, first, n // 2) + tree(values, first + n // 2, n // 2))
end

local function fill(rank, i) return core.f32(support.fill_value(rank + 1,
  i) * 2.0 ^ (rank * 3 % 11)) end

local probes = {
  Q4 = { values = { 2 ^ 24, 1, 1, -2 ^ 24 }, tree = 1 },
  P4 = { values = { 1e8, 1, -1e8, 1 }, tree = 0 },
  P8 = { values = { 2 ^ 24, 1, 1, 1, -2 ^ 24, 1, 1, 1 }, tree = 5 },
  P16 = { values = { 1, 1, 2 ^ 24, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -2 ^ 24 }, tree = 13 },
}

local sizes = { 1, 2, 3, 15, 17, 63, 65, 511, 1023, 4095, 4097, 8191 }

describe("all_reduce", function()
  for name, probe in pairs(probes) do
    it("adds in the tree's order, probe " .. name, function()
      for _, size in ipairs { 1, 7, 8191 } do
        local sign = function(i) return i % 2 == 0 and 1 or -1 end
        local x = tensors("f32", { size }, #probe.values, function(rank, i)
          return sign(i) * probe.values[rank + 1]
        end)
        core.comm("all_reduce", x, x)
        for rank = 1, #x do
          for i, value in ipairs(x[rank]:flat()) do
            if value ~= sign(i - 1) * probe.tree then
              error(("rank %d element %d: %g"):format(rank - 1, i, value))
            end
          end
        end
      end
    end)
  end

  it("gives one answer for every size, in place or not, on every rank", function()
    for _, n in ipairs { 1, 2, 4, 8 } do
      for _, size in ipairs(sizes) do
        local x = tensors("f32", { size }, n, fill)
        local y = tensors("f32", { size }, n, function() return 0 end)
        core.comm("all_reduce", x, y)
        local expected = {}
        for i = 1, size do
          local values = {}
          for rank = 0, n - 1 do values[rank + 1] = fill(rank, i - 1) end
          expected[i] = tree(values, 1, n)
        end
        expected = core.tensor("f32", { size }, expected)
        for rank = 1, n do assert.bits(expected, y[rank]) end
        core.comm("all_reduce", x, x)
        for rank = 1, n do assert.bits(expected, x[rank]) end
      end
    end
  end)

  it("refuses a number of ranks that is no power of two", function()
    local x = tensors("f32", { 4 }, 3, fill)
    assert.matches("a tree over 3 ranks: the number of ranks must be a power of two",
      programs.message(core.comm, "all_reduce", x, x))
  end)

  it("keeps the sign of zero when there is one rank", function()
    local x = { core.tensor("f32", { 2 }, { -0.0, 1 }) }
    local y = { core.tensor("f32", { 2 }) }
    core.comm("all_reduce", x, y)
    assert.bits(x[1], y[1])
  end)
end)

describe("all_reduce_max", function()
  it("finds the largest, with +0 above -0, whatever the order of ranks", function()
    local inf = math.huge
    for _, order in ipairs { { 1, 2, 3 }, { 3, 2, 1 }, { 2, 3, 1 } } do
      local rows = { { -1, -0.0, -inf, 0.0, 5 }, { -2, 0.0, -inf, -0.0, 7 }, { -3, -0.0, -inf, -1,
        6 } }
      local x = {}
      for rank = 1, 3 do x[rank] = core.tensor("f32", { 5 }, rows[order[rank]]) end
      core.comm("all_reduce_max", x, x)
      local expected = core.tensor("f32", { 5 }, { -1, 0.0, -inf, 0.0, 7 })
      for rank = 1, 3 do assert.bits(expected, x[rank]) end
    end
  end)

  it("hands NaN on", function()
    for nan = 1, 4 do
      local x = tensors("f32", { 3 }, 4,
        function(rank) return rank + 1 == nan and 0 / 0 or rank end)
      core.comm("all_reduce_max", x, x)
      for rank = 1, 4 do
        for _, value in ipairs(x[rank]:flat()) do assert.is_true(value ~= value) end
      end
    end
  end)
end)

describe("all_reduce_count", function()
  it("adds integers that no float could hold, over any number of ranks", function()
    for n = 1, 5 do
      local x = tensors("i64", { 2 }, n, function(rank) return (1 << 60) + rank end)
      core.comm("all_reduce_count", x, x)
      local sum = 0
      for rank = 0, n - 1 do sum = sum + (1 << 60) + rank end
      for rank = 1, n do assert.same({ sum, sum }, x[rank]:flat()) end
    end
  end)
end)

describe("reduce_scatter", function()
  it("gives each rank the tree over its pieces", function()
    for _, n in ipairs { 1, 2, 4, 8 } do
      for _, shape in ipairs { { 1, 1 }, { 3, 5 }, { 7, 64 }, { 2, 8191 }, { 64, 3 } } do
        local outer, piece = shape[1], shape[2]
        local x = tensors("f32", { outer, n, piece }, n, fill)
        local y = tensors("f32", { outer, piece }, n, function() return 0 end)
        core.comm("reduce_scatter", x, y, { outer = outer })
        for me = 0, n - 1 do
          local expected = {}
          for o = 0, outer - 1 do
            for i = 0, piece - 1 do
              local values = {}
              for rank = 0, n - 1 do values[rank + 1] = fill(rank, (o * n + me) * piece + i) end
              expected[#expected + 1] = tree(values, 1, n)
            end
          end
          assert.bits(core.tensor("f32", { outer, piece }, expected), y[me + 1])
        end
      end
    end
  end)

  it("refuses sizes that do not fit", function()
    local x = tensors("f32", { 10 }, 4, fill)
    assert.matches("10 elements do not fit 4 ranks",
      programs.message(core.comm, "reduce_scatter", x, x))
  end)
end)

describe("all_gather", function()
  it("puts the pieces of all ranks side by side, for every dtype and any number of ranks",
    function()
    for _, dtype in ipairs { "f32", "bf16", "i32", "i64", "u8" } do
      for n = 1, 5 do
        for _, shape in ipairs { { 1, 1 }, { 3, 5 }, { 2, 8191 } } do
          local outer, piece = shape[1], shape[2]
          local value = function(rank, i) return (rank * 31 + i) % 251 end
          local x = tensors(dtype, shape, n, value)
          local y = tensors(dtype, { outer, n, piece }, n, function() return 0 end)
          core.comm("all_gather", x, y, { outer = outer })
          local expected = {}
          for o = 0, outer - 1 do
            for rank = 0, n - 1 do
              for i = 0, piece - 1 do expected[#expected + 1] = value(rank, o * piece + i) end
            end
          end
          expected = core.tensor(dtype, { outer, n, piece }, expected)
          for rank = 1, n do assert.bits(expected, y[rank]) end
        end
      end
    end
  end)
end)

describe("broadcast and barrier", function()
  it("copy the root's bytes, and nothing", function()
    for root = 0, 2 do
      local x = tensors("bf16", { 33 }, 3, function(rank, i) return rank * 64 + i end)
      core.comm("broadcast", x, x, { root = root })
      for rank = 1, 3 do
        for i, value in ipairs(x[rank]:flat()) do assert.equal(root * 64 + i - 1, value) end
      end
      core.comm("barrier", x, x)
    end
    local x = tensors("f32", { 1 }, 2, fill)
    assert.matches("broadcast from position 2 of a group of 2",
      programs.message(core.comm, "broadcast", x, x, { root = 2 }))
  end)

  it("are named in the list of collectives", function()
    assert.matches("no collective all_to_one; there are all_gather, ",
      programs.message(core.comm, "all_to_one", {}, {}))
  end)
end)

-- H02: one order for every size, in and out of alignment.
describe("a sum over four ranks", function()
  it("does not change its order with the size", function()
    for _, shape in ipairs { { 1, 8192 }, { 7, 8192 }, { 8, 8192 }, { 1, 8190 }, { 65, 819 } } do
      local probe = probes.Q4.values
      local x = tensors("f32", shape, 4, function(rank, i)
        return (i % shape[2] % 2 == 0 and 1 or -1) * probe[rank + 1]
      end)
      core.comm("all_reduce", x, x)
      for rank = 1, 4 do
        for i, value in ipairs(x[rank]:flat()) do
          local expected = (i - 1) % shape[2] % 2 == 0 and 1 or -1
          if value ~= expected then error(("element %d: %g"):format(i, value)) end
        end
      end
    end
  end)
end)

describe("a group", function()
  local function zeros(shape, n) return tensors("f32", shape, n, function() return 0 end) end

  it("has every collective, and gives the bits of one call by itself", function()
    local group <close> = core.group(4)
    assert.equal(4, group:size())
    local cases = {
      all_gather = { { 2, 5 }, { 2, 4, 5 }, { outer = 2 } },
      reduce_scatter = { { 2, 4, 5 }, { 2, 5 }, { outer = 2 } },
      all_reduce = { { 9000 }, { 9000 } }, all_reduce_max = { { 65 }, { 65 } },
      broadcast = { { 33 }, { 33 }, { root = 2 } },
    }
    for round = 1, 3 do
      for name, case in pairs(cases) do
        local x = tensors("f32", case[1], 4, function(rank, i) return fill(rank + round, i) end)
        local expected, y = zeros(case[2], 4), zeros(case[2], 4)
        core.comm(name, x, expected, case[3])
        group[name](group, x, y, case[3])
        for rank = 1, 4 do assert.bits(expected[rank], y[rank]) end
      end
      local x = tensors("i64", { 2 }, 4, function(rank) return rank end)
      group:all_reduce_count(x, x)
      assert.same({ 6, 6 }, x[4]:flat())
      group:barrier()
    end
  end)

  it("refuses what does not fit, and goes on", function()
    local group <close> = core.group(2)
    local x = tensors("f32", { 4 }, 2, fill)
    local odd = { x[1], core.tensor("f32", { 5 }) }
    assert.matches("rank 1 gives 5 elements and gets 5, must be 4 and 4",
      programs.message(group.all_reduce, group, odd, odd))
    local three = { x[1], x[2], x[1] }
    assert.matches("3 tensors for a group of 2 ranks",
      programs.message(group.all_reduce, group, three, three))
    assert.matches("the lists differ in length",
      programs.message(group.all_reduce, group, x, three))
    group:all_reduce(x, x)
    assert.bits(x[1], x[2])
  end)

  it("ends on all ranks when a collective fails, and says so afterwards", function()
    local group <close> = core.group(3)
    local x = tensors("f32", { 4 }, 3, fill)
    assert.matches("rank %d: a tree over 3 ranks: the number of ranks must be a power of two",
      programs.message(group.all_reduce, group, x, x))
    assert.matches("this group has failed before and cannot go on: open another one",
      programs.message(group.barrier, group))
  end)

  it("can be closed twice and not used afterwards", function()
    local group = core.group(2)
    group:close()
    group:close()
    assert.matches("group is closed", programs.message(group.barrier, group))
    assert.matches("1 to 4096 ranks", programs.message(core.group, 0))
    core.group(3) -- left to the collector
    collectgarbage()
  end)
end)

describe("collectives of a program", function()
  it("let nobody change what others still read", function()
    local n, size = 4, 1 << 15
    for _, op in ipairs { "all_gather", "reduce_scatter", "all_reduce" } do
      local b = programs.new { "all" }
      local from, to = op == "reduce_scatter" and n or 1, op == "all_gather" and n or 1
      local attrs = { group = 0, outer = op ~= "all_reduce" and 1 or nil }
      local x, y = b:tensor("f32", { from * size }), {}
      for turn = 1, 6 do
        y[turn] = b:tensor("f32", { to * size })
        b:add("step", "fill", {}, { x }, { value = turn })
        b:add("step", op, { x }, { y[turn] }, attrs)
        b:add("step", "fill", {}, { x }, { value = -1 })
      end
      local p <close> = b:program()
      local ranks <close> = programs.ranks(p, n, { delay_us = 200 })
      for step = 0, 3 do ranks:run("step", { step = step }) end
      for rank = 0, n - 1 do
        for turn = 1, 6 do
          local expected = core.tensor("f32", { to * size })
          expected:fill(op == "all_gather" and turn or turn * n)
          assert.bits(expected, ranks:read(rank, y[turn]))
        end
      end
    end
  end)
end)

describe("an exchange of rows of two experts", function()
  --- Rank r has counts[r] rows for each expert and owns expert r. `room`: rows of the output.
  local function exchanged(hops, room, stage)
    local counts, width = { { 3, 2 }, { 1, 4 } }, 3
    local b = programs.new { "all" }
    local x = b:tensor("f32", { 5, width }, { persistent = true })
    local table_of = b:tensor("i32", { 2, 2 }, { persistent = true })
    local y = b:tensor("f32", { room, width })
    local outputs = { y, hops > 0 and b:tensor("f32", { stage, width }) or 0 }
    b:add("step", "exchange", { x, table_of }, outputs, { group = 0, share = 1, waves = 1,
      wave = 0, home = 0, hops = hops, island = 1, experts = { 0, 1 } })
    local p <close> = b:program()
    local ranks <close> = programs.ranks(p, 2)
    for rank = 0, 1 do
      ranks:write(rank, x, support.filled("f32", { 5, width }, rank + 1))
      ranks:write(rank, table_of, core.tensor("i32", { 2, 2 }, counts))
    end
    ranks:run("step")
    return ranks:read(0, y), ranks:read(1, y)
  end

  it("brings each owner its rows, homes ascending, whatever the way", function()
    local a, b = support.filled("f32", { 5, 3 }, 1), support.filled("f32", { 5, 3 }, 2)
    for hops = 0, 2 do
      local first, second = exchanged(hops, 6, 12)
      assert.bits(a:narrow(1, 1, 3), first:narrow(1, 1, 3))
      assert.bits(b:narrow(1, 1, 1), first:narrow(1, 4, 1))
      assert.bits(a:narrow(1, 4, 2), second:narrow(1, 1, 2))
      assert.bits(b:narrow(1, 2, 4), second:narrow(1, 3, 4))
    end
  end)

  it("writes no row that has no place", function()
    assert.matches("an exchange of 5 rows for 6 has room for 5 and 5",
      programs.message(exchanged, 0, 5, 0))
    assert.matches("2 rows from an island, room for 1", programs.message(exchanged, 1, 6, 1))
    assert.matches("5 rows in a ring, room for 4", programs.message(exchanged, 2, 6, 8))
  end)
end)
