local cluster = require "tidelock.forecast.cluster"
local core = require "tidelock.core"

local function file_with(text)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
  return path
end

local function message(text)
  local path = file_with(text)
  local good, problem = pcall(cluster.read, path)
  os.remove(path)
  assert.is_false(good)
  return (problem.message:gsub(path:gsub("%p", "%%%0"), "FILE"))
end

describe("YAML", function()
  it("gives maps, lists and typed scalars", function()
    assert.are.same({ a = 1, b = { 2.5, "x", true }, c = { d = "7" } },
      core.yaml.decode 'a: 1\nb: [2.5, x, true]\nc:\n  d: "7"\n')
  end)

  it("names the line of what it cannot read", function()
    for text, wanted in pairs {
      ["a: [1"] = "line 2", ["a: 1\na: 2"] = "line 2: this key stands twice",
      ["a: &x 1\nb: *x"] = "line 2: anchors are not read",
    } do
      local good, problem = pcall(core.yaml.decode, text)
      assert.is_false(good)
      assert.is_truthy(problem:find(wanted, 1, true), problem)
    end
  end)

  it("is nothing for an empty text", function() assert.is_nil(core.yaml.decode "") end)
end)

describe("a cluster file", function()
  it("is read whole", function()
    assert.are.equal(740, cluster.read("recipes/clusters/h200x8.yaml").matrix.bf16)
    assert.are.equal(2, cluster.read("recipes/clusters/laptop.yaml").ranks)
  end)

  it("with mistakes is an error that names all of them", function()
    local text = message "name: x\nlinks: 3\nranks: 0\n"
    assert.is_truthy(text:find("FILE: links: no such fact; did you mean link?", 1, true), text)
    assert.is_truthy(text:find("FILE: ranks: expected a positive number", 1, true), text)
    assert.is_truthy(text:find("FILE: matrix: expected { bf16: TFLOP/s, f32: TFLOP/s }", 1, true))
  end)

  it("has shares of the products' speed, and attention's with narrow heads", function()
    local facts = { matrix = { bf16 = 100 }, attention = 50 }
    assert.equal(100e12, cluster.products(facts, "bf16", 8))
    assert.equal(50e12, cluster.attention(facts, 64))
    facts.sustained, facts.leaves, facts.attention_64 = 0.5, { 0.75, 0.5 }, 25
    for leaves, tera in pairs { [1] = 50, [2] = 37.5, [3] = 25, [4] = 25, [64] = 25 } do
      assert.equal(tera * 1e12, cluster.products(facts, "bf16", leaves))
    end
    assert.same({ 25e12, 50e12 }, { cluster.attention(facts, 64), cluster.attention(facts, 65) })
    local text = message "sustained: 1.5\nleaves: [0.9, 2]\n"
    assert.is_truthy(text:find("sustained: expected a share, at most 1", 1, true), text)
    assert.is_truthy(text:find("leaves: expected shares with 2, 4, 8, .. leaves", 1, true), text)
  end)

  it("that is absent is an error", function()
    local good, problem = pcall(cluster.read, "no/such.yaml")
    assert.is_false(good)
    assert.matches("^no/such.yaml: there is no such file; the current folder has ", problem.message)
    good, problem = pcall(cluster.read, "/dev/null")
    assert.is_false(good)
    assert.equal("/dev/null: not a regular file", problem.message)
  end)

  it("has a device that there is", function()
    assert.is_truthy(message("device: tpu\n"):find("device: expected host or cuda", 1, true))
  end)
end)
