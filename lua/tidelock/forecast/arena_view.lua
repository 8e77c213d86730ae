--- arena_view.lua - the arena of a rank as a picture (SVG): which buffer lies where, from when to
--- when.
---
---     bytes ^  [activation of layer 0      ]
---           |        [gradient ][ .. ]          planned: a column an instruction
---           |  [weights                     ]   real: instructions as wide as they took
---           +--------------------------------> instructions, or milliseconds
---
--- A buffer's name, size, instructions and recipe line appear over it as a tooltip.
local forecast = require "tidelock.forecast"
local screen = require "tidelock.text.screen"

local arena_view = {}

--- Buffers of a rank's step, as the planner placed them.
---@return table[] # { name, bytes, offset, first, last, kind, site }: instructions from 1; both
---  ends of the section where the buffer lives throughout
function arena_view.buffers(rank)
  local range, list = rank.sections.step, {}
  local begin, finish = range[1], range[1] + range[2] - 1
  for _, buffer in ipairs(rank.buffers) do
    local used = buffer.first and buffer.first <= finish and buffer.last >= begin
    if used or buffer.persistent and buffer.first then
      local whole = buffer.persistent or buffer.kept
      local first = buffer.persistent and begin or math.max(begin, buffer.first)
      list[#list + 1] = {
        name = forecast.buffer_name(rank, buffer), bytes = buffer.bytes, offset = buffer.offset,
        first = first, last = whole and finish or math.min(finish, buffer.last), kind = buffer.kind,
        site = rank.instructions[buffer.first].site or "?",
      }
    end
  end
  return list, begin, finish
end

local colours = {
  weights = "#4e79a7", gradients = "#f28e2b", optimizer = "#76b7b2", activations = "#59a14f",
  data = "#edc948", state = "#b07aa1",
}

local width, height, left, top, gap = 1100, 380, 70, 34, 84

local function escaped(text)
  return (text:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;",
    ['"'] = "&quot;" }))
end

--- One panel: `edges[i]` and `edges[i + 1]` are where instruction begin + i - 1 starts and ends, as
--- shares of the width.
local function panel(out, y, title, buffers, bytes, begin, edges)
  out[#out + 1] = ('<text class="title" x="%d" y="%d">%s</text>'):format(left, y - 10,
    escaped(title))
  out[#out + 1] = ('<rect class="frame" x="%d" y="%d" width="%d" height="%d"/>'):format(left, y,
    width, height)
  for part = 0, 4 do
    out[#out + 1] = ('<text class="axis" x="%d" y="%.1f" text-anchor="end">%s</text>'):format(
      left - 6, y + height - height * part / 4 + 4, screen.mib(bytes * part / 4))
  end
  for _, b in ipairs(buffers) do
    local x = left + width * edges[b.first - begin + 1]
    local w = width * (edges[b.last - begin + 2] - edges[b.first - begin + 1])
    local h = height * b.bytes / bytes
    out[#out + 1] = ('<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s"><title>%s'
      .. '</title></rect>'):format(x, y + height - height * b.offset / bytes - h,
      math.max(w, 0.3), math.max(h, 0.3), colours[b.kind] or "#9c755f", escaped(
        ("%s: %s bytes at %s, instructions %d to %d, %s, %s"):format(b.name,
          screen.grouped(b.bytes), screen.grouped(b.offset), b.first - 1, b.last - 1, b.kind,
          b.site)))
  end
end

local function legend(out, y)
  local x = left
  for _, kind in ipairs { "weights", "gradients", "optimizer", "activations", "data", "state" } do
    out[#out + 1] = ('<rect x="%d" y="%d" width="12" height="12" fill="%s"/>'):format(x, y - 10,
      colours[kind])
    out[#out + 1] = ('<text class="axis" x="%d" y="%d">%s</text>'):format(x + 17, y, kind)
    x = x + 120
  end
end

local style = [[<style>
svg { background: #fff; font: 12px sans-serif; } text { fill: #222; } .title { font-size: 14px; }
.frame { fill: none; stroke: #999; } rect { stroke: rgba(0, 0, 0, .25); stroke-width: .3; }
@media (prefers-color-scheme: dark) { svg { background: #1b1b1b; } text { fill: #ddd; } }
</style>]]

--- Shares of the width for instructions of equal width.
local function even(count)
  local edges = {}
  for i = 0, count do edges[i + 1] = i / count end
  return edges
end

--- The picture.
---@param view table # title, buffers, bytes (of the arena), begin, finish; real?: { edges, title }
---@return string
function arena_view.svg(view)
  local panels = view.real and 2 or 1
  local total = top + 20 + panels * (height + gap)
  local out = {
    ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">'):format(
      left + width + 20, total), style,
    ("<title>%s</title>"):format(escaped(view.title)),
  }
  panel(out, top + 20, ("%s, planned: %s MiB; across: instructions %d to %d; up: MiB"):format(
    view.title, screen.mib(view.bytes), view.begin - 1, view.finish - 1), view.buffers, view.bytes,
    view.begin, even(view.finish - view.begin + 1))
  if view.real then
    panel(out, top + 20 + height + gap, view.real.title, view.buffers, view.bytes, view.begin,
      view.real.edges)
  end
  legend(out, total - 24)
  out[#out + 1] = "</svg>\n"
  return table.concat(out, "\n")
end

return arena_view
