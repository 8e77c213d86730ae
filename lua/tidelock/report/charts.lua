--- charts.lua - the two pictures of a report that are no plain plots: a roofline, an arena in time.
---
---     roof       FLOP/s ^        ____ peak          arena    bytes ^  [activation      ]
---     (both axes |   o /    o                                      |       [gradient ]
---     log)       | o  / bandwidth                                  |  [weights               ]
---                +------> FLOP a byte                              +---> instructions, or time
local screen = require "tidelock.text.screen"
local svg = require "tidelock.text.svg"

local charts = {}

local kit = svg.kit

--- Powers of ten from below `low` to above `high`.
local function decades(low, high)
  local first = math.floor(math.log(low, 10))
  local last = math.max(first + 1, math.ceil(math.log(high, 10)))
  local ticks = {}
  for power = first, last do ticks[#ticks + 1] = 10.0 ^ power end
  return ticks
end

local function log_scale(ticks, from, to)
  local low, high = math.log(ticks[1], 10), math.log(ticks[#ticks], 10)
  return { ticks = ticks, at = function(value)
    return from + (math.log(value, 10) - low) / (high - low) * (to - from)
  end }
end

--- Operators under the roof of a machine.
---@param name string
---@param points { label: string, x: number, y: number }[] # FLOP a byte, GFLOP/s
---@param roof { peak: number, bandwidth: number } # GFLOP/s, GB/s
function charts.roof(name, points, roof)
  local box = { left = 60, right = 704, top = 24, bottom = 300 }
  local ridge = roof.peak / roof.bandwidth
  local low, high, least, most = ridge / 10, ridge * 10, roof.peak, roof.peak
  for _, point in ipairs(points) do
    low, high = math.min(low, point.x), math.max(high, point.x)
    least, most = math.min(least, point.y), math.max(most, point.y)
  end
  local xs = log_scale(decades(low, high), box.left, box.right)
  local ys = log_scale(decades(least, most), box.bottom, box.top)
  local parts = kit.frame(box, xs, ys, { "FLOP a byte", "GFLOP/s" })
  local left, right = xs.ticks[1], xs.ticks[#xs.ticks]
  local start = math.max(left, ys.ticks[1] / roof.bandwidth) -- the slope begins at the frame
  local line = ("%.1f,%.1f %.1f,%.1f %.1f,%.1f"):format(xs.at(start), ys.at(start * roof.bandwidth),
    xs.at(ridge), ys.at(roof.peak), xs.at(right), ys.at(roof.peak))
  parts[#parts + 1] = kit.titled("polyline", { "points", line, "class", "line", "stroke",
    svg.color(2) }, ("ceiling: %.4g GB/s, %.4g GFLOP/s"):format(roof.bandwidth, roof.peak))
  for _, point in ipairs(points) do
    parts[#parts + 1] = kit.titled("circle", { "cx", xs.at(point.x), "cy", ys.at(point.y), "r", 5,
      "fill", svg.color(1) }, ("%s: %.4g GFLOP/s at %.4g FLOP a byte"):format(point.label, point.y,
      point.x))
  end
  return kit.picture(720, 340, name, parts)
end

charts.kinds = { "weights", "gradients", "optimizer", "activations", "data", "state", "others" }

local function color_of(kind)
  for i, known in ipairs(charts.kinds) do
    if kind == known then return svg.color(i) end
  end
  return svg.color(#charts.kinds)
end

--- The arena of a rank: which buffer lies where, from which instruction to which.
---@param name string
---@param view table # of arena_view.lua
---@param edges? number[] # where instructions begin, as shares of the width; alike unless given
---@param across string # what the width is
function charts.arena(name, view, edges, across)
  local box = { left = 60, right = 704, top = 24, bottom = 260 }
  local count, mib = view.finish - view.begin + 1, 2 ^ 20
  local function at(i) -- the left edge of the i-th instruction, from 1
    return box.left + (box.right - box.left) * (edges and edges[i] or (i - 1) / count)
  end
  local scale = (box.bottom - box.top) / view.bytes
  local ys = { ticks = svg.ticks(0, view.bytes / mib), at = function(value)
    return box.bottom - value * mib * scale
  end }
  local parts = kit.frame(box, { ticks = {} }, ys, { across, "MiB" })
  for _, b in ipairs(view.buffers) do
    local first, last = at(b.first - view.begin + 1), at(b.last - view.begin + 2)
    local high = math.max(b.bytes * scale, 0.3)
    parts[#parts + 1] = kit.titled("rect", { "x", first, "y",
      box.bottom - b.offset * scale - high, "width", math.max(last - first, 0.3), "height", high,
      "fill", color_of(b.kind) }, ("%s: %s bytes, instructions %d to %d, %s, %s"):format(b.name,
      screen.grouped(b.bytes), b.first - 1, b.last - 1, b.kind, b.site))
  end
  return kit.picture(720, 300, name, parts)
end

return charts
