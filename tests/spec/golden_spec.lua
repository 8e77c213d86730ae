-- The bits of the quickstart are written down: a change of any of them has to be meant, and is made
-- with ./tl lua tests/golden/make.lua.
local core = require "tidelock.core"
local data = require "tidelock.language.data"
local golden = require "golden.make"
local tl = require "tidelock"

local recipe = tl.load(core.files.realpath "recipes/quickstart.lua")
local expected = core.json.decode(core.files.read_all(golden.file))

--- Why the texts of this machine are not the pinned ones; nil when they are.
local function other_texts()
  local good, source, notes = pcall(data.open, recipe.values.data,
    { length = 256, samples = 16, vocab = 256, seed = 0 })
  if not good then return tostring(source) end
  source:close()
  return notes.warnings[1]
end

--- Fewer of the steps under the thread sanitizer, where one takes a minute: it looks for races, and
--- a first step shows as many of them; the other builds compare all bits.
local function some(steps, few)
  return core.build().sanitizer == "thread" and math.min(steps, few) or steps
end

--- The first `steps` recorded steps.
local function first(record, steps)
  return table.move(record.steps, 1, steps, 1, {})
end

local ranks = { layout = { tp = 2, pp = 2, dp = 2 } }

--- Where the licence texts are others, the key must be another too: nothing is mistaken for these.
local function has_another_key(dtype)
  local good, got = pcall(golden.record, dtype, 0)
  assert.is_true(not good or got.key ~= expected[dtype].key, "other texts under the pinned key")
end

describe("the quickstart gives the bits that are written down:", function()
  local other = other_texts()

  it("under the key that is written down", function()
    for dtype in pairs(golden.steps) do
      if other then
        has_another_key(dtype)
      else
        assert.equal(expected[dtype].key, golden.record(dtype, 0).key)
      end
    end
  end)

  local function check(name, dtype, steps, overrides)
    it(name, function()
      if other then return has_another_key(dtype) end
      local got = golden.record(dtype, steps, overrides)
      assert.same(first(expected[dtype], steps), got.steps)
      if steps == golden.steps[dtype] then assert.equal(expected[dtype].weights, got.weights) end
    end)
  end

  check("f32, one rank", "f32", some(golden.steps.f32, 2))
  check("f32, tp 2, pp 2, dp 2", "f32", some(3, 2), ranks)
  check("bf16, one rank", "bf16", some(golden.steps.bf16, 1))
  check("bf16, tp 2, pp 2, dp 2", "bf16", some(2, 1), ranks)
end)

describe("a model with experts gives, on every machine,", function()
  local layouts = { ["one rank"] = {}, ["tp 2, dp 2, ep 4, in a ring"] = {
    layout = { tp = 2, dp = 2, ep = 4, all_to_all = "ring" },
  } }
  for _, dtype in ipairs { "f32", "bf16" } do
    local written = expected[golden.experts.name .. dtype]
    for name, fields in pairs(layouts) do
      it("the bits that are written down: " .. dtype .. ", " .. name, function()
        local steps = some(golden.experts.steps, 1)
        local got = golden.record(dtype, steps, golden.with_own_text { layout = fields.layout },
          golden.experts.recipe)
        assert.same({ written.key, first(written, steps) }, { got.key, got.steps })
        if steps == golden.experts.steps then assert.equal(written.weights, got.weights) end
      end)
    end
  end
end)

describe("the same model on the text of tests/golden gives, on every machine,", function()
  for _, dtype in ipairs { "f32", "bf16" } do
    local written = expected[golden.own.name .. dtype]
    for name, fields in pairs { ["one rank"] = {}, ["tp 2, pp 2, dp 2"] = ranks } do
      it("the bits that are written down: " .. dtype .. ", " .. name, function()
        local overrides = golden.with_own_text { layout = fields.layout }
        local steps = some(golden.own.steps, 1)
        local got = golden.record(dtype, steps, overrides)
        assert.same({ written.key, first(written, steps) }, { got.key, got.steps })
        if steps == golden.own.steps then assert.equal(written.weights, got.weights) end
      end)
    end
  end
end)
