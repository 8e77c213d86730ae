--- svg.lua - charts as SVG text: bars, lines, columns, a schedule. Numbers in, markup out.
--
--   svg.bars     dp 8          |##################  494.1k        a row a bar, parts side by side
--                dp 2 tp 4     |##############  395.1k
--   svg.lines    a line a series over shared axes
--   svg.columns  upright bars and their mean, for the load of many experts
--   svg.spans    rank 0  [F0][F1][B0][F2]                         a row a rank, a box an operation
--
-- Colours are the page's: var(--s1) to var(--s8), so light and dark need one picture. Each chart is
-- an image with a name for readers that do not see it, and each mark has a <title>. Names are
-- escaped. No xmlns: the markup stands inside HTML, which needs none.

local svg = {}

svg.series_most = 8 -- colours that the page has

local escapes = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;",
  ["'"] = "&#39;" }

--- Text as it may stand in HTML, in an element or an attribute. Control characters are not shown.
function svg.escape(text)
  return (tostring(text):gsub("[&<>\"']", escapes):gsub("[%z\1-\8\11\12\14-\31\127]", "?"))
end

--- The colour of series `i`, from 1; after the last the first comes again.
function svg.color(i) return ("var(--s%d)"):format((i - 1) % svg.series_most + 1) end

--- `text` with at most `most` characters.
function svg.short(text, most)
  local count = utf8.len(text)
  if not count or count <= most then return text end
  return text:sub(1, utf8.offset(text, most) - 1) .. "…"
end

local function number(x) return (("%.1f"):format(x):gsub("%.0$", "")) end

local function element(name, attributes, inner)
  local words = { name }
  for i = 1, #attributes, 2 do
    local value = attributes[i + 1]
    words[#words + 1] = ('%s="%s"'):format(attributes[i],
      math.type(value) == "float" and number(value) or svg.escape(value))
  end
  local open = "<" .. table.concat(words, " ")
  return inner and open .. ">" .. inner .. "</" .. name .. ">" or open .. "/>"
end

local function text(x, y, words, attributes)
  return element("text", table.move(attributes or {}, 1, #(attributes or {}), 5,
    { "x", x, "y", y }), svg.escape(words))
end

local function titled(name, attributes, title)
  return element(name, attributes, element("title", {}, svg.escape(title)))
end

local function picture(width, height, name, parts)
  return element("svg", { "viewBox", ("0 0 %d %d"):format(width, height), "role", "img",
    "aria-label", name, "class", "chart" }, "\n" .. table.concat(parts, "\n") .. "\n")
end

