--- report/compare.lua - points and bench tables beside those of an earlier file.
--
--   points are matched by label, or, where both sides have one alone, with each other:
--     { tokens_per_s = +0.042, ms = -0.04, peak_bytes = 0.0, bits = true }      shares of the old
--   a table is matched by its title, a row by its words that are no numbers

local report_compare = {}

local fields = { "tokens_per_s", "ms", "peak_bytes" }

--- new / old - 1, or nil where one of them is missing or the old one is 0.
function report_compare.change(new, old)
  if type(new) ~= "number" or type(old) ~= "number" or old == 0 then return nil end
  return new / old - 1
end

--- Sets point.change of every point that the baseline has too; the others keep nil.
---@return integer matched
function report_compare.points(points, before)
  local by_label, matched = {}, 0
  for _, point in ipairs(before) do by_label[point.label] = point end
  for _, point in ipairs(points) do
    local old = by_label[point.label] or #points == 1 and #before == 1 and before[1]
    if old then
      matched = matched + 1
      point.change = {}
      for _, field in ipairs(fields) do
        point.change[field] = report_compare.change(point[field], old[field])
      end
      if point.key and old.key and point.key ~= old.key then
        point.change.other_key = true -- nothing was promised
      elseif point.bits and old.bits then
        point.change.bits = point.bits == old.bits
      end
    end
  end
  return matched
end

local units = { k = 1e3, M = 1e6, G = 1e9, T = 1e12, P = 1e15, ["%"] = 0.01, [""] = 1 }

--- The number that a cell begins with: "41.6k" is 41600; nil for other words.
function report_compare.value(cell)
  if type(cell) == "number" then return cell end
  local digits, unit = tostring(cell):match "^(%-?%d+%.?%d*)([kMGTP%%]?)%f[^%w%%]"
  return digits and tonumber(digits) * units[unit] or nil
end

--- The words of a row that name it.
local function name_of(row)
  local words = {}
  for _, cell in ipairs(row) do
    if not report_compare.value(cell) then words[#words + 1] = tostring(cell) end
  end
  return table.concat(words, "\0")
end

--- Rows of a table by name; rows that share a name are told apart by their order.
local function named_rows(rows)
  local count, names = {}, {}
  for i, row in ipairs(rows) do
    local name = name_of(row)
    count[name] = (count[name] or 0) + 1
    names[i] = name .. "\0" .. count[name]
  end
  return names
end

--- Appends the change to each number of a table that the baseline has too: "41.6k (+4.2%)".
function report_compare.table(new, old)
  local names, before, rows = named_rows(new.rows), {}, {}
  for i, name in ipairs(named_rows(old.rows)) do before[name] = old.rows[i] end
  for i, row in ipairs(new.rows) do
    rows[i] = {}
    local other = before[names[i]]
    for k, cell in ipairs(row) do
      local value = other and report_compare.value(cell)
      local change = value and report_compare.change(value, report_compare.value(other[k]))
      local named = math.type(value) == "integer" and change == 0 -- a size, not a measurement
      rows[i][k] = change and not named and ("%s (%+.1f%%)"):format(cell, 100 * change)
        or tostring(cell)
    end
  end
  return { title = new.title, columns = new.columns, rows = rows, notes = new.notes }
end

--- Everything of a report beside everything of a baseline.
function report_compare.all(report, baseline)
  local matched, by_title = report_compare.points(report.points, baseline.points), {}
  for _, one in ipairs(baseline.tables) do by_title[one.title] = one end
  for i, one in ipairs(report.tables) do
    if by_title[one.title] then
      report.tables[i] = report_compare.table(one, by_title[one.title])
      matched = matched + 1
    end
  end
  return matched
end

return report_compare
