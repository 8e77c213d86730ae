local key = require "tidelock.language.key"
local numbers = require "tidelock.language.numbers"
local written = require "support.written"

describe("the key", function()
  after_each(written.clean)

  local base = written.recipe { extra = "layout = { dp = 2 }, log = { every = 5 }," }

  local function spec_of(...) return assert(written.spec(written.load(base, { ... }))) end

  local function key_of(...) return key.of(spec_of(...), "model") end

  it("is 16 hexadecimal digits, shown in groups of four", function()
    assert.matches("^%x+$", key_of())
    assert.equal(16, #key_of())
    assert.equal("5e1c 09af 77d2 c340", key.spaced "5e1c09af77d2c340")
  end)

  it("does not move with what cannot change bits", function()
    local own = key_of()
    for _, word in ipairs {
      "layout={ tp = 2, pp = 2 }", "batch.micro=4", "log.every=1", "train.save=false",
      "train.steps=20", "blocks.attention.q=128", "blocks.gemm={ 128, 128, 64 }",
      "train.lr={ \"constant\", 0.001 }", "train.optimizer=adamw", "policy=layout", "dtype=f32",
      "layout.sequence_parallel=false", "eval=nil",
      "policy={ \"batch\", leaves = { tp = 4, dp = 8 } }",
    } do
      assert.equal(own, key_of(word), word)
    end
  end)

  it("moves with what can", function()
    local seen = { [key_of()] = "the recipe" }
    for _, word in ipairs {
      "batch.length=64", "batch.samples=16", "policy.seed=1", "policy.leaves.dp=16",
      "policy.leaves.tp=8", "dtype=bf16", "blocks.attention.kv=64", "blocks.attention.split=4096",
      "train.lr=0.002", "train.clip=1", "train.optimizer.beta1=0.8", "train.warmup=5",
      "loss={ \"cross_entropy\", z = 1e-4 }", "weights={ { \"*\", decay = 0 } }",
      "train.lr={ \"cosine\", peak = 0.001 }",
    } do
      local own = key_of(word)
      assert.is_nil(seen[own], word .. " has the key of " .. tostring(seen[own]))
      seen[own] = word
    end
    assert.not_equal(key_of(), key.of(spec_of(), "another model"))
    assert.not_equal(key_of(), key.of(spec_of(), "model", "another text"))
  end)

  it("sees numbers as f32", function()
    assert.equal(key_of "train.lr=0.1", key_of "train.lr=0.1000000000000001")
    assert.not_equal(key_of "train.lr=0.1", key_of "train.lr=0.1000001")
    assert.equal("{[1]=\"a\",b=0.100000001,c=3,d=1}", key.canonical { "a", b = 0.1, c = 3,
      d = 1.0 })
  end)

  it("sees a function of the step as the rates that it gave", function()
    local function with(body, steps)
      local text = base:gsub("lr = 1e%-3", "lr = function(step) " .. body .. " end")
      return key.of(assert(written.spec(written.load(text, { "train.steps=" .. steps }))), "model")
    end
    local own = with("return step < 5 and 0.01 or 0.001", 10)
    assert.equal(own, with("if step < 5 then return 1e-2 end return 1e-3", 10))
    assert.equal(own, with("return step < 5 and 0.01 or 0.001", 20))
    assert.not_equal(own, with("return step < 6 and 0.01 or 0.001", 10))
  end)

  it("has a hash of the whole recipe beside it", function()
    local one, other = spec_of(), spec_of "layout.tp=2"
    assert.equal(key.of(one, "model"), key.of(other, "model"))
    assert.not_equal(select(2, key.all(one, "model")), (select(2, key.all(other, "model"))))
  end)
end)

describe("functions of numbers", function()
  it("are near those of the C library", function()
    local function near(expected, actual)
      assert.near(expected, actual, 4e-16 * math.max(1, math.abs(expected)))
    end
    for i = -400, 400 do
      local x = i / 8 + 0.01
      assert.near(1, numbers.exp(x) / math.exp(x), 4e-16)
      near(math.sin(x), numbers.sin(x))
      near(math.cos(x), numbers.cos(x))
      near(math.log(math.abs(x)), numbers.log(math.abs(x)))
    end
    assert.equal(0.125, numbers.power(2, -3))
    assert.near(math.sqrt(2), numbers.power(2, 0.5), 1e-15)
  end)

  it("have these bits on every machine", function()
    assert.equal("0x1.14a280fb5068cp-1", ("%a"):format(numbers.cos(1)))
    assert.equal("0x1.aed548f090ceep-1", ("%a"):format(numbers.sin(1)))
    assert.equal("0x1.5bf0a8b14576ap+1", ("%a"):format(numbers.exp(1)))
    assert.equal("0x1.193ea7aad030bp+1", ("%a"):format(numbers.log(9)))
  end)

  it("round to f32 once", function()
    assert.equal(16777216, numbers.f32(16777217))
    assert.equal(math.huge, numbers.f32(1e300))
  end)
end)
