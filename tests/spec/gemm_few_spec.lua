-- linear for few rows has ways of its own (kernels/gemm/gemm_few.c, gemm_panels.c), and weights may
-- lie in panels: the bits of many rows and of plain weights.
local core = require "tidelock.core"
local promises = require "support.promises"
local support = require "support"

--- y of both parts for rows first .. first + count - 1 of x.
local function linear(o, x, weights, biases, first, count, threads)
  local inputs = { x:narrow(1, first, count), weights[1], weights[2] }
  if o.bias then table.move(biases, 1, 2, 4, inputs) end
  local outputs = {}
  for i, width in ipairs(o.widths) do outputs[i] = support.poison(o.out, { count, width }) end
  core.call("linear", inputs, outputs, { parts = 2, biases = o.bias and 1 or 0,
    leaves = o.leaves }, { threads = threads })
  return outputs
end

local shapes = {
  { depth = 64, widths = { 64, 16 }, leaves = 1, out = "f32" },
  { depth = 37, widths = { 5, 70 }, leaves = 4, out = "f32", bias = true },
  { depth = 16, widths = { 130, 1 }, leaves = 8, out = "bf16", bias = true },
  { depth = 300, widths = { 17, 33 }, leaves = 2, out = "f32" },
  { depth = 3, widths = { 40, 64 }, leaves = 8, out = "f32" },
}

describe("linear of few rows", function()
  for _, o in ipairs(shapes) do
    it(("has the bits of many: depth %d, %d and %d features, %d leaves"):format(o.depth,
      o.widths[1], o.widths[2], o.leaves), function()
      local x, weights, biases = promises.spread("f32", { 20, o.depth }, 1), {}, {}
      for i, width in ipairs(o.widths) do
        weights[i] = promises.spread("f32", { width, o.depth }, 1 + i)
        biases[i] = promises.spread("f32", { width }, 5 + i)
      end
      local many = linear(o, x, weights, biases, 1, 20, 2)
      for count = 1, 9 do
        for _, first in ipairs { 1, 21 - count } do
          local few = linear(o, x, weights, biases, first, count, count % 3 + 1)
          for i = 1, 2 do assert.bits(many[i]:narrow(1, first, count), few[i]) end
        end
      end
    end)
  end
end)

describe("weights in panels", function()
  for _, o in ipairs(shapes) do
    it(("change no bit: depth %d, %d and %d features, %d leaves"):format(o.depth, o.widths[1],
      o.widths[2], o.leaves), function()
      local x, weights, panels, biases = promises.spread("f32", { 40, o.depth }, 1), {}, {}, {}
      for i, width in ipairs(o.widths) do
        weights[i] = promises.spread("f32", { width, o.depth }, 1 + i)
        biases[i], panels[i] = promises.spread("f32", { width }, 5 + i), core.panels(weights[i])
        assert.same({ (width + 63) // 64, o.depth, 64 }, panels[i]:shape())
      end
      local many = linear(o, x, weights, biases, 1, 40, 2)
      for _, count in ipairs { 1, 2, 3, 4, 5, 7, 8, 9, 40 } do
        for _, first in ipairs { 1, 41 - count } do
          local few = linear(o, x, panels, biases, first, count, count % 3 + 1)
          for i = 1, 2 do assert.bits(many[i]:narrow(1, first, count), few[i]) end
        end
      end
    end)
  end

  it("are a table for ids, too", function()
    for _, vocab in ipairs { 5, 64, 130 } do
      local table_ = promises.spread("f32", { vocab, 37 }, 3)
      local list = { 0, vocab - 1, -1, vocab // 2, 7, vocab + 70 } -- what is not there gives +0
      local ids = core.tensor("i32", { #list }, list)
      local plain = support.poison("f32", { #list, 37 })
      local other = support.poison("f32", { #list, 37 })
      core.call("embedding", { ids, table_ }, { plain }, { first = 2 })
      core.call("embedding", { ids, core.panels(table_) }, { other }, { first = 2 })
      assert.bits(plain, other)
    end
  end)

  it("are refused where others are plain, and by their size", function()
    local x, w = promises.spread("f32", { 1, 8 }, 1), promises.spread("f32", { 70, 8 }, 2)
    local y = core.tensor("f32", { 1, 70 })
    local attrs = { parts = 2, biases = 0, leaves = 1 }
    assert.has_error(function()
      core.call("linear", { x, core.panels(w), w }, { y, core.tensor("f32", { 1, 70 }) }, attrs)
    end, "linear: all weights are in panels, or none is")
    attrs.parts = 1
    assert.error_matches(function()
      core.call("linear", { x, core.panels(w) }, { core.tensor("f32", { 1, 129 }) }, attrs)
    end, "linear: weight is 2 x 512; expected 3 x 512")
    assert.error_matches(function()
      core.panels(core.tensor("bf16", { 4, 4 }))
    end, "a matrix of f32")
  end)
end)
