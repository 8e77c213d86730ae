--- attention_cases.lua - small segments for the tests that every row of ops.def has, in f64 by
--- attention_oracle.lua. The order of every sum, and large shapes: tests/spec/attention_spec.lua.
local core = require "tidelock.core"
local oracle = require "support.attention_oracle"
local promises = require "support.promises"
local spread = promises.spread

local attention = { cases = {} }

local cu, rows_all = { 0, 5, 5, 6, 13 }, 13
local heads, kv_heads, width, value_width = 4, 2, 6, 5

--- Probabilities of bf16 are rounded before they weigh anything: 2^-8 of the largest value.
local allowed = { f32 = 4e-6, bf16 = 2e-2 }

local function operands(dtype, rows)
  return { spread(dtype, { rows, heads, width }, 1), spread(dtype, { rows, kv_heads, width }, 2),
    spread(dtype, { rows, kv_heads, value_width }, 3) }
end

local function segments(rows)
  return core.tensor("i32", { rows == rows_all and #cu or 2 }, rows == rows_all and cu
    or { 0, rows })
end

for dtype, allow in pairs(allowed) do
  for _, window in ipairs { 0, 3 } do
    local scale = core.f32(0.4)
    local attrs = { window = window, kv_block = 16, split = 16, scale = scale }
    local shape = { heads = heads, kv_heads = kv_heads, width = width, value_width = value_width,
      window = window, scale = scale }
    local function of(list)
      shape.cu = list
      return shape
    end
    local name = window == 0 and "all before" or "a window of 3"
    attention.cases[#attention.cases + 1] = {
      op = "attention", name = name, rows = rows_all, attrs = attrs, dtypes = { dtype },
      inputs = function(kind, rows)
        local x = operands(kind, rows)
        x[4] = segments(rows)
        return x
      end,
      outputs = function(kind, rows)
        return { { kind, { rows, heads, value_width } }, { "f32", { rows, heads } } }
      end,
      oracle = function(x) return { oracle.forward(of(x[4]), x[1], x[2], x[3]) } end,
      error = allow,
    }
    local backward = { head_leaves = 2, dk_scale = scale }
    for key, value in pairs(attrs) do backward[key] = value end
    attention.cases[#attention.cases + 1] = {
      op = "attention_grad", name = name, rows = rows_all, attrs = backward, dtypes = { dtype },
      inputs = function(kind, rows)
        local x = operands(kind, rows)
        local o = core.tensor(kind, { rows, heads, value_width })
        local lse = core.tensor("f32", { rows, heads })
        core.call("attention", { x[1], x[2], x[3], segments(rows) }, { o, lse }, attrs)
        x[4], x[5], x[6] = o, lse, spread(kind, { rows, heads, value_width }, 4)
        x[7] = segments(rows)
        return x
      end,
      outputs = function(kind, rows)
        return { { kind, { rows, heads, width } }, { kind, { rows, kv_heads, width } },
          { kind, { rows, kv_heads, value_width } } }
      end,
      oracle = function(x) return { oracle.backward(of(x[7]), x[1], x[2], x[3], x[6]) } end,
      error = allow * 4,
    }
  end
end
table.sort(attention.cases, function(a, b)
  return a.op .. a.name .. a.dtypes[1] < b.op .. b.name .. b.dtypes[1]
end)

return attention
