-- Faults that users of other systems reported, about gradients and layouts.
local core = require "tidelock.core"
local data = require "tidelock.language.data"
local models = require "support.models"
local tl = require "tidelock"
local warm = require "tidelock.run.warm"

local nn = tl.nn
local dtypes = { "f32", "bf16" }

--- Hashes of all gradients of the first step, and the step.
local function hashes(options)
  local list, step = models.gradients(options)
  local all = {}
  for name, t in pairs(list) do all[name] = t:hash() end
  return all, step
end

describe("H16, mean of means", function()
  --- A model whose loss at a token is its id: the first channel of the embedding is the id.
  local function counting(samples)
    local seen
    local function layer()
      return { nn.graph("g", function(g, x)
        local first = { init = function(i) return i == 0 and 1 or 0 end }
        seen = g.matmul(x, g.weight("v", "dim", first))
        return x
      end) }
    end
    local function init(i) return i % 4 == 0 and i // 4 or 0 end
    return {
      vocab = 16, dim = 4, layers = 1, layer = layer, length = 4, samples = #samples, micro = 1,
      leaves = { tp = 4, dp = 4 }, weights = { { "embed", init = init } }, clip = 1e9,
      loss = function(g, logits, targets) return seen + 0.0 * g.cross_entropy(logits, targets) end,
      data = data.given(samples),
    }
  end

  local three = { tokens = { 1, 2, 3, 0 }, targets = { 5, 5, 5, -1 } }
  local one = { tokens = { 10, 0, 0, 0 }, targets = { 5, -1, -1, -1 } }

  it("is not taken: every target has the same weight", function()
    local list, step = models.gradients(counting { three, one })
    assert.equal(4.0, step.loss)
    assert.equal(4, step.count)
    assert.equal(4.0, list["layers.0.g.v.grad"]:flat()[1])
    for _, id in ipairs { 1, 2, 3, 10 } do
      assert.equal(0.25, list["embed.grad"]:to_table()[id + 1][1])
    end
  end)

  it("is not taken in any split of four samples", function()
    local four = { three, one, one, three }
    local expected = hashes(counting(four))
    for _, layout in ipairs { { micro = 2 }, { micro = 4 }, { ["layout.dp"] = 2 },
      { ["layout.dp"] = 4 }, { ["layout.dp"] = 2, micro = 2 } } do
      assert.same(expected, (hashes(models.with(counting(four), layout))))
    end
  end)
end)

describe("H17, scaled twice or not at all", function()
  it("gradients of 4 micro-batches are those of one, at pp 1 and 2", function()
    for _, dtype in ipairs(dtypes) do
      local expected = hashes { dtype = dtype, micro = 8 }
      for _, pp in ipairs { 1, 2 } do
        for _, schedule in ipairs { "1f1b", "gpipe", "zb-h1" } do
          local own = { dtype = dtype, ["layout.pp"] = pp, ["layout.schedule"] = schedule }
          assert.same(expected, (hashes(own)))
        end
      end
    end
  end)
end)

describe("H18, gains under sequence parallelism, tied weights", function()
  it("every gain's gradient has the same bits", function()
    for _, dtype in ipairs(dtypes) do
      local expected = hashes { dtype = dtype, layer_norm = true }
      local gains = 0
      for name in pairs(expected) do gains = gains + (name:find "gain%.grad$" and 1 or 0) end
      assert.equal(5, gains)
      for _, parallel in ipairs { true, false } do
        for _, tp in ipairs { 2, 4 } do
          assert.same(expected, (hashes { dtype = dtype, layer_norm = true, ["layout.tp"] = tp,
            ["layout.sequence_parallel"] = parallel }))
        end
      end
    end
  end)

  it("the tied gradient is the input's plus the output's", function()
    local untied <close> = models.start({}, { keep = { "embed.grad", "head.grad" } })
    for _, entry in ipairs(untied:weights()) do
      if entry.name == "head" then
        local shape = { entry.param.weight.rows, entry.param.weight.cols }
        warm.set(untied, entry.param, core.tensor("f32", shape, untied:weight("embed"):flat()))
      end
    end
    untied:step()
    local a, b = untied:kept("embed.grad"):flat(), untied:kept("head.grad"):flat()
    local sum = {}
    for i, x in ipairs(a) do sum[i] = core.f32(x + b[i]) end
    for _, pp in ipairs { 1, 2 } do
      local tied = models.gradients { tied = true, ["layout.pp"] = pp }
      assert.bits(core.tensor("f32", tied["embed.grad"]:shape(), sum), tied["embed.grad"])
    end
  end)

  it("the tied weight is one weight after the step, on both stages", function()
    for _, dtype in ipairs(dtypes) do
      local run <close> = models.start({ tied = true, ["layout.pp"] = 2, dtype = dtype })
      run:step()
      local held = {}
      for rank = 0, 1 do
        local v = run.plan.ranks[rank + 1].persistent["weight embed"]
        held[rank] = run.ranks:read(rank, v.tensor)
      end
      assert.bits(held[0], held[1])
    end
  end)
end)

