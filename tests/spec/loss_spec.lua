local core = require "tidelock.core"
local loss = require "support.loss_cases"
local promises = require "support.promises"
local support = require "support"

promises.describe(describe, it, loss.cases)

describe("the oracle of the loss", function()
  it("has the gradient of central differences", function()
    local rows, columns = 3, 7
    local z = promises.spread("f32", { rows * columns }, 1, 3):flat()
    local targets, dloss = { 2, -1, 6 }, { 0.5, 2, -1 }
    for _, terms in ipairs { { 0, 0 }, { 0.1, 0 }, { 0.2, 0.01 } } do
      promises.check_slopes(function(x)
        return loss.direct(x, targets, rows, columns, terms[1], terms[2])
      end, z, dloss, loss.direct_grad(z, targets, dloss, rows, columns, terms[1], terms[2]))
    end
  end)
end)

--- The whole loss as `shards` ranks compute it: exact maximum, trees of the partial sums.
local function sharded(z, targets, vocab, leaves, shards, fields)
  local rows, width = z:shape()[1], z:shape()[2]
  local part, parts, best = width // shards, {}, {}
  local values = z:flat()
  for rank = 0, shards - 1 do
    local slice = {}
    for r = 0, rows - 1 do
      for c = 1, part do slice[#slice + 1] = values[r * width + rank * part + c] end
    end
    local m = core.tensor("f32", { rows })
    parts[rank + 1] = { z = core.tensor(z:dtype(), { rows, part }, slice), first = rank * part,
      columns = math.max(0, math.min(part, vocab - rank * part)) }
    core.call("row_max", { parts[rank + 1].z }, { m }, { columns = parts[rank + 1].columns })
    for r, value in ipairs(m:flat()) do best[r] = math.max(best[r] or -math.huge, value) end
  end
  local m, stacks = core.tensor("f32", { rows }, best), { {}, {}, {} }
  for _, p in ipairs(parts) do
    local outs = {}
    for i = 1, 3 do outs[i] = support.poison("f32", { rows }) end
    core.call("row_sum_exp", { p.z, m, targets }, outs,
      { columns = p.columns, first = p.first, leaves = leaves // shards })
    for i = 1, 3 do
      for _, value in ipairs(outs[i]:flat()) do stacks[i][#stacks[i] + 1] = value end
    end
  end
  local sums = {}
  for i = 1, 3 do
    sums[i] = core.tensor("f32", { rows })
    core.call("fold", { core.tensor("f32", { shards, rows }, stacks[i]) }, { sums[i] }, {})
  end
  local y = support.poison("f32", { rows })
  fields = fields or { smoothing = 0, z = 0 }
  core.call("cross_entropy", { m, sums[1], sums[2], sums[3], targets }, { y },
    { vocab = vocab, smoothing = fields.smoothing, z = fields.z })
  local dz, dloss = {}, core.tensor("f32", { rows })
  dloss:fill(0.25)
  for rank, p in ipairs(parts) do
    dz[rank] = support.poison(z:dtype(), { rows, part })
    core.call("cross_entropy_grad", { p.z, m, sums[1], targets, dloss }, { dz[rank] },
      { columns = p.columns, first = p.first, vocab = vocab, smoothing = fields.smoothing,
        z = fields.z })
  end
  return y, dz, part
end

describe("the loss over a sharded vocabulary", function()
  it("has one set of bits on 1, 2 and 4 ranks, gradients too", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      for _, fields in ipairs { { smoothing = 0, z = 0 }, { smoothing = 0.1, z = 1e-3 } } do
        local z, targets = promises.spread(dtype, { 9, 128 }, 1, 5), loss.targets(9, 100)
        local whole, gradient = sharded(z, targets, 100, 4, 1, fields)
        local rows = gradient[1]:to_table()
        for _, shards in ipairs { 2, 4 } do
          local y, dz, part = sharded(z, targets, 100, 4, shards, fields)
          assert.bits(whole, y)
          for rank, slice in ipairs(dz) do
            for r, values in ipairs(slice:to_table()) do
              for c, value in ipairs(values) do
                assert.equal(rows[r][(rank - 1) * part + c], value)
              end
            end
          end
        end
      end
    end
  end)

  it("is log V for zero logits, V = 50257, at any number of ranks", function()
    local width = 50304 -- 50,257 rounded up to 16 x 4
    local z, targets = core.tensor("f32", { 2, width }), core.tensor("i32", { 2 }, { 0, 50256 })
    local first = sharded(z, targets, 50257, 4, 1)
    assert.near(10.824905, first:flat()[1], 1e-6)
    assert.near(10.824905, first:flat()[2], 1e-6)
    for _, shards in ipairs { 2, 4 } do
      assert.bits(first, (sharded(z, targets, 50257, 4, shards)))
    end
    for _, smoothing in ipairs { 0.1, 0.5 } do
      local smooth = sharded(z, targets, 50257, 4, 2, { smoothing = smoothing, z = 0 })
      assert.near(10.824905, smooth:flat()[1], 2e-6)
    end
  end)
end)

describe("the largest logit of a row", function()
  it("is +0 where all are -0, and of true columns alone", function()
    local z = core.tensor("f32", { 2, 4 }, { -0.0, -0.0, -0.0, 9, -3, -2, -5, 9 })
    local m = support.poison("f32", { 2 })
    core.call("row_max", { z }, { m }, { columns = 3 })
    assert.same({ 0, core.tensor("f32", { 1 }, { -2 }):bits()[1] }, m:bits())
  end)
end)

describe("targets that are ignored", function()
  local z = promises.spread("f32", { 6, 16 }, 1, 4)

  it("have loss and gradient +0, also beside logits that are not finite", function()
    local values = z:flat()
    for c = 1, 16 do values[16 + c] = c == 3 and 0 / 0 or math.huge end
    local y, dz = sharded(core.tensor("f32", { 6, 16 }, values),
      core.tensor("i32", { 6 }, { 3, -100, -1, 15, 0, 7 }), 16, 1, 1)
    assert.same({ 0, 0 }, { y:bits()[2], y:bits()[3] })
    local bits = dz[1]:bits()
    for i = 17, 48 do assert.equal(0, bits[i]) end
  end)

  it("do not count: case H15, nothing to learn from", function()
    local none = core.tensor("i32", { 3 }, { -1, -1, -100 })
    local count = core.tensor("i64", { 1 }, { 0 })
    local dloss, mean = support.poison("f32", { 3 }), support.poison("f32", { 1 })
    core.call("loss_seed", { none, count }, { dloss }, {})
    core.call("loss_finish", { core.tensor("f32", { 1 }), count }, { mean }, {})
    assert.same({ 0, 0, 0 }, dloss:bits())
    assert.same({ 0 }, mean:bits())
    local norm, control = support.poison("f32", { 1 }), support.poison("f32", { 2 })
    core.call("grad_norm", { core.tensor("f32", { 1 }), count, mean }, { norm, control },
      { counts = { 1 }, clip = 1 })
    assert.equal(1, control:flat()[2])
  end)
end)

describe("case H16: mean of means", function()
  it("is 4.0 for the losses 1, 2, 3 and 10, each of weight 0.25", function()
    local losses = core.tensor("f32", { 6 }, { 1, 2, 3, 10, 50, 60 })
    local targets = core.tensor("i32", { 6 }, { 5, 5, 5, 5, -1, -1 })
    local count = core.tensor("i64", { 1 }, { 4 })
    local masked, dloss = support.poison("f32", { 6 }), support.poison("f32", { 6 })
    core.call("loss_mask", { losses, targets }, { masked }, {})
    core.call("loss_seed", { targets, count }, { dloss }, {})
    assert.same({ 0.25, 0.25, 0.25, 0.25, 0, 0 }, dloss:flat())
    local sum, mean = support.poison("f32", { 1, 1 }), support.poison("f32", { 1 })
    core.call("sum_tokens", { masked:narrow(1, 1, 3), false, false, false }, { sum },
      { kind = 0, first = 0, samples = 1, length = 3, runs = 1, mode = 0 })
    core.call("sum_tokens", { masked:narrow(1, 4, 3), false, false, false }, { sum },
      { kind = 0, first = 0, samples = 1, length = 3, runs = 1, mode = 1 })
    core.call("loss_finish", { sum, count }, { mean }, {})
    assert.same({ 4 }, mean:flat())
  end)
end)

describe("operators of the loss", function()
  it("may write gradients over the logits", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local z = promises.spread(dtype, { 4, 40 }, 1, 4)
      local m, s = promises.spread("f32", { 4 }, 2, 1, 4), promises.spread("f32", { 4 }, 3, 1, 4)
      local targets, dloss = loss.targets(4, 30), promises.spread("f32", { 4 }, 4)
      local attrs = { columns = 30, first = 0, vocab = 30, smoothing = 0.1, z = 1e-3 }
      local dz = core.tensor(dtype, { 4, 40 })
      core.call("cross_entropy_grad", { z, m, s, targets, dloss }, { dz }, attrs)
      core.call("cross_entropy_grad", { z, m, s, targets, dloss }, { z }, attrs)
      assert.bits(dz, z)
    end
  end)

  it("refuse leaves that do not divide the columns", function()
    local z, row = core.tensor("f32", { 2, 48 }), core.tensor("f32", { 2 })
    local _, message = pcall(core.call, "row_sum_exp", { z, row, loss.targets(2, 4) },
      { row, core.tensor("f32", { 2 }), core.tensor("f32", { 2 }) },
      { columns = 48, first = 0, leaves = 5 })
    assert.matches("row_sum_exp: leaves 5 must be a power of two that divides 48 columns", message)
  end)
end)
