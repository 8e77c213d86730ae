--- rope_cases.lua - rope and its tables, with f64 oracles.
local core = require "tidelock.core"
local promises = require "support.promises"

local rope = { cases = {} }

--- Waves that turn less than `low` times in the original length are slowed, those that turn more
--- than `high` times kept.
function rope.yarn(f, i, pairs_count, base, s)
  local function border(turns)
    return pairs_count * math.log(s.original / (turns * 2 * math.pi)) / math.log(base)
  end
  local from = math.max(math.floor(border(s.high)), 0)
  local to = math.min(math.ceil(border(s.low)), 2 * pairs_count - 1)
  if from == to then to = to + 0.001 end
  local ramp = math.max(0, math.min(1, (i - from) / (to - from)))
  return f / s.factor * ramp + f * (1 - ramp)
end

--- Frequencies in f64; `scaling` as in the attributes of rope_table.
function rope.frequency(i, pairs_count, base, scaling)
  local f = base ^ (-i / pairs_count)
  if not scaling then return f end
  if scaling.kind == 2 then return rope.yarn(f, i, pairs_count, base, scaling) end
  local wave = 2 * math.pi / f
  if wave > scaling.original / scaling.low then return f / scaling.factor end
  if wave < scaling.original / scaling.high then return f end
  local t = (scaling.original / wave - scaling.low) / (scaling.high - scaling.low)
  return (1 - t) * f / scaling.factor + t * f
end

--- Angles are f32 products of a position and an f32 frequency.
function rope.table(positions, pairs_count, base, scaling)
  local t = {}
  for p = 0, positions - 1 do
    for i = 0, pairs_count - 1 do
      local angle = core.f32(p * core.f32(rope.frequency(i, pairs_count, base, scaling)))
      local loud = scaling and scaling.magnitude or 1
      t[#t + 1], t[#t + 2] = math.cos(angle) * loud, math.sin(angle) * loud
    end
  end
  return t
end

--- x (rows, heads, channels), the table of `turned` channels, segments cu.
function rope.turn(x, cu, t, attrs, channels, heads, turned)
  local y, half = {}, turned // 2
  for segment = 1, #cu - 1 do
    for row = cu[segment], cu[segment + 1] - 1 do
      local angle = (row - cu[segment]) * turned
      for head = 0, heads - 1 do
        local base = (row * heads + head) * channels
        for c = turned + 1, channels do y[base + c] = x[base + c] end
        for i = 0, half - 1 do
          local a = base + (attrs.interleaved == 1 and 2 * i or i) + 1
          local b = a + (attrs.interleaved == 1 and 1 or half)
          local cosine = t[angle + 2 * i + 1]
          local sine = t[angle + 2 * i + 2] * (attrs.inverse == 1 and -1 or 1)
          y[a] = x[a] * cosine - x[b] * sine
          y[b] = x[b] * cosine + x[a] * sine
        end
      end
    end
  end
  return y
end

local segments = { 0, 1, 8, 9, 9, 40 }

for _, shape in ipairs { { 3, 16, 16 }, { 2, 20, 12 }, { 1, 128, 128 } } do
  local heads, channels, turned = table.unpack(shape)
  for inverse = 0, 1 do
    for interleaved = 0, 1 do
      rope.cases[#rope.cases + 1] = {
        op = "rope", rows = 40, attrs = { inverse = inverse, interleaved = interleaved },
        name = ("%d of %d channels, inverse %d, interleaved %d"):format(turned, channels, inverse,
          interleaved),
        inputs = function(dtype, rows)
          local cu = core.tensor("i32", { #segments }, segments)
          local t = core.tensor("f32", { 45, turned // 2, 2 }, rope.table(45, turned // 2, 1e4))
          return { promises.spread(dtype, { rows, heads, channels }, 1), cu, t }
        end,
        outputs = function(dtype, rows) return { { dtype, { rows, heads, channels } } } end,
        oracle = function(x, attrs)
          return { rope.turn(x[1], x[2], x[3], attrs, channels, heads, turned) }
        end,
      }
    end
  end
end

rope.cases[#rope.cases + 1] = {
  op = "rope_rows", name = "rows of many requests", rows = 9,
  attrs = { inverse = 0, interleaved = 0 }, by_row = { true, true, false },
  inputs = function(dtype, rows)
    local at = core.tensor("i32", { 9 }, { 4, 0, 44, 7, 7, 1, 30, 2, 12 })
    local t = core.tensor("f32", { 45, 8, 2 }, rope.table(45, 8, 1e4))
    return { promises.spread(dtype, { rows, 3, 20 }, 1), at, t }
  end,
  outputs = function(dtype, rows) return { { dtype, { rows, 3, 20 } } } end,
  oracle = function(x, attrs, rows)
    local y = {}
    for row = 1, rows do -- a segment that ends with the row
      local before, cu = {}, { 0, x[2][row] + 1 }
      for i = 1, x[2][row] * 60 do before[i] = 0.0 end
      table.move(x[1], (row - 1) * 60 + 1, row * 60, x[2][row] * 60 + 1, before)
      local whole = rope.turn(before, cu, x[3], attrs, 20, 3, 16)
      table.move(whole, x[2][row] * 60 + 1, (x[2][row] + 1) * 60, (row - 1) * 60 + 1, y)
    end
    return { y }
  end,
}

for name, scaling in pairs { plain = false,
  llama3 = { kind = 1, original = 64, factor = 8, low = 1, high = 4 },
  yarn = { kind = 2, original = 64, factor = 8, low = 1, high = 4 },
  ["yarn, louder"] = { kind = 2, original = 4096, factor = 40, low = 1, high = 32,
    magnitude = 1.25 },
  ["yarn, one border"] = { kind = 2, original = 3, factor = 4, low = 1, high = 2 } } do
  local s = scaling or { original = 0, factor = 1, low = 1, high = 4 }
  rope.cases[#rope.cases + 1] = {
    op = "rope_table", name = name, rows = 300, dtypes = { "f32" },
    attrs = { kind = s.kind or 0, original = s.original, base = 10000, factor = s.factor,
      low = s.low, high = s.high, magnitude = s.magnitude or 1 },
    inputs = function() return {} end,
    outputs = function(_, rows) return { { "f32", { rows, 16, 2 } } } end,
    oracle = function(_, attrs, rows) return { rope.table(rows, 16, attrs.base, scaling) } end,
  }
end
table.sort(rope.cases, function(a, b) return a.op .. a.name < b.op .. b.name end)

return rope
