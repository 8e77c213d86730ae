--- search_table.lua - the layouts that a search found, as a table that a terminal has room for.
---
---     #  layout           micro  step ms  bubble  exposed   GiB  ms more than #1
---     1  dp 4 pp 4 zb-h1      2    464.5    3.0%     13.1  13.4
---     2  dp 2 pp 8 zb-h1      2    470.2    3.5%     16.7  11.5  +3.6 waits +2.5 bubble
---     #1  1.1M tok/s, mfu 64%, bound by matrix products
---
--- What is the same in all rows stands below them, once. Reasons that have no room behind a row go
--- on below it; nothing is cut. All layouts have the same tokens and work in a step, so a second's
--- tokens and mfu of the others follow from the milliseconds.
local predict = require "tidelock.forecast.predict"
local screen = require "tidelock.text.screen"

local search_table = {}

--- The costs of a step, shorter than in a prediction.
local causes = {
  { "matrix", "products" }, { "attention", "attention" }, { "bandwidth", "bytes" },
  { "launch", "launches" }, { "exposed", "waits" }, { "bubble", "bubble" }, -- for messages
}

local function name_of(c)
  local words = {}
  for _, axis in ipairs { "tp", "dp", "pp", "ep" } do
    if c[axis] > 1 then words[#words + 1] = axis .. " " .. c[axis] end
  end
  if c.pp > 1 then words[#words + 1] = c.schedule end
  return #words > 0 and table.concat(words, " ") or "one rank"
end

--- What a candidate loses against the first: its two largest costs more, in ms.
local function reasons(c, first)
  local words, more = {}, {}
  for _, cause in ipairs(causes) do
    local ms = 1000 * (c.guess.causes[cause[1]] - first.guess.causes[cause[1]])
    if ms > 0 then more[#more + 1] = { cause[2], ms } end
  end
  table.sort(more, function(a, b) return a[2] > b[2] end)
  for i = 1, math.min(2, #more) do
    if more[i][2] >= 0.05 * more[1][2] then
      words[#words + 1] = ("+%.1f %s"):format(more[i][2], more[i][1])
    end
  end
  return words
end

--- Title, and the text of a candidate; `left`: the column begins at its left edge, `once`: it may
--- be said once for all rows.
local columns = {
  { "#", function(_, i) return tostring(i) end },
  { "layout", name_of, left = true },
  { "micro", function(c) return tostring(c.micro) end, once = true },
  { "step ms", function(c) return ("%.1f"):format(c.guess.step_s * 1000) end },
  { "bubble", function(c) return ("%.1f%%"):format(100 * c.guess.bubble) end, once = true },
  { "exposed", function(c) return ("%.1f"):format(1000 * c.guess.causes.exposed) end, once = true },
  { "GiB", function(c) return ("%.1f"):format(c.guess.bytes / 2 ^ 30) end, once = true },
  { "leaves", function(_, _, leaves) return leaves ~= "" and leaves or "-" end, left = true,
    once = true },
}

local function all_equal(cells)
  for _, cell in ipairs(cells) do
    if cell ~= cells[1] then return false end
  end
  return #cells > 1
end

--- Columns that differ, as { cells, left, width }, and in words what is the same in all rows.
local function cut(shown, leaves)
  local kept, same = {}, {}
  for _, column in ipairs(columns) do
    local cells, width = {}, #column[1]
    for i, c in ipairs(shown) do
      cells[i] = column[2](c, i, leaves[i])
      width = math.max(width, #cells[i])
    end
    if not (column.once and (all_equal(cells) or cells[1] == "-" and #shown == 1)) then
      kept[#kept + 1] = { title = column[1], cells = cells, left = column.left, width = width }
    elseif cells[1] ~= "-" then
      same[#same + 1] = column[1] .. " " .. cells[1]
    end
  end
  return kept, same
end

local function line_of(kept, cell)
  local parts = {}
  for i, column in ipairs(kept) do
    parts[i] = ("%" .. (column.left and "-" or "") .. column.width .. "s"):format(cell(column))
  end
  return "  " .. table.concat(parts, "  ")
end

--- Adds a row; its reasons behind it as far as there is room, the others below. `room`: that the
--- longest reason of the table needs.
local function add_row(lines, row, words, width, room)
  local below = width - #row - 2 < room
  local indent = below and 7 or #row + 2
  local line = below and (" "):rep(indent) or row .. "  "
  if below then lines[#lines + 1] = (row:gsub(" +$", "")) end
  local used = false
  for _, text in ipairs(words) do
    if used and #line + 1 + #text > width then
      lines[#lines + 1], line, used = line, (" "):rep(indent), false
    end
    line, used = line .. (used and " " or "") .. text, true
  end
  if used or not below then -- the first has none
    lines[#lines + 1] = (line:gsub(" +$", ""))
  end
end

--- The table of candidates, best first.
---@param shown table[] # of search.of
---@param leaves string[] # "dp 64": leaves that a candidate needs and the policy has not
---@param width? integer # of the terminal
---@return string[] lines
function search_table.lines(shown, leaves, width)
  local lines, most = {}, math.min(width or screen.columns_max, screen.columns_max) - 1
  local kept, same = cut(shown, leaves)
  local title = #shown > 1 and "ms more than #1" or ""
  local words, room = {}, #title
  for i, c in ipairs(shown) do
    words[i] = reasons(c, shown[1])
    for _, text in ipairs(words[i]) do room = math.max(room, #text) end
  end
  add_row(lines, line_of(kept, function(column) return column.title end), { title }, most, room)
  for i in ipairs(shown) do
    add_row(lines, line_of(kept, function(column) return column.cells[i] end), words[i], most, room)
  end
  local best = shown[1].guess
  lines[#lines + 1] = ("  #1  %s tok/s, mfu %.0f%%, bound by %s"):format(
    screen.short(best.tokens_per_s), 100 * best.mfu, predict.words[best.bound])
  if #same > 0 then lines[#lines + 1] = "  in all of them  " .. table.concat(same, ", ") end
  for _, text in ipairs(leaves) do
    if text ~= "" then
      lines[#lines + 1] = "  other leaves than the policy's are another key"
      break
    end
  end
  return lines
end

return search_table
