--- sweep/table.lua - rows of a sweep as text: best first, then those without a time.
--
--    #  layout           step ms     +-    tok/s  of best  mfu  comm  bubble      MiB  bits
--    1  dp 8              1061.2   0.2%   494.1k     1.00  56%    3%       -  41984.0  6d0f21aa
--    3  dp 2 tp 2 pp 2    1219.0   0.2%   430.1k     0.87  49%   11%    5.9%  17715.2  =
--    6  dp 2 cp 4       refused: layout.cp: cp 4 does not divide leaves.cp 1
--
-- `=` has the bits of the first point that has any; other bits are shown. Lines stay below 100
-- columns: a longer reason is cut here, and whole, with its place, in the file.

local screen = require "tidelock.text.screen"

local sweep_table = {}

local label_most = 27

local function percent(share, places)
  return share and ("%." .. places .. "f%%"):format(100 * share) or "-"
end

local columns = {
  { "step ms", function(r) return r.ms and ("%.1f"):format(r.ms) or "-" end },
  { "+-", function(r) return percent(r.spread, 1) end },
  { "tok/s", function(r) return r.tokens_per_s and screen.short(r.tokens_per_s) or "-" end },
  {
    "of best",
    function(r, best)
      return r.tokens_per_s and ("%.2f"):format(r.tokens_per_s / best.tokens_per_s) or "-"
    end,
  },
  { "mfu", function(r) return percent(r.mfu, 0) end },
  { "comm", function(r) return percent(r.comm, 0) end },
  { "bubble", function(r) return (r.bubble or 0) > 0 and percent(r.bubble, 1) or "-" end },
  { "MiB", function(r) return screen.mib(r.peak_bytes or r.planned_bytes) end },
  {
    "bits",
    function(r, _, first)
      if not r.bits then return "-" end
      return r.bits == first.bits and r ~= first and "=" or r.bits:sub(1, 8)
    end,
  },
}

--- A row that has numbers, measured or planned.
local function has_numbers(row) return row.status == "ok" or row.status == "planned" end

--- Best first: measured points by tokens a second, planned ones by memory, the others as written.
function sweep_table.sorted(list)
  local sorted = table.move(list, 1, #list, 1, {})
  table.sort(sorted, function(a, b)
    if a.tokens_per_s ~= b.tokens_per_s then
      return (a.tokens_per_s or 0) > (b.tokens_per_s or 0)
    end
    if has_numbers(a) ~= has_numbers(b) then return has_numbers(a) end
    if not a.tokens_per_s and a.rank_bytes ~= b.rank_bytes then
      return (a.rank_bytes or 0) < (b.rank_bytes or 0)
    end
    return a.point < b.point
  end)
  return sorted
end

--- The topmost point of those with bits: its bits are written out, "=" below refers to them.
local function first_with_bits(sorted)
  for _, row in ipairs(sorted) do
    if row.bits then return row end
  end
end

--- A reason without its place: what a line has room for is said first.
local function brief(reason)
  local text = (reason or ""):gsub("^[^%s:]+:%d+: ", ""):gsub("^command line: ", "")
  return text
end

local function fit(text, width)
  if utf8.len(text) == nil or utf8.len(text) <= width then return text end
  return text:sub(1, utf8.offset(text, width - 1) - 1) .. ".."
end

--- The whole table; "" without rows.
function sweep_table.text(list)
  local sorted = sweep_table.sorted(list)
  local first = first_with_bits(sorted)
  local cells, widths, name = {}, {}, 5
  for i, column in ipairs(columns) do widths[i] = #column[1] end
  for n, row in ipairs(sorted) do
    name = math.max(name, math.min(label_most, #row.label))
    if has_numbers(row) then
      cells[n] = {}
      for i, column in ipairs(columns) do
        cells[n][i] = column[2](row, sorted[1], first)
        widths[i] = math.max(widths[i], #cells[n][i])
      end
    end
  end
  local lines = {}
  local function add(number, label, list_of)
    local parts = { ("%4s"):format(number), fit(label, name) .. (" "):rep(name - #label) }
    for i, cell in ipairs(list_of) do
      parts[#parts + 1] = ("%" .. (i == #columns and "-" or "") .. widths[i] .. "s"):format(cell)
    end
    lines[#lines + 1] = fit(table.concat(parts, "  "):gsub("%s+$", ""), screen.columns_max - 1)
  end
  local titles = {}
  for i, column in ipairs(columns) do titles[i] = column[1] end
  if #sorted > 0 then add("#", "point", titles) end
  for n, row in ipairs(sorted) do
    add(row.point, row.label, cells[n] or { row.status .. ": " .. brief(row.reason) })
  end
  lines[#lines + 1] = ""
  return table.concat(lines, "\n")
end

--- One row, for the log of a sweep that goes on.
function sweep_table.line(row, lead)
  local text
  if row.status == "ok" then
    text = ("%s: %.1f ms, %s tok/s, %s MiB, %s"):format(row.label, row.ms,
      screen.short(row.tokens_per_s), screen.mib(row.peak_bytes), row.bits:sub(1, 8))
  elseif row.status == "planned" then
    text = ("%s: planned, %s MiB"):format(row.label, screen.mib(row.planned_bytes))
  else
    text = ("%s: %s: %s"):format(row.label, row.status, brief(row.reason))
  end
  return fit((lead or "") .. text, screen.columns_max - 1)
end

--- What to say where no point was measured or planned; nil where one was, or there are none.
---@return string?
function sweep_table.none(list)
  for _, row in ipairs(list) do
    if has_numbers(row) then return nil end
  end
  local first = list[1]
  return first and fit(("tidelock: sweep: no point %s; point %d (%s): %s: %s"):format(
    first.wanted_steps == 0 and "was planned" or "ran", first.point, first.label, first.status,
    brief(first.reason)), screen.columns_max - 1)
end

--- "5 ran, 1 refused, 0 failed, 0 too slow"; with `all` points, how many are left.
function sweep_table.counts(list, all)
  local by = { ok = 0, planned = 0, refused = 0, failed = 0, timeout = 0 }
  for _, row in ipairs(list) do by[row.status] = by[row.status] + 1 end
  local text = ("%d ran, %s%d refused, %d failed, %d too slow"):format(by.ok,
    by.planned > 0 and by.planned .. " planned, " or "", by.refused, by.failed, by.timeout)
  return #list < all and text .. (", %d left"):format(all - #list) or text
end

return sweep_table
