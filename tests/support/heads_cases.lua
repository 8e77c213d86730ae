--- heads_cases.lua - channels of heads, with f64 oracles.
local promises = require "support.promises"

local spread = promises.spread
local heads_cases = { cases = {} }

local function add(case) heads_cases.cases[#heads_cases.cases + 1] = case end

--- Element (row, head, channel), from 0, of a flat (rows, heads, channels); one head may be all.
local function at(x, shape, row, head, channel)
  local count, channels = table.unpack(shape)
  return x[(row * count + (count == 1 and 0 or head)) * channels + channel + 1]
end

--- Pieces of x, from channel `first` on.
local function split(heads, channels, first, widths)
  add {
    op = "split_heads", rows = 5, by_row = { true }, attrs = { parts = #widths, first = first },
    name = ("%d heads of %d from %d into %s"):format(heads, channels, first,
      table.concat(widths, ", ")),
    inputs = function(dtype, rows) return { spread(dtype, { rows, heads, channels }, 1) } end,
    outputs = function(dtype, rows)
      local list = {}
      for i, width in ipairs(widths) do list[i] = { dtype, { rows, heads, width } } end
      return list
    end,
    oracle = function(x, _, rows)
      local list, from = {}, first
      for i, width in ipairs(widths) do
        list[i] = {}
        for row = 0, rows - 1 do
          for head = 0, heads - 1 do
            for c = 0, width - 1 do
              table.insert(list[i], at(x[1], { heads, channels }, row, head, from + c))
            end
          end
        end
        from = from + width
      end
      return list
    end,
  }
end

--- Pieces { heads, channels }, one beside the other.
local function join(heads, pieces)
  local channels, words, by_row = 0, {}, {}
  for i, piece in ipairs(pieces) do
    channels, words[i], by_row[i] = channels + piece[2], table.concat(piece, " of "), true
  end
  add {
    op = "join_heads", rows = 4, by_row = by_row, attrs = { parts = #pieces },
    name = table.concat(words, ", "),
    inputs = function(dtype, rows)
      local list = {}
      for i, piece in ipairs(pieces) do list[i] = spread(dtype, { rows, piece[1], piece[2] }, i) end
      return list
    end,
    outputs = function(dtype, rows) return { { dtype, { rows, heads, channels } } } end,
    oracle = function(x, _, rows)
      local y = {}
      for row = 0, rows - 1 do
        for head = 0, heads - 1 do
          for i, piece in ipairs(pieces) do
            for c = 0, piece[2] - 1 do y[#y + 1] = at(x[i], piece, row, head, c) end
          end
        end
      end
      return { y }
    end,
  }
end

local function sum(heads, channels, first, width, leaves)
  add {
    op = "sum_heads", rows = 3, by_row = { true }, attrs = { first = first, leaves = leaves },
    name = ("%d heads of %d, %d from %d, %d leaves"):format(heads, channels, width, first, leaves),
    inputs = function(dtype, rows) return { spread(dtype, { rows, heads, channels }, 1) } end,
    outputs = function(dtype, rows) return { { dtype, { rows, width } } } end,
    oracle = function(x, _, rows)
      local y = {}
      for row = 0, rows - 1 do
        for c = 0, width - 1 do
          local total = 0.0
          for head = 0, heads - 1 do
            total = total + at(x[1], { heads, channels }, row, head, first + c)
          end
          y[#y + 1] = total
        end
      end
      return { y }
    end,
  }
end

split(2, 7, 0, { 4, 3 })
split(1, 40, 0, { 32, 8 })
split(3, 24, 5, { 1, 9, 4 })
join(2, { { 2, 4 }, { 2, 3 } })
join(3, { { 3, 5 }, { 1, 4 } })
join(4, { { 1, 8 }, { 4, 16 }, { 1, 1 } })
sum(2, 6, 2, 4, 1)
sum(12, 24, 16, 8, 4)
sum(64, 80, 0, 80, 64)

return heads_cases
