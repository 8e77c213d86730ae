-- The bits of the quickstart are written down: a change of any of them has to be meant, and is made
-- with ./tl lua tests/golden/make.lua.
local core = require "tidelock.core"
local data = require "tidelock.data"
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

--- The first `steps` recorded steps.
local function first(record, steps)
  return table.move(record.steps, 1, steps, 1, {})
end

describe("the quickstart gives the bits that are written down:", function()
  local other = other_texts()

  it("under the key that is written down", function()
    if other then pending(other) end
    for dtype in pairs(golden.steps) do
      assert.equal(expected[dtype].key, golden.record(dtype, 0).key)
    end
  end)

  local function check(name, dtype, steps, overrides)
    it(name, function()
      if other then pending(other) end
      local got = golden.record(dtype, steps, overrides)
      assert.same(first(expected[dtype], steps), got.steps)
      if steps == golden.steps[dtype] then assert.equal(expected[dtype].weights, got.weights) end
    end)
  end

  local ranks = { layout = { tp = 2, pp = 2, dp = 2 } }
  check("f32, one rank", "f32", golden.steps.f32)
  check("f32, tp 2, pp 2, dp 2", "f32", 3, ranks)
  check("bf16, one rank", "bf16", golden.steps.bf16)
  check("bf16, tp 2, pp 2, dp 2", "bf16", 2, ranks)
end)
