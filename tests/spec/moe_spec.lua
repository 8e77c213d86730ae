-- The operators of mixtures of experts: kernels/moe/moe.h.
local core = require "tidelock.core"
local moe = require "support.moe_cases"
local order = require "support.moe_order_cases"
local promises = require "support.promises"
local support = require "support"

promises.describe(describe, it, moe.cases)
promises.describe(describe, it, order.cases)

local plain = { layer = 2, kind = 0, groups = 1, top_groups = 1, normalize = 1, scale = 1 }

local function route(values, k, attrs)
  local rows, experts = #values, #values[1]
  local z = core.tensor("f32", { rows, experts }, values)
  local weight, expert = support.poison("f32", { rows, k }), support.poison("i32", { rows, k })
  core.call("route", { z, false }, { weight, expert }, attrs or plain)
  return weight, expert
end

describe("the router", function()
  it("breaks ties by the lowest expert (H08)", function()
    for _, rows in ipairs { 1, 8, 1000 } do
      local values, expected = {}, {}
      for i = 1, rows do
        values[i] = { 1, 2, 2, 2, 0, 2, -math.huge, 2 }
        expected[i] = { 1, 2, 3 }
      end
      for kind = 0, 2 do
        local _, expert = route(values, 3, { layer = 0, kind = kind, groups = 1, top_groups = 1,
          normalize = 1, scale = 1 })
        assert.same(expected, expert:to_table())
      end
    end
    local equal = {}
    for i = 1, 64 do equal[i] = 0.5 end
    local _, expert = route({ equal }, 8)
    assert.same({ { 0, 1, 2, 3, 4, 5, 6, 7 } }, expert:to_table())
    _, expert = route({ { -0.0, 0.0 }, { 0.0, -0.0 } }, 1)
    assert.same({ 0, 0 }, expert:flat())
  end)

  it("refuses rows that are not finite, by layer and token (H09)", function()
    local function message(row, k)
      local values = {}
      for i = 1, 7 do values[i] = { 1, 2, 3, 4 } end
      values[6] = row
      local good, text = pcall(route, values, k or 2)
      assert.is_false(good)
      return text
    end
    local nan, inf = 0 / 0, math.huge
    assert.matches("non%-finite router logits: layer 2, token 5 is NaN", message { 1, nan, 3, 4 })
    assert.matches("layer 2, token 5 is infinite", message { 1, inf, 3, 4 })
    assert.matches("layer 2, token 5 is %-infinity", message { -inf, -inf, -inf, -inf })
    assert.matches("layer 2, token 5 is %-infinity", message({ -inf, 1, -inf, -inf }, 2))
    assert.is_true(pcall(route, { { -inf, 1, -inf, 2 } }, 2))
  end)

  it("has a gradient that is the slope of its weights", function()
    for _, case in ipairs(moe.cases) do
      if case.op == "route_grad" and not case.inputs("f32", 10)[5] then
        local inputs = case.inputs("f32", 10)
        local flat, ids, d = inputs[1]:flat(), inputs[2]:flat(), {}
        local experts, k = #flat // 10, #ids // 10
        local z, list = { table.unpack(flat, 1, experts) }, { table.unpack(ids, 1, k) }
        for i = 1, k do d[i] = support.fill_value(3, i) end
        local a = { kind = case.attrs.kind, normalize = case.attrs.normalize,
          scale = case.attrs.scale, groups = 1 }
        promises.check_slopes(function(x) return (moe.route_row(x, nil, a, k, list)) end, z, d,
          moe.route_grad_row(z, list, d, a))
      end
    end
  end)

  it("keeps the balance loss of a sample apart from its neighbours (H19)", function()
    local chosen, z, ids = { 0, 0, 1, 2, 3, 3, 3, 3 }, {}, {}
    for i, e in ipairs(chosen) do
      z[i] = { 0, 0, 0, 0 }
      z[i][e + 1], ids[i] = 200, e
    end
    local function losses(first, samples)
      local rows = 4 * samples
      local logits = core.tensor("f32", { 8, 4 }, z):narrow(1, first, rows)
      local expert = core.tensor("i32", { 8, 1 }, ids):narrow(1, first, rows)
      local share = support.poison("f32", { samples, 4 })
      local load = support.poison("f32", { samples, 4 })
      core.call("route_sums", { logits, expert }, { share, load }, { samples = samples, runs = 4 })
      local loss = support.poison("f32", { samples })
      core.call("balance_loss", { share, load }, { loss }, { length = 4 })
      return loss:flat()
    end
    assert.same({ 1.5, 4.0 }, losses(1, 2))
    assert.same({ 1.5 }, losses(1, 1))
    assert.same({ 4.0 }, losses(5, 1))
  end)
end)

