-- Routers by hash: experts by token id, from a frozen table that is a state like any other.
local checkpoint = require "tidelock.run.checkpoint"
local choices = require "tidelock.model.choices"
local core = require "tidelock.core"
local derivative = require "support.derivative"
local mixtures = require "support.mixtures"
local models = require "support.models"
local new_folder = require "support.folder"

local experts, top_k = 8, 3

local function options(more, router)
  return mixtures.with({ experts = experts, top_k = top_k, hidden = 16,
    router = router or { "hash", seed = 5, scale = 1.5 } }, more)
end

describe("the table of a router by hash", function()
  it("has k different experts in each row, all of them alike often", function()
    local seen, value = {}, choices.of(5, "layers.0.moe", experts, top_k)
    for id = 0, 1999 do
      local row = {}
      for i = 0, top_k - 1 do
        local e = value(id * top_k + i)
        assert.is_nil(row[e])
        row[e], seen[e] = true, (seen[e] or 0) + 1
      end
    end
    for e = 0, experts - 1 do assert.near(750, seen[e], 100) end
  end)

  it("hangs on seed, name and id; smaller k are its beginning", function()
    local function first(seed, name, k)
      local value, list = choices.of(seed, name, 64, k), {}
      for id = 0, 9 do list[id + 1] = value(id * k) end
      return table.concat(list, " ")
    end
    assert.equal("54 54 39 18 62 31 35 6 63 30", first(5, "a", 4))
    assert.equal(first(5, "a", 1), first(5, "a", 4))
    assert.not_equal(first(5, "a", 4), first(6, "a", 4))
    assert.not_equal(first(5, "a", 4), first(5, "b", 4))
  end)
end)

describe("a model with a router by hash", function()
  it("sends every token to the experts of its id, and keeps the table", function()
    local run <close> = models.start(options { layers = 1 })
    local before = run:weight "layers.0.moe.choices"
    local value = choices.of(5, "layers.0.moe", experts, top_k)
    local list = before:flat()
    for i = 1, #list do assert.equal(value(i - 1), list[i]) end
    for _ = 1, 2 do run:step() end
    assert.bits(before, run:weight "layers.0.moe.choices")
  end)

  it("follows another table, given by a rule", function()
    local function loads(init)
      local rules = { { "*.choices", init = init } }
      local run <close> = models.start(options({ layers = 1, weights = rules,
        ["layout.dp"] = 2, ["layout.ep"] = 2 }))
      return run:step().experts[1].load
    end
    local load = loads(function(i) return i % 3 + 2 end) -- experts 2, 3 and 4 for every id
    assert.same({ 0, 0, 128, 128, 128, 0, 0, 0 }, load)
  end)

  it("names layer, token and id of a row that is no choice", function()
    for _, bad in ipairs { { function() return 1 end, "slot 1 is 1" },
      { function(i) return i % 3 + 6 end, "slot 2 is 8" },
      { function(i) return i % 3 + 0.5 end, "slot 0 is 0%.5" } } do
      local run <close> = models.start(options { layers = 1, weights = { { "*.choices",
        init = bad[1] } } })
      local good, message = pcall(run.step, run)
      assert.is_false(good)
      assert.matches("route_table: layer 0, token 0: no row of different experts for its id: "
        .. "id %d+, " .. bad[2] .. "; there are 8 experts", message)
    end
  end)

  it("has gradients that are slopes", function()
    for _, normalize in ipairs { true, false } do
      local own = options({ layers = 1, weights = { { "*.experts.*", init = 0.2 },
        { "*.router", init = 0.3 } } }, { "hash", scale = 1.5, normalize = normalize })
      local worst = derivative.worst(models.with(own, { ["layout.dp"] = 2 }))
      assert.is_true(worst.ratio < 1, ("%s: slope %g, gradient %g"):format(worst.name or "?",
        worst.slope or 0, worst.expected or 0))
    end
  end)

  it("is saved in one layout and goes on in another", function()
    local folder, own = new_folder(), options()
    local function steps(run, count)
      local line = {}
      for i = 1, count do line[i] = run:step().loss_bits end
      return table.concat(line, " ") .. run:weights_hash() .. run:optimizer_hash()
    end
    local run <close> = models.start(models.with(own, { ["layout.tp"] = 2, ["layout.dp"] = 2,
      ["layout.ep"] = 4, ["layout.pp"] = 2 }))
    steps(run, 2)
    local written = checkpoint.start(run, folder.root)
    written.saver:wait()
    written.saver:close()
    local expected = steps(run, 2)
    local other <close> = models.start(own, { resume = checkpoint.find(written.folder) })
    assert.equal(expected, steps(other, 2))
    folder:remove()
  end)

  it("refuses fields that mean nothing", function()
    local function message(moe)
      local good, text = pcall(models.start, mixtures.with(moe))
      assert.is_false(good)
      return tostring(type(text) == "table" and text.message or text)
    end
    local function with(router, balance)
      return { experts = 8, top_k = 2, hidden = 16, router = router, balance = balance }
    end
    assert.matches("chooses by token id; leave balance out", message(with("hash",
      { "bias", speed = 0.1 })))
    assert.matches("leave balance out", message(with("hash", { "loss", weight = 0.1 })))
  end)

  it("refuses ids that the table does not have", function()
    local z, table_ = core.tensor("f32", { 1, 2 }, { 0, 1 }), core.tensor("f32", { 3, 1 })
    local good, text = pcall(core.call, "route_table", { z, core.tensor("i32", { 1 }, { 3 }),
      table_ }, { core.tensor("f32", { 1, 1 }), core.tensor("i32", { 1, 1 }) }, { layer = 1,
      kind = 2, normalize = 1, samples = 1, length = 1, token_first = 0, scale = 1 })
    assert.is_false(good)
    assert.matches("layer 1, token 0: no row of different experts for its id: id 3; the table "
      .. "has 3", text)
  end)
end)
