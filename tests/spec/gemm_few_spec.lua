-- linear for few rows has a way of its own (kernels/gemm/gemm_few.c): the bits of many rows.
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
