-- Models with experts: one set of bits in every layout, for any routing; right values and
-- gradients.
local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local derivative = require "support.derivative"
local mixtures = require "support.mixtures"
local models = require "support.models"
local new_folder = require "support.folder"
local moe = require "support.moe_cases"
local nn = require("tidelock").nn

--- { tp = 2, waves = 2, micro = 1 } as dotted keys of a recipe.
local function dotted(fields)
  local list = {}
  for key, value in pairs(fields) do
    local section = key == "micro" and "batch." or (key == "waves" or key == "keep")
      and "blocks.moe." or "layout."
    list[section .. key] = value
  end
  return list
end

local function described(fields)
  local words = {}
  for key, value in pairs(fields) do
    words[#words + 1] = key .. " " .. (type(value) == "table" and table.concat(value, ",")
      or tostring(value))
  end
  table.sort(words)
  return table.concat(words, ", ")
end

local function same_bits(options, list)
  local expected = models.trace(options)
  for i, fields in ipairs(list) do
    local got = models.trace(models.with(options, dotted(fields)), { poison = i % 2 * 255 })
    assert.equal(expected, got, described(fields))
  end
end

local everywhere = {
  { micro = 8 }, { waves = 2 }, { dp = 2, ep = 2, micro = 1 }, { tp = 2, micro = 4 },
  { dp = 2, ep = 2, waves = 2, keep = true }, { keep = false },
  { tp = 2, dp = 2, pp = 2, ep = 4, waves = 1 }, { dp = 4, ep = 4, all_to_all = "ring" },
  { dp = 4, ep = 2, pp = 2, schedule = "zb-h1", micro = 1 },
}

describe("one set of bits for", function()
  for _, entry in ipairs(mixtures.zoo) do
    for _, dtype in ipairs { "f32", "bf16" } do
      it(entry[1] .. ", " .. dtype, function()
        same_bits(models.with(entry[2], { dtype = dtype }), everywhere)
      end)
    end
  end
end)

