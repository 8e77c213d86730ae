--- field_pages.lua - `./tl help layout.tp`: sections and fields of a recipe, from their one list.
---
---     recipe       every section               layout, nn.moe   a section with its fields
---     layout.tp    one field                   heads            every field of that name
---     train.lr     a form: all of its names    nn               every module
---     g.matmul     a function (function_pages.lua)
local fields = require "tidelock.language.fields"
local function_pages = require "tidelock.commands.function_pages"
local sorted_keys = require "tidelock.text.sorted_keys"

local field_pages = {}

local width = 100

--- Words of `text` in lines of at most `room` bytes.
local function wrapped(text, room)
  local lines, line = {}, ""
  for word in text:gmatch "%S+" do
    if line ~= "" and #line + 1 + #word > room then lines[#lines + 1], line = line, "" end
    line = line == "" and word or line .. " " .. word
  end
  lines[#lines + 1] = line
  return lines
end

--- What a field takes: its choices, its names, or its type.
local function type_of(field)
  local form = field.type == "form" and fields.forms[field.of]
  if form then
    return table.concat(sorted_keys(form.names), "|") .. (form.number and "|number" or "")
      .. (form.call and "|function" or "")
  end
  if field.values then
    return table.concat(field.values, "|") .. (field.call and "|function" or "")
  end
  return ({ call = "function", off_or_section = "false or section" })[field.type] or field.type
end

local function default_of(field)
  if field.required then return "required" end
  if field.default == nil or type(field.default) == "table" then return "" end
  return tostring(field.default)
end

--- How wide the columns of name, type and default get; what is longer has a line of its own.
local widest = { 28, 15, 12 }

--- Lines of rows { name, type, default, text } in columns.
local function columns(rows)
  local sizes, lines = { 0, 0, 0 }, {}
  for _, row in ipairs(rows) do
    for i = 1, 3 do
      if #row[i] <= widest[i] then sizes[i] = math.max(sizes[i], #row[i]) end
    end
  end
  local indent = 2 + sizes[1] + 2 + sizes[2] + 2 + sizes[3] + 2
  for _, row in ipairs(rows) do
    local head = "  "
    for i = 1, 3 do head = head .. row[i] .. (" "):rep(math.max(sizes[i] - #row[i], 0) + 2) end
    for i, text in ipairs(wrapped(row[4], width - indent)) do
      local first = i == 1 and #head <= indent
      if i == 1 and not first then lines[#lines + 1] = (head:gsub(" +$", "")) end
      lines[#lines + 1] = (((first and head or (" "):rep(indent)) .. text):gsub(" +$", ""))
    end
  end
  return lines
end

local function row_of(name, field)
  return { name, type_of(field), default_of(field), field.doc }
end

local function is_form(field) return field.type == "form" and fields.forms[field.of] ~= nil end

--- The section below `field`, or nil: of the policy its own, though it is a form.
local function section_below(field)
  return field.of and (fields.sections[field.of] or field.of == "policy" and fields.sections.policy)
end

--- The field of a dotted path from the recipe, or from a section's own name ("nn.moe.top_k").
local function field_at(path)
  local lead, last = path:match "^(.*)%.([^.]+)$"
  if not lead then return fields.sections.recipe.by_name[path] end
  local section = fields.sections[lead]
  if section and section.by_name[last] then return section.by_name[last] end
  local outer = field_at(lead)
  local inner = outer and section_below(outer)
  if inner then return inner.by_name[last] end
  local names = outer and is_form(outer) and fields.forms[outer.of].names or {}
  for _, name in ipairs(sorted_keys(names)) do
    local one = fields.sections[names[name]]
    if one.by_name[last] then return one.by_name[last] end
  end
end

--- Every field of the name `last`, as { path, field }.
local function homes(last)
  local list = {}
  for _, name in ipairs(sorted_keys(fields.sections)) do
    local field = fields.sections[name].by_name[last]
    if field and name ~= "recipe" then list[#list + 1] = { name .. "." .. last, field } end
  end
  return list
end

--- What a topic is: { section }, { form }, { field }, { homes }, { below }, names of sections, or
--- { functions }, lines. Nil when nothing is called so.
function field_pages.find(topic)
  local field = field_at(topic)
  if fields.sections[topic] and #fields.sections[topic].fields > 0 then
    return { section = fields.sections[topic] }
  end
  if fields.forms[topic] then return { form = fields.forms[topic], field = field } end
  if field then
    local section = not is_form(field) and section_below(field)
    if section then return { section = section, field = field } end
    return { field = field, form = is_form(field) and fields.forms[field.of] or nil }
  end
  local list = not topic:find(".", 1, true) and homes(topic) or {}
  if #list > 0 then return { homes = list } end
  local below = {}
  for _, name in ipairs(sorted_keys(fields.sections)) do
    if name:sub(1, #topic + 1) == topic .. "." then below[#below + 1] = name end
  end
  if #below > 0 then return { below = below } end
  local lines = topic ~= "" and function_pages.page(topic, wrapped)
  if lines then return { functions = lines } end
end

--- Everything that a topic may be, for "did you mean".
function field_pages.names()
  local seen = {}
  for name, section in pairs(fields.sections) do
    seen[name] = true
    for _, field in ipairs(section.fields) do
      seen[name == "recipe" and field.name or name .. "." .. field.name] = true
    end
  end
  for _, name in ipairs(function_pages.names()) do seen[name] = true end
  return sorted_keys(seen)
end

local function add_section(lines, name, section)
  lines[#lines + 1] = name .. "   " .. section.doc
  local rows = {}
  for i, field in ipairs(section.fields) do rows[i] = row_of(field.name, field) end
  for _, line in ipairs(columns(rows)) do lines[#lines + 1] = line end
end

--- The page of a topic, or nil.
---@param topic string
---@return string?
function field_pages.page(topic)
  local found = field_pages.find(topic)
  if not found then return nil end
  local lines = {}
  if found.homes then
    local rows = {}
    for i, home in ipairs(found.homes) do rows[i] = row_of(home[1], home[2]) end
    lines = columns(rows)
  elseif found.below then
    local rows = {}
    for i, name in ipairs(found.below) do rows[i] = { name, "", "", fields.sections[name].doc } end
    for _, entry in ipairs(function_pages.find(topic)) do
      if entry.doc ~= "" and not fields.sections[entry.name] then
        rows[#rows + 1] = { entry.name, "", "", entry.doc }
      end
    end
    lines = columns(rows)
  elseif found.functions then
    lines = found.functions
  elseif found.section then
    add_section(lines, topic, found.section)
  else
    if found.field then lines = columns { row_of(topic, found.field) } end
    for _, name in ipairs(found.form and sorted_keys(found.form.names) or {}) do
      add_section(lines, ("{ %q, .. }"):format(name), fields.sections[found.form.names[name]])
    end
  end
  lines[#lines + 1] = "with examples: docs/recipes.md"
    .. (found.functions and ", docs/operations.md" or "")
  return table.concat(lines, "\n")
end

return field_pages
