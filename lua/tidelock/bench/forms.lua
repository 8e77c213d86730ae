--- bench/forms.lua - tables of `./tl bench` as text: Markdown, CSV, JSON, JSON lines.
local core = require "tidelock.core"
local screen = require "tidelock.text.screen"

local forms = {}

--- Columns of text, each as wide as its widest cell; Markdown.
function forms.markdown(result)
  local widths, lines = {}, { "### " .. result.title, "" }
  local function measure(cells)
    for i, cell in ipairs(cells) do widths[i] = math.max(widths[i] or 3, #tostring(cell)) end
  end
  measure(result.columns)
  for _, row in ipairs(result.rows) do measure(row) end
  local function add(cells)
    local texts = {}
    for i, cell in ipairs(cells) do
      texts[i] = ("%" .. (i == 1 and "-" or "") .. widths[i] .. "s"):format(cell)
    end
    lines[#lines + 1] = "| " .. table.concat(texts, " | ") .. " |"
  end
  add(result.columns)
  local rule = {}
  for i, width in ipairs(widths) do rule[i] = ("-"):rep(width - 1) .. (i == 1 and "-" or ":") end
  add(rule)
  for _, row in ipairs(result.rows) do add(row) end
  lines[#lines + 1] = ""
  for _, note in ipairs(result.notes) do
    lines[#lines + 1] = "-" .. screen.folded("  " .. note):sub(2)
  end
  return table.concat(lines, "\n") .. "\n"
end

--- A cell as RFC 4180 has it.
local function quoted(cell)
  cell = tostring(cell)
  return cell:find '[",\r\n]' and '"' .. cell:gsub('"', '""') .. '"' or cell
end

local function csv_line(cells)
  local texts = {}
  for i, cell in ipairs(cells) do texts[i] = quoted(cell) end
  return table.concat(texts, ",") .. "\r\n"
end

--- A line "# name: value" above the tables. CSV has no comments of its own; readers are told the
--- sign, as pandas by comment="#".
function forms.csv_comment(name, value)
  return ("# %s: %s\r\n"):format(name, (value:gsub("[\r\n]+", " ")))
end

--- A table as CSV: its title in the first column, so that several can stand in one file.
function forms.csv(result)
  local lines = { csv_line { "table", table.unpack(result.columns) } }
  for _, row in ipairs(result.rows) do
    lines[#lines + 1] = csv_line { result.title, table.unpack(row) }
  end
  return table.concat(lines)
end

--- A line for each row: columns by name; a second column of a name gets a number behind it.
function forms.jsonl(result)
  local lines = {}
  for _, row in ipairs(result.rows) do
    local object, seen = { table = result.title }, {}
    for i, column in ipairs(result.columns) do
      seen[column] = (seen[column] or 0) + 1
      object[seen[column] > 1 and column .. " " .. seen[column] or column] = row[i]
    end
    lines[#lines + 1] = core.json.encode(object) .. "\n"
  end
  return table.concat(lines)
end

return forms