describe("the bits of a mixture do not depend on", function()
  local plain = mixtures.zoo[2][2]

  it("ep x tp x dp x pp", function()
    local list = {}
    for _, ep in ipairs { 1, 2, 4, 8 } do
      for _, tp in ipairs { 1, 2 } do
        for _, dp in ipairs { 1, 2, 4 } do
          for _, pp in ipairs { 1, 2 } do
            local fits = ep % tp == 0 and (tp * dp) % ep == 0
            if fits then list[#list + 1] = { ep = ep, tp = tp, dp = dp, pp = pp } end
          end
        end
      end
    end
    assert.equal(24, #list)
    same_bits(plain, list)
  end)

  it("the way that rows take, from 16 ranks in islands of 2 and 4", function()
    local options = mixtures.with({ experts = 16, top_k = 3, hidden = 16 }, { samples = 16,
      micro = 1, leaves = { tp = 4, dp = 16 } })
    same_bits(options, {
      { dp = 16, ep = 16 }, { dp = 16, ep = 16, all_to_all = "ring" },
      { dp = 16, ep = 16, all_to_all = "hierarchical", island = 2 },
      { dp = 16, ep = 16, all_to_all = "hierarchical", island = 4 },
      { dp = 8, tp = 2, ep = 16, all_to_all = "hierarchical", island = 4 },
      { dp = 8, ep = 8, all_to_all = "hierarchical", island = 8, waves = 2 },
      { dp = 8, ep = 8, all_to_all = "hierarchical", island = 1, waves = 2 },
    })
  end)

  it("the micro-batch inside a leaf of several samples", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local options = mixtures.with({ experts = 4, top_k = 2, hidden = 16 }, { dtype = dtype,
        leaves = { tp = 2, dp = 2 }, length = 20 }) -- experts get rows that fill no step of 16
      same_bits(options, { { micro = 1 }, { micro = 4 }, { micro = 8 }, { dp = 2, ep = 2 } })
    end
  end)

  it("any of tp, pp, dp and ep in 1 and 2, or the rule is named (H20)", function()
    local options = mixtures.with({ experts = 8, top_k = 2, hidden = 16 }, { layers = 4,
      samples = 16 })
    local good = {}
    for i = 0, 15 do
      local fields = { tp = 1 + (i & 1), pp = 1 + (i >> 1 & 1), dp = 1 + (i >> 2 & 1),
        ep = 1 + (i >> 3 & 1) }
      if fields.ep % fields.tp == 0 and fields.tp * fields.dp % fields.ep == 0 then
        good[#good + 1] = fields
      else
        local started, message = pcall(models.start, models.with(options, dotted(fields)))
        assert.is_false(started)
        assert.matches("layout%.ep: ep %d", tostring(message))
      end
    end
    assert.equal(10, #good)
    same_bits(options, good)
  end)

  it("which rank has which experts", function()
    same_bits(plain, {
      { dp = 4, ep = 4, experts = "modulo" }, { dp = 2, ep = 2, experts = "modulo", waves = 4 },
      { dp = 4, ep = 4, experts = { 3, 0, 1, 0, 3, 3, 2, 1 }, waves = 3 },
      { dp = 2, ep = 2, experts = { 0, 0, 0, 0, 0, 0, 0, 1 }, waves = 7, all_to_all = "ring" },
      { dp = 2, ep = 2, experts = { 1, 1, 1, 1, 1, 1, 1, 1 } },
    })
  end)

  it("the order string", function()
    same_bits(plain, { { order = "dp-tp-pp", tp = 2, dp = 4, ep = 4 },
      { order = "pp-dp-tp", tp = 2, dp = 2, pp = 2, ep = 4 } })
  end)

  it("blocks of a sample that is longer than 8,192 tokens", function()
    local long = mixtures.with({ experts = 4, top_k = 2, hidden = 8 }, { samples = 2, micro = 1,
      length = 8256, layers = 1, dim = 8, heads = 1, kv_heads = 1, vocab = 16,
      layer = function() return nn.moe { experts = 4, top_k = 2, hidden = 8 } end })
    same_bits(long, { { micro = 2 }, { tp = 2 }, { tp = 2, dp = 2, ep = 4, waves = 1 } })
  end)
end)

describe("routings at the limits:", function()
  --- The first layer's router is frozen at zeros but for what `rows` says.
  local function pinned(moe_options, init)
    return mixtures.with(moe_options, { weights = { { "*.router", init = init, frozen = true } } })
  end

  it("all tokens at one expert, the others get exact zeros", function()
    local options = pinned({ experts = 4, top_k = 1, hidden = 16 }, "zeros") -- ties: expert 0
    same_bits(options, { { dp = 4, ep = 4 }, { tp = 2, waves = 2, micro = 8 },
      { dp = 2, ep = 2, all_to_all = "ring" } })
    local run <close> = models.start(models.with(options, dotted { dp = 2, ep = 2 }),
      { keep = { "*.grad" }, poison = 255 })
    run:step()
    for e = 0, 3 do
      for _, part in ipairs { "gate", "up", "down" } do
        local gradient = run:kept(("layers.0.moe.experts.%d.%s.grad"):format(e, part))
        local zero = core.tensor("f32", gradient:shape())
        assert.equal(e > 0, (core.equal(zero, gradient)), part .. e)
      end
    end
  end)

  it("one token in all", function()
    local options = mixtures.with({ experts = 4, top_k = 2, hidden = 16 }, { samples = 1, micro = 1,
      length = 2, leaves = { tp = 1, dp = 1 } })
    local run <close> = models.start(options, { poison = 255 })
    assert.is_true(run:step().loss > 0)
  end)

  it("a rank whose samples choose no expert of its own", function()
    local options = pinned({ experts = 8, top_k = 2, hidden = 16 }, "zeros") -- experts 0 and 1
    same_bits(options, { { dp = 8, ep = 8, micro = 1 },
      { dp = 4, ep = 4, all_to_all = "hierarchical", island = 2 } })
  end)
end)

describe("a mixture", function()
  local options = mixtures.with({ experts = 6, top_k = 2, hidden = 20, shared = 1 }, { layers = 1 })

  --- silu(x gate) * (x up), then down, in f64.
  local function expert(run, name, x)
    local gate, up = run:weight(name .. ".gate"):to_table(), run:weight(name .. ".up"):to_table()
    local act, y = {}, {}
    for n = 1, #gate do
      local g, u = 0.0, 0.0
      for k = 1, #x do g, u = g + gate[n][k] * x[k], u + up[n][k] * x[k] end
      act[n] = g / (1 + math.exp(-g)) * u
    end
    for n, row in ipairs(run:weight(name .. ".down"):to_table()) do
      y[n] = 0.0
      for k = 1, #act do y[n] = y[n] + row[k] * act[k] end
    end
    return y
  end

  it("is its formula", function()
    local keep = { "layers.0.moe.rms_norm.out", "layers.0.moe.logits", "layers.0.moe.out" }
    local run <close> = models.start(models.with(options, dotted { dp = 2, ep = 2, waves = 3 }),
      { keep = keep })
    local weights = setmetatable({}, { __index = function(t, name)
      t[name] = run:weight(name)
      return t[name]
    end })
    local frozen = { weight = function(_, name) return weights[name] end }
    for e = 0, 5 do expert(frozen, "layers.0.moe.experts." .. e, {}) end -- read before the step
    expert(frozen, "layers.0.moe.shared", {})
    run:step()
    local x, y = run:kept(keep[1]):to_table(), run:kept(keep[3]):to_table()
    local z = run:kept(keep[2]):to_table()
    for t = 1, #x, 17 do
      local weight, list = moe.route_row(z[t], nil, { kind = 0, groups = 1, normalize = 1,
        scale = 1 }, 2)
      local expected = expert(frozen, "layers.0.moe.shared", x[t])
      for i, e in ipairs(list) do
        for n, value in ipairs(expert(frozen, "layers.0.moe.experts." .. e, x[t])) do
          expected[n] = expected[n] + weight[i] * value
        end
      end
      for n, value in ipairs(expected) do assert.near(value, y[t][n], 1e-5) end
    end
  end)

  -- all experts are chosen: where a choice changes, the loss has a step and no slope
  for _, router in ipairs { { "softmax" }, { "softmax", normalize = false, scale = 3 },
    { "sigmoid", scale = 2.5 }, { "sqrt_softplus" } } do
    it("has gradients that are slopes: " .. router[1], function()
      local all = mixtures.with({ experts = 3, top_k = 3, hidden = 16, shared = 1,
        router = router }, { layers = 1, weights = { { "*.experts.*", init = 0.2 },
        { "*.router", init = 0.3 } } })
      local worst = derivative.worst(models.with(all, dotted { dp = 2, waves = 3 }))
      assert.is_true(worst.ratio < 1, ("%s: slope %g, gradient %g"):format(worst.name or "?",
        worst.slope or 0, worst.expected or 0))
    end)
  end

  it("shares experts by name, gradients in the order of use", function()
    local shared = mixtures.with({ experts = 4, top_k = 2, hidden = 16, name = "/moe" })
    same_bits(shared, { { dp = 2, ep = 2 }, { pp = 2, dp = 2, ep = 2 }, { tp = 2, waves = 2 } })
    local run <close> = models.start(shared)
    assert.same({ 32, 16 }, run:weight("moe.experts.0.down"):shape())
  end)

  it("is saved in one layout and goes on in another (H27)", function()
    local folder = new_folder()
    local own = mixtures.with({ experts = 8, top_k = 2, hidden = 16, router = "sigmoid",
      balance = { "bias", speed = 0.01 } }, { dtype = "bf16" })
    local function steps(run, count)
      local line = {}
      for i = 1, count do line[i] = run:step().loss_bits end
      return table.concat(line, " ") .. run:weights_hash() .. run:optimizer_hash()
    end
    local straight <close> = models.start(own)
    steps(straight, 2)
    local expected = steps(straight, 2)
    local run <close> = models.start(models.with(own, dotted { tp = 2, dp = 2, ep = 4, waves = 2 }))
    steps(run, 2)
    local written = checkpoint.start(run, folder.root)
    written.saver:wait()
    written.saver:close()
    for _, fields in ipairs { {}, { tp = 2, ep = 2 },
      { dp = 4, ep = 2, pp = 2, experts = "modulo" } } do
      local other <close> = models.start(models.with(own, dotted(fields)), {
        resume = checkpoint.find(written.folder) })
      assert.equal(expected, steps(other, 2), described(fields))
    end
    folder:remove()
  end)

  it("names layer and token of logits that are not finite", function()
    local broken = models.with(options, { weights = { { "*.router", init = {
      "constant", 1e38 } } } })
    local run <close> = models.start(broken)
    local good, message = pcall(run.step, run)
    assert.is_false(good)
    assert.matches("non%-finite router logits: layer 0, token %d+ is", message)
  end)

  it("may have experts that never learn", function()
    local frozen = models.with(options, { weights = { { "*.experts.1.*", frozen = true },
      { "*.experts.2.up", lr_scale = 0.5, decay = 0 } } })
    same_bits(frozen, { { dp = 2, ep = 2 } })
    local run <close> = models.start(frozen)
    local before = run:weight "layers.0.moe.experts.1.up"
    run:step()
    assert.bits(before, run:weight "layers.0.moe.experts.1.up")
  end)
end)
