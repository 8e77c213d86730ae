-- What one tensor parallel rank holds and computes.
local models = require "support.models"
local shard = require "tidelock.plan.stages.shard"

local function sharded(options) return models.plan(options, "shard")["local"] end

local function param_of(l, name)
  for _, param in ipairs(l.params) do
    if param.name == name then return param end
  end
  error("no weight " .. name)
end

--- { rows, cols, row_first of each rank, col_first of each rank }
local function shape(l, name)
  local p = param_of(l, name)
  local function list(first)
    if type(first) ~= "table" then return first end
    return table.concat(first, " ")
  end
  return { p.rows, p.cols, list(p.row_first), list(p.col_first) }
end

local function nodes_of(l, op)
  local list = {}
  for _, node in ipairs(l.nodes) do
    if node.op == op then list[#list + 1] = node end
  end
  return list
end

describe("a shard", function()
  local wide = { heads = 8, kv_heads = 2, leaves = { tp = 8 }, hidden = 48 }

  it("of a column weight is rows, of a row weight columns, of the trunk everything", function()
    local l = sharded(models.with(wide, { ["layout.tp"] = 2 }))
    assert.same({ 16, 32, "0 16", 0 }, shape(l, "layers.0.attention.q"))
    assert.same({ 4, 32, "0 4", 0 }, shape(l, "layers.0.attention.k"))
    assert.same({ 32, 16, 0, "0 16" }, shape(l, "layers.0.attention.o"))
    assert.same({ 24, 32, "0 24", 0 }, shape(l, "layers.0.swiglu.gate"))
    assert.same({ 32, 24, 0, "0 24" }, shape(l, "layers.0.swiglu.down"))
    assert.same({ 32, 1, 0, 0 }, shape(l, "norm.gain"))
  end)

  it("of kv heads is one head for several ranks when there are more ranks than heads", function()
    local l = sharded(models.with(wide, { ["layout.tp"] = 8 }))
    assert.same({ 4, 32, "0 0 0 0 4 4 4 4", 0 }, shape(l, "layers.0.attention.k"))
    assert.equal(4, param_of(l, "layers.0.attention.k").replicas)
    assert.same({ 4, 32, "0 4 8 12 16 20 24 28", 0 }, shape(l, "layers.0.attention.q"))
  end)

  it("of the vocabulary is a run of the padded one, a function of the policy", function()
    for tp, rows in pairs { [1] = 128, [2] = 64, [4] = 32, [8] = 16 } do
      assert.equal(rows, param_of(sharded(models.with(wide, { ["layout.tp"] = tp })), "embed").rows)
    end
    local columns = nodes_of(sharded(models.with(wide, { ["layout.tp"] = 4 })), "row_max")[1].attrs
    assert.same({ 32, 29, 0, 0 }, { table.unpack(columns.columns) }) -- 61 true columns
  end)

  it("of a sample is a run of it under sequence parallelism, else all of it", function()
    for parallel, rows in pairs { [true] = 16, [false] = 32 } do
      local l = sharded { ["layout.tp"] = 2, ["layout.sequence_parallel"] = parallel }
      for _, node in ipairs(nodes_of(l, "rms_norm")) do
        assert.equal(rows, node.outputs[1].rows)
        assert.equal("trunk", node.outputs[1].region)
      end
      for _, node in ipairs(nodes_of(l, "attention")) do assert.equal(32, node.outputs[1].rows) end
    end
  end)

  it("gathers before a column op and folds after a row op, once each", function()
    local l = sharded { ["layout.tp"] = 2, layers = 2 }
    assert.equal(2 * 2 + 1, #nodes_of(l, "gather")) -- attention, swiglu; the head
    assert.equal(2 * 2 + 1, #nodes_of(l, "reduce")) -- attention, swiglu; the embedding
    assert.equal(0, #nodes_of(sharded { layers = 2 }, "reduce"))
  end)

  it("sums its leaves: all of them on one rank, its share on several", function()
    for tp, leaves in pairs { [1] = 8, [2] = 4, [8] = 1 } do
      local layout = { ["layout.tp"] = tp, ["layout.sequence_parallel"] = false }
      local l = sharded(models.with(wide, layout))
      for _, node in ipairs(nodes_of(l, "linear")) do
        local row = node.inner and leaves or 1
        assert.equal(row, node.attrs.leaves, node.path)
      end
    end
  end)
end)

describe("leaves of the q heads of a kv head", function()
  it("are a function of leaves.tp and the heads", function()
    local function leaves(...) return shard.head_leaves(...) end
    assert.equal(4, leaves(8, 8, 2))
    assert.equal(2, leaves(4, 8, 2))
    assert.equal(1, leaves(4, 8, 4)) -- one leaf of two heads
    assert.equal(1, leaves(4, 12, 12))
    assert.equal(4, leaves(4, 12, 1))
    assert.equal(1, leaves(1, 8, 1))
    assert.equal(1, leaves(4, 6, 3)) -- gcd 2 holds no whole number of 3 heads
  end)
end)