describe("H20, loss differs between layouts", function()
  it("nowhere in tp, pp, dp of 1 and 2, over three steps", function()
    for _, dtype in ipairs(dtypes) do
      local model = { layers = 4, samples = 16, dtype = dtype }
      local expected = models.trace(model, nil, 3)
      for _, tp in ipairs { 1, 2 } do
        for _, pp in ipairs { 1, 2 } do
          for _, dp in ipairs { 1, 2 } do
            local layout = { ["layout.tp"] = tp, ["layout.pp"] = pp, ["layout.dp"] = dp }
            assert.equal(expected, models.trace(models.with(model, layout), nil, 3))
          end
        end
      end
    end
  end)

  it("and ZeRO, which is not offered, is refused", function()
    local good, text = pcall(models.plan, { ["layout.zero"] = 2, ["layout.dp"] = 2 })
    assert.is_false(good)
    assert.matches("layout.zero: zero 2 is not available", text.message or text)
  end)
end)

describe("H21, dropout under tensor parallelism", function()
  --- Output of a dropout over the residual stream in which all rows are equal.
  local function dropped(options)
    local layer = function()
      return { nn.graph("g", function(g, x) return g.named("y", nn.dropout { rate = 0.5 }(x)) end) }
    end
    local own = { layer = layer, layers = 1, samples = 2, weights = { { "embed", init = "ones" } } }
    local run <close> = models.start(models.with(own, options), { keep = { "layers.0.g.y" } })
    run:step()
    return run:kept "layers.0.g.y"
  end

  it("masks of ranks put side by side are the mask of one rank", function()
    local expected = dropped { micro = 1 }
    for _, layout in ipairs {
      { ["layout.tp"] = 2 }, { ["layout.tp"] = 4 }, { ["layout.dp"] = 2, micro = 1 },
      { ["layout.tp"] = 4, ["layout.sequence_parallel"] = false },
    } do
      assert.bits(expected, dropped(models.with({ micro = 2 }, layout)))
    end
  end)

  it("equal rows have different masks", function()
    local rows, seen = dropped({ micro = 1 }):to_table(), {}
    for i, row in ipairs(rows) do
      local text = table.concat(row, " ")
      assert.is_nil(seen[text], ("rows %d and %s"):format(i, tostring(seen[text])))
      seen[text] = i
    end
  end)

  it("recompute, which is not offered, is refused", function()
    local good, text = pcall(models.plan, { ["train.recompute"] = true })
    assert.is_false(good)
    assert.matches("train.recompute: not available", text.message or text)
  end)
end)

describe("H23, NaN only in the exact mode", function()
  it("is in neither: wide rows train alike under layout and fast", function()
    for _, dtype in ipairs(dtypes) do
      local model = { dim = 8192, heads = 2, head_dim = 16, kv_heads = 1, hidden = 16, length = 8,
        samples = 2, micro = 1, dtype = dtype, ["train.lr"] = 1e-5 }
      local exact <close> = models.start(model)
      local free <close> = models.start(models.with(model, { policy = "fast", leaves = false }))
      for _ = 1, 10 do
        local a, b = exact:step(), free:step()
        assert.is_true(math.abs(a.loss - b.loss) <= 0.01 * b.loss, -- false for NaN
          ("%s, step %d: %g and %g"):format(dtype, a.step, a.loss, b.loss))
      end
    end
  end)
end)

describe("H26, loss scale", function()
  it("is not offered: refused by name, with the reason", function()
    for _, dtype in ipairs(dtypes) do
      local good, text = pcall(models.plan, { dtype = dtype, ["train.loss_scale"] = 65536 })
      assert.is_false(good)
      assert.matches("train.loss_scale: .*needs no loss scale", text.message or text)
    end
  end)
end)
