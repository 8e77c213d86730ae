--- key=value from the command line, and how a dotted key sets one field of a recipe's tables.
--
--     layout.tp=2   policy.leaves.dp=512   train.save=false   layout='{ dp = 8 }'   device=host
--
-- A value is a Lua literal (number, true, false, nil, "text", a table of these) or a bare word,
-- which is a string. What was set is checked later, together with the recipe; mistakes blame
-- "command line".
local fields = require "tidelock.language.fields"
local hints = require "tidelock.language.hints"
local suggest = require "tidelock.text.suggest"
local types = require "tidelock.language.types"

local overrides = {}

overrides.place = "command line"

--- The value that `text` stands for, or nil and what is wrong. The third result is true for `nil`.
local function read_value(text)
  if text == "nil" then return nil, nil, true end
  if text == "true" then return true end
  if text == "false" then return false end
  local number = tonumber(text)
  if number then return number end
  if not text:find "^%s*[\"'{]" then return text end
  local chunk, message = load("return " .. text, "=value", "t", {})
  if not chunk then return nil, "is no Lua literal: " .. message:gsub("^value:1: ", "") end
  if text:find "function" then return nil, "is no literal: a function cannot stand here" end
  local good, value = pcall(chunk)
  if not good then return nil, "is no literal: " .. tostring(value):gsub("^value:1: ", "") end
  return value
end

--- Splits words into { key, value, unset }; words that are no override are added to `problems`.
function overrides.parse(words, problems)
  local list = {}
  for _, word in ipairs(words) do
    local key, text = word:match "^([%a_][%w_.]*)=(.*)$"
    if not key or ("." .. key .. "."):find("..", 1, true) then
      local foreign = hints.on_command_line(word:match "^[^=]*")
      problems:add(overrides.place, word, foreign or "expected key=value, as layout.tp=2")
    elseif text == "" then
      problems:add(
        overrides.place, key, "nothing stands behind =; to unset a field write " .. key .. "=nil"
      )
    else
      local value, message, unset = read_value(text)
      if message then
        problems:add(overrides.place, key, message)
      else
        list[#list + 1] = { key = key, value = value, unset = unset }
      end
    end
  end
  return list
end

local function copy_level(value)
  local other = {}
  for key, entry in pairs(value) do other[key] = entry end
  return other
end

--- The table that a dotted key goes into when `value` stands there: a name becomes a table that
--- starts with it, nothing and false become an empty one. Nil and a reason when that cannot be.
local function open_table(value, field, path)
  if value == nil or value == false or value == true then return {} end
  if type(value) == "function" or types.is_made(value) then
    return nil, ("%s is made in the recipe; name the number there with tl.params"):format(path)
  end
  if type(value) == "table" then return copy_level(value) end
  local form = field and field.type == "form" and fields.forms[field.of]
  if form and type(value) == "string" then return { value } end
  if form and type(value) == "number" and form.number then return { form.number, value } end
  return nil, ("%s is %s here, not a table"):format(path, types.show(value))
end

--- The section that the fields of `field` belong to, given what stands there now.
local function section_of(field, value)
  if not field then return nil end
  if field.type == "form" then
    local form = fields.forms[field.of]
    local name = type(value) == "table" and (value[1] or value.name) or form.default
    return fields.sections[form.names[name] or ""]
  end
  return field.of and fields.sections[field.of]
end

--- A copy of the recipe's `values` with the field `key` (dotted) set to `value`; nil and a reason
--- when that cannot be. Only the tables on the way are copied.
function overrides.set(values, key, value)
  local root = copy_level(values)
  local at, section, path = root, fields.sections.recipe, nil
  for word in key:gmatch "([^.]+)%." do
    path = path and path .. "." .. word or word
    local field = section and section.by_name[word]
    local inner, reason = open_table(at[word], field, path)
    if not inner then return nil, reason end
    at[word] = inner
    section = section_of(field, inner)
    at = inner
  end
  local last = key:match "[^.]+$"
  local named = section and section.name == "policy" and last == "name" and at[1] ~= nil
  if named then last = 1 end
  at[last] = value
  return root
end

--- Whether `key` begins with a section or field of a recipe; if not, what to say.
function overrides.known(key, declared)
  local first = key:match "^[^.]+"
  if fields.sections.recipe.by_name[first] then return true end
  local homes = key == first and fields.homes(key) or {}
  if #homes > 0 then
    for i, home in ipairs(homes) do
      homes[i] = ("%s.%s=.. (in a recipe: %s = { %s = .. })"):format(home, key, home, key)
    end
    return false, "no such field or knob; write " .. table.concat(homes, ", or ")
  end
  local foreign = hints.on_command_line(first)
  if foreign then return false, "no such field or knob; " .. foreign end
  local names = fields.names "recipe"
  for name in pairs(declared) do names[#names + 1] = name end
  table.sort(names)
  local near, second = suggest.nearest(first, names), key:match "^[^.]+%.([^.]+)"
  local section = near and second and fields.sections[near]
  if section and section.by_name[second] then near = near .. key:sub(#first + 1) end
  local hint = near and ("did you mean %s? "):format(near) or ""
  return false, ("no such field or knob; %sthere are %s"):format(hint, table.concat(names, ", "))
end

return overrides
