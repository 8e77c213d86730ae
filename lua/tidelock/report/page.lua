--- report/page.lua - a report as one HTML page: points, charts, tables, no other file.
--
-- The page is well-formed (every element is closed), names no address and asks for nothing: its
-- content policy forbids it. What people name (labels, reasons, files) is escaped.

local charts = require "tidelock.report.charts"
local compare = require "tidelock.report.compare"
local schedules = require "tidelock.plan.schedules"
local screen = require "tidelock.text.screen"
local style = require "tidelock.report.style"
local svg = require "tidelock.text.svg"
local sweep_table = require "tidelock.sweep.table"

local report_page = {}

local escape = svg.escape
local MIB = 1024 * 1024
local curves_most, schedules_most, experts_most = 8, 4, 4

local function percent(x, format) return x and (format or "%.1f%%"):format(100 * x) end

--- Columns of the table of points: title, value to sort by, text (the value, unless given).
local columns = {
  { "#", function(p) return p.point end },
  { "point", function(p) return p.label end },
  { "step ms", function(p) return p.ms end, function(v) return ("%.1f"):format(v) end },
  { "±", function(p) return p.spread end, percent },
  { "tokens/s", function(p) return p.tokens_per_s end, screen.short },
  { "mfu", function(p) return p.mfu end, function(v) return percent(v, "%.0f%%") end },
  { "bubble", function(p) return p.bubble and p.bubble > 0 and p.bubble or nil end, percent },
  { "MiB", function(p) return p.peak_bytes or p.planned_bytes end, screen.mib },
  { "loss", function(p) return p.loss end, screen.loss },
  { "bits", function(p) return p.bits and "\0" .. p.bits:sub(1, 8) end },
}

--- Columns of a comparison: whether more is better decides about the colour.
local changes = {
  { "tokens/s vs baseline", "tokens_per_s", true }, { "MiB vs baseline", "peak_bytes", false },
}

--- Columns of words, which stand left.
local words = { point = true, bits = true, ["bits vs baseline"] = true }

--- A row of headings. `left[i]`: a column of words; unless given, those of `words` are.
local function head(titles, left)
  local cells = {}
  for i, title in ipairs(titles) do
    local word
    if left then word = left[i] else word = words[title] end
    cells[i] = ('<th scope="col"%s><button type="button">%s</button></th>'):format(
      word and ' class="word"' or "", escape(title))
  end
  return "<thead><tr>" .. table.concat(cells) .. "</tr></thead>"
end

local function cell(value, show)
  if value == nil or value == "" then return '<td data-value="">-</td>' end
  if type(value) == "number" then
    local text = escape(show and show(value) or value)
    return ('<td data-value="%.17g">%s</td>'):format(value, text)
  end
  if value:sub(1, 1) == "\0" then
    return '<td class="word bits">' .. escape(value:sub(2)) .. "</td>"
  end
  return '<td class="word">' .. escape(value) .. "</td>"
end

local function change_cell(value, more_is_better)
  if not value then return '<td data-value="">-</td>' end
  local class = "even"
  if math.abs(value) >= 0.001 then class = (value > 0) == more_is_better and "good" or "bad" end
  return ('<td class="%s" data-value="%.17g">%+.1f%%</td>'):format(class, value, 100 * value)
end

local function bits_cell(change)
  if change and change.other_key then return '<td class="word">another key</td>' end
  if not change or change.bits == nil then return '<td class="word">-</td>' end
  return change.bits and '<td class="word good">equal</td>' or '<td class="word bad">differ</td>'
end

--- A table that scrolls sideways by itself and can be reached with the keyboard.
local function wrapped(name, inner)
  return ('<div class="scroll" role="region" tabindex="0" aria-label="%s">\n%s\n</div>'):format(
    escape(name), inner)
end

