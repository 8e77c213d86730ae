--- moe_order_cases.lua - operators of kernels/moe/ that count and order rows, with oracles.
local core = require "tidelock.core"
local moe = require "support.moe_cases"
local promises = require "support.promises"
local spread = promises.spread

local order = { cases = {} }

local function add(case) order.cases[#order.cases + 1] = case end

add {
  op = "balance_loss", name = "five experts", rows = 3, dtypes = { "f32" }, attrs = { length = 16 },
  inputs = function(_, rows)
    return { spread("f32", { rows, 5 }, 1, 2, 3), spread("f32", { rows, 5 }, 2, 2, 3) }
  end,
  outputs = function(_, rows) return { { "f32", { rows } } } end,
  oracle = function(x, _, rows)
    local loss = {}
    for row = 1, rows do
      loss[row] = 0.0
      for i = (row - 1) * 5 + 1, row * 5 do loss[row] = loss[row] + 5 * x[1][i] * x[2][i] / 256 end
    end
    return { loss }
  end,
}

local listing = { 3, 0, -1, 4, 1, 2 }

add {
  op = "expert_order", name = "six places", rows = 6, dtypes = { "f32" }, error = 0,
  attrs = { experts = listing },
  inputs = function(_, rows) return { core.tensor("i32", { rows, 2 }, moe.ids(rows, 5, 2, 3)) } end,
  outputs = function(_, rows)
    return { { "i32", { rows, 2 } }, { "i32", { rows * 2 } }, { "i32", { 7 } } }
  end,
  oracle = function(x)
    local place, places, starts = {}, {}, {}
    for p, expert in ipairs(listing) do
      starts[p] = #places
      for i, id in ipairs(x[1]) do
        if id == expert then
          place[i] = #places
          places[#places + 1] = i - 1
        end
      end
    end
    starts[7] = #places
    return { place, places, starts }
  end,
}

add {
  op = "expert_counts", name = "two pieces of a sample", rows = 8, dtypes = { "f32" }, error = 0,
  attrs = { samples = 2, pieces = 2, block = 6, token_first = 4 },
  inputs = function(_, rows) return { core.tensor("i32", { rows, 2 }, moe.ids(rows, 3, 2, 5)) } end,
  outputs = function() return { { "i32", { 4, 3 } } } end,
  oracle = function(x)
    local counts = {}
    for i = 1, 12 do counts[i] = 0 end
    for i, id in ipairs(x[1]) do
      local row = (i - 1) // 2
      local piece = row // 4 * 2 + (4 + row % 4) // 6
      counts[piece * 3 + id + 1] = counts[piece * 3 + id + 1] + 1
    end
    return { counts }
  end,
}

local function small_counts()
  return core.tensor("i32", { 4, 2 }, { 1, 2, 0, 3, 4, 0, 2, 2 })
end

for mode = 0, 1 do
  local function start() return core.tensor("i64", { 2 }, { 10, 20 }) end
  add {
    op = "expert_load", name = "mode " .. mode, rows = 4, dtypes = { "f32" }, error = 0,
    attrs = { mode = mode }, inputs = function() return { small_counts() } end,
    outputs = function() return { { "i64", { 2 }, mode == 1 and start or nil } } end,
    oracle = function() return { mode == 1 and { 17, 27 } or { 7, 7 } } end,
  }
end

add {
  op = "load_sign", name = "above, below and at the mean", rows = 3, dtypes = { "f32" }, error = 0,
  inputs = function() return { core.tensor("i64", { 3 }, { 1 << 40, (1 << 40) + 1,
    (1 << 40) - 1 }) } end,
  outputs = function() return { { "f32", { 3 } } } end,
  oracle = function() return { { 0, -1, 1 } } end,
}

add {
  op = "expert_segments", name = "two ranks", rows = 4, dtypes = { "f32" }, error = 0,
  attrs = { ranks = 2, share = 1, position = 1, waves = 1, wave = 0, experts = { 0, 1 } },
  inputs = function() return { small_counts() } end,
  outputs = function() return { { "i32", { 2 } }, { "i32", { 1, 5 } } } end,
  oracle = function() return { { 0, 7 }, { 0, 2, 5, 5, 7 } } end,
}

add {
  op = "take_rows", name = "two places of three", rows = 3,
  attrs = { per = 2, first = 1, last = 3 },
  inputs = function(dtype, rows)
    return { spread(dtype, { rows, 5 }, 1), core.tensor("i32", { 6 }, { 4, 1, 5, 0, 2, 3 }),
      core.tensor("i32", { 4 }, { 0, 1, 4, 6 }) }
  end,
  outputs = function(dtype) return { { dtype, { 5, 5 } } } end,
  oracle = function(x)
    local rows = {}
    for _, token in ipairs { 0, 2, 0, 1, 1 } do
      table.move(x[1], token * 5 + 1, token * 5 + 5, #rows + 1, rows)
    end
    return { rows }
  end,
  error = 0,
}

return order
