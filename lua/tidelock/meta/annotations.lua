--- annotations.lua - types for editors (LuaLS) of everything that a recipe or a script writes.
---
---     fields.lua  ->  ---@class tidelock.nn.attention     a class for each section,
---                     ---@field heads integer             a line for each field
---
--- `./tl lua lua/tidelock/meta/annotations.lua` prints lua/tidelock/meta/fields.lua, which is kept
--- with the sources; a test compares the two. Functions are in meta/api.lua, the C half in
--- meta/core.lua.
local fields = require "tidelock.language.fields"
local sorted_keys = require "tidelock.text.sorted_keys"

local annotations = {}

local simple = {
  any = "any", boolean = "boolean", string = "string", call = "function", count = "integer",
  whole = "integer", number = "number", positive = "number", not_negative = "number",
  fraction = "number", number_or_call = "number|fun(step: integer): number",
  module = "tidelock.Module|function", data = "tidelock.Source", stages = "integer[]|string",
  placement = "string|integer[]",
}

--- What a field with names may be: a name, or the table that starts with the name.
local function form_type(name)
  local form, words = fields.forms[name], {}
  local known = sorted_keys(form.names)
  for i, choice in ipairs(known) do words[i] = ('"%s"'):format(choice) end
  for _, choice in ipairs(known) do words[#words + 1] = "tidelock." .. form.names[choice] end
  if form.number then words[#words + 1] = "number" end
  if form.call then words[#words + 1] = "function" end
  return table.concat(words, "|")
end

--- The type of a field in the words of LuaLS.
---@param field table # of fields.lua
---@return string
function annotations.type_of(field)
  if field.type == "choice" then
    local words = {}
    for i, value in ipairs(field.values) do words[i] = ('"%s"'):format(value) end
    if field.call then words[#words + 1] = "function" end
    return table.concat(words, "|")
  elseif field.type == "section" then
    return "tidelock." .. field.of
  elseif field.type == "off_or_section" then
    return "false|tidelock." .. field.of
  elseif field.type == "switch" then
    return "boolean|tidelock." .. field.of
  elseif field.type == "form" then
    return form_type(field.of)
  elseif field.type == "list" then
    return (field.of == "rule" and "tidelock.weights" or "string") .. "[]"
  end
  return assert(simple[field.type], field.type)
end

--- A field as a line; a type that fills the line is an alias of its own, which stands before.
local function field_line(section, field, lines)
  local kind = annotations.type_of(field)
  if #kind > 60 then
    local alias = ("tidelock.%s.%s_choice"):format(section, field.name)
    lines[#lines + 1] = ("---@alias %s\n---| %s"):format(alias, (kind:gsub("|", "\n---| ")))
    kind = alias
  end
  local line = ("---@field %s%s %s"):format(field.name, field.required and "" or "?", kind)
  local whole = line .. " # " .. field.doc
  return #whole <= 100 and whole or line
end

local function class_lines(lines, name)
  local entry, list = fields.sections[name], {}
  lines[#lines + 1] = ""
  for i, field in ipairs(entry.fields) do list[i] = field_line(name, field, lines) end
  lines[#lines + 1] = "--- " .. entry.doc
  lines[#lines + 1] = "---@class tidelock." .. name
  table.move(list, 1, #list, #lines + 1, lines)
end

local opening = [[
---@meta tidelock.fields
--- meta/fields.lua - a class for every section of a recipe: types for editors (LuaLS).
--
-- Made from fields.lua by `./tl lua lua/tidelock/meta/annotations.lua`; nothing here runs.]]

--- The text of lua/tidelock/meta/fields.lua.
---@return string
function annotations.text()
  local lines = { opening }
  for _, name in ipairs(sorted_keys(fields.sections)) do class_lines(lines, name) end
  return table.concat(lines, "\n") .. "\n"
end

if ... ~= "tidelock.meta.annotations" then io.stdout:write(annotations.text()) end

return annotations
