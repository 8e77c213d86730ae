-- The promise: one recipe, one set of bits - losses, gradient norms, weights and optimizer state -
-- in every layout, for every micro-batch, on every run.
local models = require "support.models"
local support = require "support"
local zoo = require "support.zoo"

--- Fields of a layout under their dotted names: { tp = 2, micro = 1 } -> { ["layout.tp"] = 2, .. }.
local function layout(fields)
  local dotted = {}
  for key, value in pairs(fields) do
    dotted[(key == "micro" and "batch." or "layout.") .. key] = value
  end
  return dotted
end

local function described(fields)
  local words = {}
  for key, value in pairs(fields) do words[#words + 1] = key .. " " .. tostring(value) end
  table.sort(words)
  return table.concat(words, ", ")
end

--- Every layout of the list gives the bits of `options` on one rank.
local function same_bits(options, list, start)
  local expected = models.trace(options)
  for i, fields in ipairs(list) do
    local poison = i % 2 == 1 and 255 or 0
    local got = models.trace(models.with(options, layout(fields)), start or { poison = poison })
    assert.equal(expected, got, described(fields))
  end
  return expected
end

local dtypes = { "f32", "bf16" }

describe("one set of bits for", function()
  local everything = {
    { tp = 2, dp = 2, pp = 2, micro = 1 },
    { tp = 2, sequence_parallel = false, pp = 2, schedule = "zb-h1" },
  }
  for _, entry in ipairs(zoo) do
    local name, options = entry[1], entry[2]
    for _, dtype in ipairs(dtypes) do
      it(name .. ", " .. dtype, function()
        local list = { table.unpack(everything) }
        if options.leaves and options.leaves.tp == 8 then list[#list + 1] = { tp = 8 } end
        if options.layers == 3 then list[#list + 1] = { pp = 3 } end
        list[#list + 1] = { tp = 4, sequence_parallel = (options.length or 16) % 4 == 0 }
        same_bits(models.with(options, { dtype = dtype }), list)
      end)
    end
  end
end)

for _, dtype in ipairs(dtypes) do
  local plain = { dtype = dtype }
  describe("in " .. dtype .. ", the bits do not depend on", function()
    it("the run", function()
      same_bits(plain, { {}, {}, { dp = 2, tp = 2 }, { dp = 2, tp = 2 } }, {})
    end)

    it("the size of a micro-batch, odd ones too", function()
      same_bits(models.with(plain, { samples = 15, micro = 15 }),
        { { micro = 1 }, { micro = 3 }, { micro = 5 } })
      same_bits(models.with(plain, { samples = 12 }),
        { { micro = 1 }, { micro = 3 }, { micro = 4 }, { micro = 6 }, { micro = 12 },
          { micro = 1, dp = 4 }, { micro = 3, dp = 4 } })
    end)

    it("tp x dp x pp, up to 8 ranks", function()
      local list = {}
      for _, tp in ipairs { 1, 2, 4 } do
        for _, dp in ipairs { 1, 2, 4, 8 } do
          for _, pp in ipairs { 1, 2, 3, 4 } do
            if tp * dp * pp <= 8 then list[#list + 1] = { tp = tp, dp = dp, pp = pp, micro = 1 } end
          end
        end
      end
      same_bits(models.with(plain, { layers = 4 }), list)
    end)

    it("the schedule and the layers of a stage", function()
      local function backwards_last(_, _, micros)
        local order = {}
        for i = 0, micros - 1 do order[#order + 1] = { phase = "forward", micro = i } end
        for i = 0, micros - 1 do order[#order + 1] = { phase = "input", micro = i } end
        for i = 0, micros - 1 do order[#order + 1] = { phase = "weight", micro = i } end
        return order
      end
      local list = {
        { pp = 2, schedule = backwards_last }, { pp = 3, schedule = backwards_last, tp = 2 },
        { pp = 2, stages = { 1, 5 } }, { pp = 3, stages = { 1, 4, 1 }, schedule = "zb-h1" },
        { pp = 2, schedule = "interleaved", virtual_stages = 2, stages = { 1, 3, 1, 1 } },
      }
      for _, name in ipairs { "gpipe", "1f1b", "zb-h1" } do
        list[#list + 1] = { pp = 2, schedule = name, micro = 1 }
        list[#list + 1] = { pp = 6, schedule = name, micro = 1 }
        list[#list + 1] = { pp = 3, schedule = name, dp = 2, micro = 4 }
      end
      for _, stages in ipairs { 2, 3 } do
        for _, micro in ipairs { 1, 2, 8 } do
          list[#list + 1] =
            { pp = 2, schedule = "interleaved", virtual_stages = stages, micro = micro }
        end
      end
      list[#list + 1] = { pp = 3, schedule = "interleaved", virtual_stages = 2, tp = 2 }
      same_bits(models.with(plain, { layers = 6, tied = true, dropout = 0.1 }), list)
    end)

    it("which ranks are neighbours", function()
      local list = {}
      for _, order in ipairs { "tp-cp-dp-pp", "pp-dp-cp-tp", "dp-tp-pp-cp", "cp-pp-tp-dp" } do
        list[#list + 1] = { tp = 2, dp = 2, pp = 2, order = order }
      end
      same_bits(plain, list)
    end)

    it("the number of threads, and what memory holds before", function()
      local expected = models.trace(plain)
      for _, start in ipairs {
        { threads = 1 }, { threads = 3 }, { threads = 8 }, { poison = 0 }, { poison = 255 },
        { poison = 255, threads = 5 },
      } do
        assert.equal(expected, models.trace(plain, start), described(start))
        local ranks = models.with(plain, layout { tp = 2, dp = 2 })
        assert.equal(expected, models.trace(ranks, start), described(start))
      end
    end)

    it("the vector instructions of the processor", function()
      local expected = models.trace(plain)
      for _, level in ipairs { "portable", "avx2", "avx512" } do
        local command = "TL_SIMD=%s %s lua tests/support/trace.lua %s 2>&1"
        local pipe = assert(io.popen(command:format(level, support.program, dtype)))
        local text = pipe:read "a"
        pipe:close()
        -- a processor without it says so, and takes the next one
        local note = "^TL_SIMD: this processor has no " .. level .. "; using %w+ %(same bits%)\n"
        text = text:gsub(note, "")
        assert.equal(expected .. "\n", text, level)
      end
    end)
  end)
end

describe("a sample of more than 8,192 tokens", function()
  it("has the same bits in every layout, and in blocks of its own", function()
    local long = {
      length = 8208, samples = 2, micro = 1, dim = 16, heads = 2, kv_heads = 1, hidden = 16,
      layers = 1, leaves = { tp = 2, dp = 2 }, documents = true,
    }
    same_bits(long, { { tp = 2 }, { dp = 2 }, { micro = 2, tp = 2, sequence_parallel = false } })
  end)
end)