describe("home order", function()
  local listing = { 3, 0, -1, 4, 1, 2 }

  local function ordered(ids, rows, k)
    local place, list = support.poison("i32", { rows, k }), support.poison("i32", { rows * k })
    local starts = support.poison("i32", { #listing + 1 })
    core.call("expert_order", { core.tensor("i32", { rows, k }, ids) }, { place, list, starts },
      { experts = listing })
    return place:flat(), list:flat(), starts:flat()
  end

  it("sorts by listing, then token, then slot", function()
    local ids = moe.ids(20, 5, 3, 7)
    local place, list, starts = ordered(ids, 20, 3)
    local row = 0
    for p, expert in ipairs(listing) do
      assert.equal(row, starts[p])
      for i, id in ipairs(ids) do
        if id == expert then
          assert.equal(i - 1, list[row + 1])
          assert.equal(row, place[i])
          row = row + 1
        end
      end
    end
    assert.equal(60, starts[#starts])
  end)

  it("holds for all tokens at one expert, and for one token", function()
    local place = ordered({ 4, 4, 4, 4 }, 4, 1)
    assert.same({ 0, 1, 2, 3 }, place)
    assert.same({ 3, 1, 4, 0, 2 }, (ordered({ 1, 0, 2, 3, 4 }, 1, 5)))
  end)

  it("refuses experts that are not there", function()
    assert.has_error(function() ordered({ 5 }, 1, 1) end,
      "expert_order: entry 0 is expert 5; there are 5")
    assert.has_error(function() ordered({ -1 }, 1, 1) end,
      "expert_order: entry 0 is expert -1; there are 5")
  end)
end)

describe("counts and loads", function()
  it("are those of pieces of a sample, wherever its run begins", function()
    local ids = { 0, 1, 1, 2, 2, 2, 0, 1 }
    local counts = support.poison("i32", { 4, 3 })
    core.call("expert_counts", { core.tensor("i32", { 8, 1 }, ids) }, { counts },
      { samples = 2, pieces = 2, block = 6, token_first = 4 })
    assert.same({ { 1, 1, 0 }, { 0, 1, 1 }, { 0, 0, 2 }, { 1, 1, 0 } }, counts:to_table())
    local load = support.poison("i64", { 3 })
    core.call("expert_load", { counts }, { load }, { mode = 0 })
    core.call("expert_load", { counts }, { load }, { mode = 1 })
    assert.same({ 4, 6, 6 }, load:flat())
  end)

  it("give the segments of a rank, sources in order", function()
    -- 4 ranks, two hold runs of one sample; 2 pieces; 2 waves of one expert on each rank
    local list = {}
    for i = 1, 8 * 8 do list[i] = (i * 5) % 4 end
    local counts = core.tensor("i32", { 8, 8 }, list)
    local offsets, segments = support.poison("i32", { 2 }), support.poison("i32", { 1, 5 })
    core.call("expert_segments", { counts }, { offsets, segments }, { ranks = 4, share = 2,
      position = 2, waves = 2, wave = 1, experts = { 0, 1, 2, 3, 4, 5, 6, 7 } })
    local function n(rank, piece) return list[(rank * 2 + piece) * 8 + 6 + 1] end
    local a, b = n(0, 0) + n(1, 0), n(0, 1) + n(1, 1)
    local c, d = n(2, 0) + n(3, 0), n(2, 1) + n(3, 1)
    assert.same({ 0, a, a + b, a + b + c, a + b + c + d }, segments:flat())
    assert.same({ 0, a + b + c + d }, offsets:flat())
  end)
end)

describe("products of experts", function()
  --- dW of experts with these counts of rows, hidden 256 and expert hidden 128, poisoned before.
  local function gradient(counts, dtype)
    local rows, starts = 0, {}
    for _, n in ipairs(counts) do
      starts[#starts + 1] = rows
      rows = rows + n
      starts[#starts + 1] = rows
    end
    local dweight = support.poison("f32", { #counts, 128 * 256 })
    core.call("grouped_linear_grad_weight", { support.filled(dtype, { rows, 128 }, 1),
      support.filled(dtype, { rows, 256 }, 2), core.tensor("i32", { #counts, 2 }, starts) },
      { dweight }, { first = 0, samples = 1, mode = 0, leaves = 1 })
    return dweight
  end

  it("write zeros where nothing arrived (H11)", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local six, three = gradient({ 5, 0, 7, 0, 0, 3 }, dtype), gradient({ 5, 7, 3 }, dtype)
      local zero = core.tensor("f32", { 1, 128 * 256 })
      for i, at in ipairs { 1, 3, 6 } do
        assert.bits(three:narrow(1, i, 1), six:narrow(1, at, 1))
      end
      for _, at in ipairs { 2, 4, 5 } do assert.bits(zero, six:narrow(1, at, 1)) end
    end
    gradient({ 162, 0, 2577, 446, 0, 83 }, "f32")
  end)

  it("give a row the bits that it has alone", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local x, w = support.filled(dtype, { 40, 64 }, 1), support.filled(dtype, { 3, 32 * 64 }, 2)
      local y = support.poison(dtype, { 40, 32 })
      core.call("grouped_linear", { x, core.tensor("i32", { 4 }, { 0, 7, 7, 40 }), w }, { y },
        { parts = 1 })
      for row = 1, 40 do
        local alone = support.poison(dtype, { 1, 32 })
        local offsets = row <= 7 and { 0, 1, 1, 1 } or { 0, 0, 0, 1 }
        core.call("grouped_linear", { x:narrow(1, row, 1), core.tensor("i32", { 4 }, offsets), w },
          { alone }, { parts = 1 })
        assert.bits(alone, y:narrow(1, row, 1))
      end
    end
  end)

  it("leave the rows past the last alone", function()
    local nan = support.poison("f32", { 8, 16 })
    local y = support.poison("f32", { 8, 4 })
    core.call("grouped_linear", { nan, core.tensor("i32", { 2 }, { 0, 0 }),
      support.filled("f32", { 1, 64 }, 1) }, { y }, { parts = 1 })
    assert.bits(support.poison("f32", { 8, 4 }), y)
  end)

  it("resume a chain over pieces with the bits of one call", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local dy, x = support.filled(dtype, { 50, 8 }, 1), support.filled(dtype, { 50, 16 }, 2)
      local segments = core.tensor("i32", { 1, 4 }, { 0, 21, 21, 50 })
      local one, two = support.poison("f32", { 1, 128 }), support.poison("f32", { 1, 128 })
      local function sum(y, first, samples, mode)
        core.call("grouped_linear_grad_weight", { dy, x, segments }, { y },
          { first = first, samples = samples, mode = mode, leaves = 1 })
      end
      sum(one, 0, 3, 0)
      sum(two, 0, 1, 0)
      sum(two, 1, 2, 1)
      assert.bits(one, two)
    end
  end)

  it("add leaves as the tree of their sums, empty ones as +0", function()
    local starts = { 0, 5, 5, 21, 30, 30, 30, 47, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50 }
    for _, dtype in ipairs { "f32", "bf16" } do
      local dy, x = support.filled(dtype, { 50, 8 }, 1), support.filled(dtype, { 50, 16 }, 2)
      local segments = core.tensor("i32", { 2, 9 }, starts)
      local function sum(y, first, samples, mode, leaves)
        core.call("grouped_linear_grad_weight", { dy, x, segments }, { y },
          { first = first, samples = samples, mode = mode, leaves = leaves })
        return y
      end
      local function added(a, b)
        core.call("binary", { a, b }, { a }, { kind = 0, broadcast = 0 })
        return a
      end
      local function tree(first, samples, leaves)
        if leaves == 1 then
          return sum(support.poison("f32", { 2, 128 }), first, samples, 0, 1)
        end
        local half = samples // 2
        return added(tree(first, half, leaves // 2), tree(first + half, half, leaves // 2))
      end
      for _, leaves in ipairs { 2, 4, 8 } do
        assert.bits(tree(0, 8, leaves), sum(support.poison("f32", { 2, 128 }), 0, 8, 0, leaves))
      end
      local filled = support.filled("f32", { 2, 128 }, 3)
      local two = support.filled("f32", { 2, 128 }, 3)
      assert.bits(added(filled, tree(0, 8, 4)), sum(two, 0, 8, 2, 4))
    end
  end)

  it("refuse leaves that pieces or a resumed chain do not fill", function()
    local dy, x = support.filled("f32", { 4, 8 }, 1), support.filled("f32", { 4, 16 }, 2)
    local segments = core.tensor("i32", { 1, 4 }, { 0, 1, 2, 4 })
    for text, a in pairs { ["3 pieces, mode 0, in 2 leaves"] = { 3, 0, 2 },
      ["2 pieces, mode 1, in 2 leaves"] = { 2, 1, 2 }, ["3 pieces, mode 0, in 3"] = { 3, 0, 3 },
      ["leaves is 0"] = { 3, 0, 0 } } do
      local good, message = pcall(core.call, "grouped_linear_grad_weight", { dy, x, segments },
        { support.poison("f32", { 1, 128 }) }, { first = 0, samples = a[1], mode = a[2],
          leaves = a[3] })
      assert.is_false(good)
      assert.truthy(message:find(text, 1, true), message)
    end
  end)

  it("refuse offsets that do not fit", function()
    for text, list in pairs { ["offset 1 is 9; rows 0 to 8 are left"] = { 0, 9 },
      ["offset 0 is 1; rows 0 to 8 are left"] = { 1, 3 } } do
      local good, message = pcall(core.call, "grouped_linear", {
        support.filled("f32", { 8, 16 }, 1), core.tensor("i32", { 2 }, list),
        support.filled("f32", { 1, 64 }, 1) },
        { support.poison("f32", { 8, 4 }) }, { parts = 1 })
      assert.is_false(good)
      assert.is_truthy(message:find(text, 1, true), message)
    end
  end)
end)
