--- embedding_cases.lua - embedding, its gradient and positions, with f64 oracles.
local core = require "tidelock.core"
local promises = require "support.promises"
local support = require "support"
local spread = promises.spread

local embedding = { cases = {} }

--- `rows` ids below `vocab`, one in eight of them padding (-1); `stream` picks them.
function embedding.ids(rows, vocab, stream)
  local ids = {}
  for i = 1, rows do
    local value = support.fill_value(stream, i)
    ids[i] = i % 8 == 3 and -1 or math.floor((value + 1) / 2 * vocab)
  end
  return core.tensor("i32", { rows }, ids)
end

for _, shape in ipairs { { 32, 0, 16, 33 }, { 32, 8, 8, 130 }, { 257, 0, 257, 5 },
  { 9, 0, 9, 2500 } } do
  local vocab, first, owned, width = table.unpack(shape)
  embedding.cases[#embedding.cases + 1] = {
    op = "embedding", rows = 20, attrs = { first = first }, by_row = { true, false },
    name = ("ids %d..%d of %d, width %d"):format(first, first + owned - 1, vocab, width),
    inputs = function(dtype, rows)
      return { embedding.ids(rows, vocab, 1), spread(dtype, { owned, width }, 2) }
    end,
    outputs = function(dtype, rows) return { { dtype, { rows, width } } } end,
    oracle = function(x)
      local y = {}
      for row, id in ipairs(x[1]) do
        local mine = id >= first and id < first + owned
        for c = 1, width do
          y[#y + 1] = mine and x[2][(id - first) * width + c] or 0.0
          assert(#y == (row - 1) * width + c)
        end
      end
      return { y }
    end,
    error = 0,
  }
  for mode = 0, 2 do
    local function start() return spread("f32", { owned, width }, 9) end
    embedding.cases[#embedding.cases + 1] = {
      op = "embedding_grad", rows = 48,
      name = ("mode %d, ids %d..%d of %d, width %d"):format(mode, first, first + owned - 1, vocab,
        width),
      attrs = { first_id = first, first = 8, samples = 4, length = 9, mode = mode },
      inputs = function(dtype, rows)
        return { embedding.ids(rows, vocab, 1), spread(dtype, { rows, width }, 3) }
      end,
      outputs = function() return { { "f32", { owned, width }, mode > 0 and start or nil } } end,
      oracle = function(x, attrs)
        local table_ = mode > 0 and start():flat() or {}
        for i = 1, owned * width do table_[i] = table_[i] or 0.0 end
        for row = attrs.first + 1, attrs.first + attrs.samples * attrs.length do
          local id = x[1][row] - first
          if x[1][row] >= 0 and id >= 0 and id < owned then
            for c = 1, width do
              local at = id * width + c
              table_[at] = table_[at] + x[2][(row - 1) * width + c]
            end
          end
        end
        return { table_ }
      end,
    }
  end
end

embedding.cases[#embedding.cases + 1] = {
  op = "position_ids", name = "four segments, one empty", rows = 20, dtypes = { "f32" },
  inputs = function(_, rows)
    local cu = rows == 20 and { 0, 3, 3, 4, 20 } or { 0, rows }
    return { core.tensor("i32", { #cu }, cu) }
  end,
  outputs = function(_, rows) return { { "i32", { rows } } } end,
  oracle = function(x)
    local ids = {}
    for segment = 1, #x[1] - 1 do
      for t = x[1][segment], x[1][segment + 1] - 1 do ids[t + 1] = t - x[1][segment] end
    end
    return { ids }
  end,
  error = 0,
}

embedding.cases[#embedding.cases + 1] = {
  op = "pick_rows", name = "rows in any order, twice, and none", rows = 6, attrs = {},
  by_row = { false, true },
  inputs = function(dtype)
    return { spread(dtype, { 5, 21 }, 2), core.tensor("i32", { 6 }, { 4, 0, -1, 4, 2, -7 }) }
  end,
  outputs = function(dtype, rows) return { { dtype, { rows, 21 } } } end,
  oracle = function(x)
    local y = {}
    for _, from in ipairs(x[2]) do
      for c = 1, 21 do y[#y + 1] = from >= 0 and x[1][from * 21 + c] or 0.0 end
    end
    return { y }
  end,
  error = 0,
}

return embedding
