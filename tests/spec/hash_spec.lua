local core = require "tidelock.core"
local models = require "support.models"

local G = 0x9e3779b97f4a7c15 -- 2^64 over the golden ratio

describe("the hash of a string", function()
  it("is XXH64 with seed 0", function()
    assert.equal("ef46db3751d8e999", core.hash "")
    assert.equal("d24ec4f1a98c6e5b", core.hash "a")
    assert.equal("44bc2cf5ad770999", core.hash "abc")
    assert.equal(("%016x"):format(core.hash_int "abc"), core.hash "abc")
    assert.not_equal(core.hash "a", core.hash "a\0")
  end)
end)

describe("mix64", function()
  it("is the finalizer of splitmix64", function() -- its first outputs for the seed 0
    assert.equal(0xe220a8397b1dcdaf, core.mix64(G))
    assert.equal(0x6e789e6aa1b965f4, core.mix64(2 * G))
    assert.equal(0x06c45d188009454f, core.mix64(3 * G))
  end)
end)

describe("the hash of a tensor", function()
  local t
  do
    local values = {}
    for i = 1, 24 do values[i] = i * 0.37 - 4 end
    t = core.tensor("f32", { 4, 6 }, values)
  end

  it("is the sum over elements that hash.h states", function()
    local name, sum = core.hash_int "w", 0
    for i, bits in ipairs(t:bits()) do sum = sum + core.mix64(core.mix64(name + i * G) ~ bits) end
    assert.equal(sum, t:hash_int "w")
    assert.equal(("%016x"):format(sum), t:hash "w")
  end)

  it("depends on name, place, dtype and every bit", function()
    local seen = {}
    local function new(hash)
      assert.is_nil(seen[hash])
      seen[hash] = true
    end
    new(t:hash "w")
    new(t:hash "v")
    new(t:hash())
    new(core.tensor("f32", { 2 }, { 1, 2 }):hash "w")
    new(core.tensor("f32", { 2 }, { 2, 1 }):hash "w")
    new(core.tensor("bf16", { 2 }, { 2, 1 }):hash "w")
    new(core.tensor("f32", { 1 }, { 0.0 }):hash "w")
    new(core.tensor("f32", { 1 }, { -0.0 }):hash "w")
  end)

  it("is the sum of the shares of its shards, by rows and by columns", function()
    local whole = t:hash_int "w"
    assert.equal(whole, t:narrow(1, 1, 1):hash_int("w", 0, 0, 6) +
      t:narrow(1, 2, 3):hash_int("w", 1, 0, 6))
    local left, right = {}, {}
    for r, row in ipairs(t:to_table()) do
      left[r] = { row[1], row[2] }
      right[r] = { row[3], row[4], row[5], row[6] }
    end
    assert.equal(whole, core.tensor("f32", { 4, 2 }, left):hash_int("w", 0, 0, 6) +
      core.tensor("f32", { 4, 4 }, right):hash_int("w", 0, 2, 6))
  end)

  it("takes all dims after the first as columns", function()
    local flat = core.tensor("f32", { 4, 6 }, t:flat())
    local deep = core.tensor("f32", { 4, 2, 3 }, t:flat())
    assert.equal(flat:hash "w", deep:hash "w")
    assert.equal("0000000000000000", core.tensor("i64", { 0 }):hash "w")
  end)
end)

describe("the hash that a team shares out", function()
  it("misses no row: it is that of the tensor, in tasks of any number", function()
    for _, vocab in ipairs { 61, 1025, 2051 } do -- 1,025 rows of 32 are a task
      local run <close> = models.start({ vocab = vocab, layers = 1 }, { threads = 2 })
      for _, param in ipairs(run.plan["local"].params) do
        local own = run:stored(param, "weight "):hash(param.name)
        assert.equal(own, run:stored_hash(param, "weight ", param.name), param.name .. vocab)
      end
    end
  end)
end)