--- Ticks from 0 or `low` to `high` at 1, 2 or 5 times a power of ten; three to six of them.
function svg.ticks(low, high)
  if high <= low then high = low + (low ~= 0 and math.abs(low) or 1) end
  local step = 1.0
  while step * 5 < high - low do step = step * 10 end
  while step * 5 > high - low do step = step / 10 end
  for _, factor in ipairs { 2, 2.5, 2 } do
    if (high - low) / step > 5 then step = step * factor end
  end
  local list, at = {}, math.ceil(low / step - 1e-9)
  while at * step <= high + step * 1e-9 do
    list[#list + 1] = at * step
    at = at + 1
  end
  return list
end

--- Horizontal bars.
---@param name string
---@param rows { label: string, text: string, parts: number[] }[] # parts stand side by side
---@param names string[]? # of the parts
function svg.bars(name, rows, names)
  local width, left, right, pitch = 720, 210, 110, 28
  local most, parts = 0, {}
  for _, row in ipairs(rows) do
    local sum = 0
    for _, part in ipairs(row.parts) do sum = sum + part end
    most = math.max(most, sum)
  end
  local scale = most > 0 and (width - left - right) / most or 0
  for i, row in ipairs(rows) do
    local x, y = left, (i - 1) * pitch + 4
    parts[#parts + 1] = text(left - 8, y + 15, svg.short(row.label, 30), { "text-anchor", "end" })
    for k, part in ipairs(row.parts) do
      local title = row.label .. (names and ", " .. names[k] or "") .. ": " .. row.text
      parts[#parts + 1] = titled("rect", { "x", x * 1.0, "y", y, "width",
        math.max(part * scale, 0.0), "height", pitch - 8, "rx", 2, "fill", svg.color(k) }, title)
      x = x + part * scale
    end
    parts[#parts + 1] = text(x + 6.0, y + 15, row.text)
  end
  return picture(width, #rows * pitch + 4, name, parts)
end

--- The frame of a plot: grid, tick labels, names of the axes.
local function frame(box, xs, ys, labels)
  local parts = {}
  for _, tick in ipairs(ys.ticks) do
    local y = ys.at(tick)
    parts[#parts + 1] = element("line", { "x1", box.left, "x2", box.right, "y1", y, "y2", y,
      "class", "grid" })
    parts[#parts + 1] = text(box.left - 6, y + 4, ("%.4g"):format(tick), { "text-anchor", "end" })
  end
  for _, tick in ipairs(xs.ticks) do
    local x = xs.at(tick)
    parts[#parts + 1] = text(x, box.bottom + 16, ("%.6g"):format(tick), { "text-anchor", "middle" })
  end
  parts[#parts + 1] = element("line", { "x1", box.left, "x2", box.right, "y1", box.bottom, "y2",
    box.bottom, "class", "axis" })
  parts[#parts + 1] = text(box.right, box.bottom + 34, labels[1], { "text-anchor", "end" })
  parts[#parts + 1] = text(4, 14, labels[2])
  return parts
end

local function scale_of(low, high, from, to, ticks)
  if high <= low then high = low + (low ~= 0 and math.abs(low) * 0.1 or 1) end
  return {
    ticks = ticks or svg.ticks(low, high),
    at = function(value) return from + (value - low) / (high - low) * (to - from) end,
  }
end

--- Least and largest x and y of all points.
local function bounds(series)
  local low, high = { math.huge, math.huge }, { -math.huge, -math.huge }
  for _, one in ipairs(series) do
    for _, point in ipairs(one.points) do
      for k = 1, 2 do
        low[k], high[k] = math.min(low[k], point[k]), math.max(high[k], point[k])
      end
    end
  end
  return low, high
end

--- Lines over shared axes. A point is { x, y }; where there is one alone it is a dot.
---@param name string
---@param series { label: string, points: number[][] }[]
---@param labels string[] # of the axes
function svg.lines(name, series, labels)
  local box = { left = 60, right = 704, top = 24, bottom = 280 }
  local low, high = bounds(series)
  local ticks = {} -- steps are whole
  for _, tick in ipairs(svg.ticks(low[1], high[1])) do
    if tick <= high[1] and tick == math.floor(tick) then ticks[#ticks + 1] = tick end
  end
  local xs = scale_of(low[1], high[1], box.left, box.right, ticks)
  local ys = scale_of(low[2], high[2], box.bottom, box.top)
  local parts = frame(box, xs, ys, labels)
  for i, one in ipairs(series) do
    local words = {}
    for k, point in ipairs(one.points) do
      words[k] = number(xs.at(point[1])) .. "," .. number(ys.at(point[2]))
    end
    if #words == 1 then
      local x, y = words[1]:match "(.*),(.*)"
      parts[#parts + 1] = titled("circle", { "cx", x, "cy", y, "r", 4, "fill", svg.color(i) },
        one.label)
    else
      parts[#parts + 1] = titled("polyline", { "points", table.concat(words, " "), "class", "line",
        "stroke", svg.color(i) }, one.label)
    end
  end
  return picture(720, 320, name, parts)
end

--- Upright bars, for many values of one kind, and their mean as a line.
---@param name string
---@param values number[]
---@param word string # what one of them is: "expert"; they count from 0
function svg.columns(name, values, word)
  local box = { left = 60, right = 704, top = 12, bottom = 170 }
  local most, sum = 0, 0
  for _, value in ipairs(values) do most, sum = math.max(most, value), sum + value end
  local ys = scale_of(0, most, box.bottom, box.top)
  local pitch = (box.right - box.left) / #values
  local every, xs = math.ceil(#values / 16), { ticks = {} }
  for i = 0, #values - 1, every do xs.ticks[#xs.ticks + 1] = i end
  function xs.at(i) return box.left + (i + 0.5) * pitch end
  local parts = frame(box, xs, ys, { word, "" })
  for i, value in ipairs(values) do
    local y = ys.at(value)
    parts[#parts + 1] = titled("rect", { "x", box.left + (i - 0.9) * pitch, "y", y * 1.0, "width",
      0.8 * pitch, "height", (box.bottom - y) * 1.0, "fill", svg.color(1) },
      ("%s %d: %s"):format(word, i - 1, value))
  end
  local mean = ys.at(sum / #values)
  parts[#parts + 1] = titled("line", { "x1", box.left, "x2", box.right, "y1", mean, "y2", mean,
    "class", "line", "stroke", svg.color(2) }, ("mean %.1f"):format(sum / #values))
  return picture(720, 210, name, parts)
end

--- Boxes in time, a row a rank.
---@param name string
---@param spans { rank: integer, start: number, stop: number, color: integer, text: string,
---  title: string }[]
function svg.spans(name, spans)
  local width, left, pitch = 720, 64, 30
  local last, ranks, parts = 0, 0, {}
  for _, span in ipairs(spans) do
    last, ranks = math.max(last, span.stop), math.max(ranks, span.rank + 1)
  end
  local scale = (width - left - 4) / last
  for rank = 0, ranks - 1 do
    parts[#parts + 1] = text(0, rank * pitch + 20, "stage " .. rank)
    parts[#parts + 1] = element("rect", { "x", left, "y", rank * pitch + 4, "width",
      last * scale, "height", pitch - 8, "class", "idle" })
  end
  for _, span in ipairs(spans) do
    local x, wide = left + span.start * scale, (span.stop - span.start) * scale
    local y = span.rank * pitch + 4
    parts[#parts + 1] = titled("rect", { "x", x, "y", y, "width", math.max(wide - 1, 0.5),
      "height", pitch - 8, "fill", svg.color(span.color) }, span.title)
    if wide >= 8 * #span.text + 4 then
      parts[#parts + 1] = text(x + wide / 2, y + 16, span.text,
        { "text-anchor", "middle", "class", "inside" })
    end
  end
  return picture(width, ranks * pitch + 4, name, parts)
end

--- What other pictures are made of (charts.lua).
svg.kit = { element = element, text = text, titled = titled, picture = picture, frame = frame }

return svg