--- One point as a row; a point without numbers has its reason across the columns with numbers.
local function point_row(point, compared)
  local cells = {}
  local bare = point.status ~= "ok" and point.status ~= "planned"
  for i, column in ipairs(columns) do
    if bare and i > 2 then break end
    cells[i] = cell(column[2](point), column[3])
  end
  if bare then
    local wide = #columns - 2 + (compared and #changes + 1 or 0)
    cells[3] = ('<td class="reason" data-value="" colspan="%d">%s: %s</td>'):format(wide,
      escape(point.status), escape(point.reason or ""))
    return "<tr>" .. table.concat(cells) .. "</tr>"
  end
  for _, change in ipairs(compared and changes or {}) do
    cells[#cells + 1] = change_cell(point.change and point.change[change[2]], change[3])
  end
  if compared then cells[#cells + 1] = bits_cell(point.change) end
  return "<tr>" .. table.concat(cells) .. "</tr>"
end

local function point_table(report)
  local titles, lines = {}, {}
  for i, column in ipairs(columns) do titles[i] = column[1] end
  if report.compared then
    for _, change in ipairs(changes) do titles[#titles + 1] = change[1] end
    titles[#titles + 1] = "bits vs baseline"
  end
  lines[1] = '<table class="sortable" id="points">'
  lines[2] = "<caption>Best first. A heading sorts by its column.</caption>"
  lines[3] = head(titles)
  lines[4] = "<tbody>"
  for _, point in ipairs(sweep_table.sorted(report.points)) do
    lines[#lines + 1] = point_row(point, report.compared)
  end
  lines[#lines + 1] = "</tbody></table>"
  return wrapped("Points", table.concat(lines, "\n"))
end

local function legend(items)
  local lines = {}
  for i, name in ipairs(items) do
    lines[i] = ('<li><i style="background:%s"></i>%s</li>'):format(svg.color(i), escape(name))
  end
  return '<ul class="legend">' .. table.concat(lines) .. "</ul>"
end

local function section(id, title, ...)
  return ('<section id="%s">\n<h2>%s</h2>\n%s\n</section>'):format(id, escape(title),
    table.concat({ ... }, "\n"))
end

local function speed_section(points)
  local rows = {}
  for _, point in ipairs(sweep_table.sorted(points)) do
    if point.tokens_per_s then
      rows[#rows + 1] = { label = point.label, parts = { point.tokens_per_s },
        text = screen.short(point.tokens_per_s) }
    end
  end
  if #rows == 0 then return nil end
  return section("speed", "Tokens a second", wrapped("Tokens a second",
    svg.bars("Tokens a second of each point, best first", rows)))
end

local function memory_section(points)
  local rows, beside = {}, false
  for _, point in ipairs(points) do
    local bytes = point.peak_bytes or point.planned_bytes
    if bytes then
      local parts = { bytes / MIB, point.beside_bytes and point.beside_bytes / MIB }
      beside = beside or point.beside_bytes ~= nil
      rows[#rows + 1] = { label = point.label, parts = parts,
        text = screen.mib(bytes + (point.beside_bytes or 0)) }
    end
  end
  if #rows == 0 then return nil end
  local names = { "arenas", "beside them" }
  return section("memory", "Memory at the peak, MiB", beside and legend(names) or "",
    wrapped("Memory", svg.bars("Memory of each point at its peak", rows, names)))
end

--- Curves, with those that are equal in every value drawn once.
local function distinct_curves(points)
  local list, by_text = {}, {}
  for _, point in ipairs(points) do
    if point.curve and #point.curve > 0 then
      local texts = {}
      for i, at in ipairs(point.curve) do texts[i] = ("%d:%.17g"):format(at[1], at[2]) end
      local text = table.concat(texts, " ")
      if by_text[text] then
        by_text[text].others = by_text[text].others + 1
      else
        by_text[text] = { label = point.label, points = point.curve, others = 0 }
        list[#list + 1] = by_text[text]
      end
    end
  end
  for _, one in ipairs(list) do
    if one.others > 0 then
      one.label = ("%s, and %d more with the same values"):format(one.label, one.others)
    end
  end
  return list
end

local function loss_section(points)
  local curves = distinct_curves(points)
  if #curves == 0 then return nil end
  local shown, names, note = {}, {}, ""
  for i = 1, math.min(#curves, curves_most) do
    shown[i], names[i] = curves[i], curves[i].label
  end
  if #curves > curves_most then
    note = ("<p>The first %d of %d curves.</p>"):format(curves_most, #curves)
  end
  return section("loss", "Loss", legend(names), note,
    wrapped("Loss", svg.lines("Loss by step", shown, { "step", "loss" })))
end

local phase_color = { forward = 1, backward = 2, input = 2, weight = 3 }
local phase_letter = { forward = "F", backward = "B", input = "B", weight = "W" }

--- The picture of one schedule as it runs on paper, every pass at cost 1.
function report_page.schedule(schedule)
  local lists, report = schedules.build(schedule.name, {
    pp = schedule.pp, micros = schedule.micros, virtual_stages = schedule.virtual_stages,
  })
  if not lists then return nil end
  local spans = {}
  for i, span in ipairs(report.spans) do
    local op = span.op
    local title = ("%s of micro-batch %d%s"):format(op.phase, op.micro,
      (schedule.virtual_stages or 1) > 1 and ", chunk " .. op.chunk or "")
    spans[i] = { rank = span.rank, start = span.start, stop = span.stop, title = title,
      color = phase_color[op.phase], text = phase_letter[op.phase] .. op.micro }
  end
  local name = ("%s, %d stages, %d micro-batches: %.1f%% idle"):format(schedule.name, schedule.pp,
    schedule.micros, 100 * report.bubble_fraction)
  return name, svg.spans("Schedule " .. name, spans)
end

local function schedule_section(points)
  local parts, seen = { legend { "forward", "backward", "gradients of weights" } }, {}
  for _, point in ipairs(points) do
    local name, picture
    if point.schedule and point.schedule.pp * point.schedule.micros <= 512 then
      name, picture = report_page.schedule(point.schedule)
    end
    if name and not seen[name] and #parts <= schedules_most then
      seen[name] = true
      parts[#parts + 1] = "<h3>" .. escape(name) .. "</h3>\n" .. wrapped(name, picture)
    end
  end
  if #parts == 1 then return nil end
  return section("schedule", "Pipeline schedules", table.concat(parts, "\n"))
end

--- Load of experts: of each point that has any, the layers of its last step.
local function expert_section(points)
  local parts, seen = {}, {}
  for _, point in ipairs(points) do
    for _, layer in ipairs(point.experts or {}) do
      local text = layer.name .. " " .. table.concat(layer.load, " ")
      if not seen[text] and #parts < experts_most then
        seen[text] = true
        local name = ("%s: %s"):format(point.label, layer.name)
        parts[#parts + 1] = ("<h3>%s</h3>\n%s"):format(escape(name),
          wrapped(name, svg.columns("Rows of each expert, " .. name, layer.load, "expert")))
      end
    end
  end
  return #parts > 0 and section("experts", "Load of experts, last step", table.unpack(parts)) or nil
end

--- Which columns of a table of bench hold words. "41.6k", "3.5%" and "1.02 (1.00 to 1.05)" sort
--- as the numbers that they begin with; "-" is no word.
local function word_columns(one)
  local left = {}
  for k in ipairs(one.columns) do
    for _, row in ipairs(one.rows) do
      local word = row[k]
      if word and word ~= "" and word ~= "-" and not compare.value(word) then left[k] = true end
    end
  end
  return left
end

local function bench_cell(word, left)
  local text = tostring(word)
  if left then return cell(text) end
  return cell(compare.value(word), function() return text end)
end

local function bench_section(tables)
  local parts = {}
  for _, one in ipairs(tables) do
    local left = word_columns(one)
    local lines = { '<table class="sortable">', "<caption>" .. escape(one.title) .. "</caption>",
      head(one.columns, left), "<tbody>" }
    for _, row in ipairs(one.rows) do
      local cells = {}
      for k, word in ipairs(row) do cells[k] = bench_cell(word, left[k]) end
      lines[#lines + 1] = "<tr>" .. table.concat(cells) .. "</tr>"
    end
    lines[#lines + 1] = "</tbody></table>"
    parts[#parts + 1] = wrapped(one.title, table.concat(lines, "\n"))
    for _, note in ipairs(one.notes or {}) do
      parts[#parts + 1] = '<p class="notes">' .. escape(note) .. "</p>"
    end
  end
  return #parts > 0 and section("bench", "Measurements", table.unpack(parts)) or nil
end

--- The ceilings in the title of a table of `bench roofline`; nil for other tables.
local function roof_of(title)
  local peak, unit, bandwidth = title:match(
    "^Roofline of .-: ([%d.]+) ([MGTP])FLOP/s, ([%d.]+) GB/s of memory")
  local scale = { M = 1e-3, G = 1, T = 1e3, P = 1e6 }
  return peak and { bandwidth = tonumber(bandwidth), peak = tonumber(peak) * scale[unit] } or nil
end

--- Operators that calculate, under the ceilings of their machine.
local function roof_section(tables)
  local parts = {}
  for _, one in ipairs(tables) do
    local roof, at, points = roof_of(one.title), {}, {}
    for i, name in ipairs(one.columns) do at[name] = i end
    for _, row in ipairs(roof and one.rows or {}) do
      local x, y = tonumber(row[at.intensity]), tonumber(row[at["GFLOP/s"]])
      if x and y and x > 0 and y > 0 then
        points[#points + 1] = { label = row[1] .. " " .. row[at.shapes], x = x, y = y }
      end
    end
    if #points > 0 then
      parts[#parts + 1] = "<p>" .. escape(one.title) .. "</p>\n"
        .. wrapped("Roofline", charts.roof("Operators under the ceilings of their machine", points,
          roof))
    end
  end
  return #parts > 0 and section("roofline", "Roofline", table.unpack(parts)) or nil
end

--- The arena of a traced rank, as planned and as it was in time.
local function arena_section(arenas)
  local parts = { legend(charts.kinds) }
  for _, view in ipairs(arenas) do
    local name = view.title .. ", planned"
    parts[#parts + 1] = "<h3>" .. escape(name) .. "</h3>\n" .. wrapped(name,
      charts.arena("Arena of " .. name, view, nil, "instructions"))
    if view.real then
      parts[#parts + 1] = "<h3>" .. escape(view.title .. ", " .. view.real.title) .. "</h3>\n"
        .. wrapped(view.title .. ", real", charts.arena("Arena of " .. view.title .. ", real", view,
          view.real.edges, "time"))
    end
  end
  return #arenas > 0 and section("arena", "Memory in time", table.concat(parts, "\n")) or nil
end

--- What was read.
local function sources(report)
  local lines = {}
  for i, input in ipairs(report.inputs) do
    lines[i] = ("<li><code>%s</code>: %s%s</li>"):format(escape(input.path), input.kind,
      input.machine and ", " .. escape(input.machine) or "")
  end
  if report.baseline then
    lines[#lines + 1] = ("<li>baseline <code>%s</code>: %s matched</li>"):format(
      escape(report.baseline), screen.grouped(report.compared))
  end
  return section("sources", "Read from", "<ul>" .. table.concat(lines) .. "</ul>")
end

--- The page.
---@param report table # of report_read.all; compared and baseline where there is one
---@param title string
function report_page.html(report, title)
  local points = report.points
  local body = {
    #points > 0 and section("table", "Points", point_table(report)) or "",
    speed_section(points) or "", loss_section(points) or "", memory_section(points) or "",
    arena_section(report.arenas or {}) or "", schedule_section(points) or "",
    expert_section(points) or "", roof_section(report.tables) or "",
    bench_section(report.tables) or "", sources(report),
  }
  return table.concat({
    "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8"/>',
    '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
      .. 'style-src \'unsafe-inline\'; script-src \'unsafe-inline\'"/>',
    "<title>" .. escape(title) .. "</title>", "<style>", style.sheet .. "</style>", "</head>",
    "<body>", "<header><h1>" .. escape(title) .. "</h1>",
    '<button type="button" id="theme" hidden="hidden">Light or dark</button></header>', "<main>",
    table.concat(body, "\n"), "</main>", "<script>", style.script .. "</script>", "</body>",
    "</html>", "",
  }, "\n")
end

return report_page
