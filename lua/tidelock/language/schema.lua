--- Checks tables against the list of sections and fields (fields.lua).
--
-- A check never stops at the first mistake: it reports each one as report(path, text), leaves the
-- field out (or at its default) and goes on, so that all mistakes are printed together.
local fields = require "tidelock.language.fields"
local hints = require "tidelock.language.hints"
local problems = require "tidelock.text.problems"
local sorted_keys = require "tidelock.text.sorted_keys"
local suggest = require "tidelock.text.suggest"
local types = require "tidelock.language.types"
local where = require "tidelock.language.where"

local schema = {}

local join = where.join
local pending = problems.new() -- found while no recipe's code runs; see raise_if_any

schema.show = types.show

local function quoted(list)
  local words = {}
  for i, word in ipairs(list) do words[i] = ("%q"):format(word) end
  return table.concat(words, ", ")
end

--- What to say about the unknown key `key` of section `name`, and the field that was meant, if one
--- can be told.
local function unknown(name, key)
  local homes = name == "recipe" and fields.homes(key) or {}
  for i, home in ipairs(homes) do homes[i] = ("%s = { %s = .. }"):format(home, key) end
  if #homes > 0 then return "no such key; write " .. table.concat(homes, ", or ") end
  local hint = hints.of(key)
  if hint then return "no such key; " .. hint end
  local names = fields.names(name)
  local near = type(key) == "string" and suggest.nearest(key, names)
  local has = #names > 0 and "has " .. table.concat(names, ", ") or "takes no options"
  local label = name == "recipe" and "a recipe" or name
  return ("no such key; %s%s %s"):format(
    near and ("did you mean %s? "):format(near) or "", label, has
  ), near
end

--- Whether `text` says to write the field `name`: "write nn.attention { heads = .. }".
local function says_to_write(text, name)
  return text:find("%f[%w_]" .. name .. " = %.%.") ~= nil
end

local checkers = {}

local function expected(what, value)
  return ("expected %s, got %s"):format(what, types.show(value))
end

--- One value of the field `entry`; nil when it is no good.
local function check_value(entry, value, path, report)
  local special = checkers[entry.type]
  if special then return special(entry, value, path, report) end
  local kind = types[entry.type]
  local good = kind.check(value)
  if good == nil then
    local hint = entry.hint and "; " .. entry.hint or ""
    report(path, expected(types.wanted(kind, value), value) .. hint)
  end
  return good
end

function checkers.choice(entry, value, path, report)
  if entry.call and type(value) == "function" then return value end
  for _, one in ipairs(entry.values) do
    if one == value then return value end
  end
  local others = entry.others or {}
  local near = type(value) == "string"
    and (others[value:lower()] or suggest.nearest(value, entry.values))
  report(
    path,
    ("%s is not known; allowed: %s%s"):format(
      types.show(value),
      quoted(entry.values),
      near and ("; try %q"):format(near) or ""
    )
  )
  return nil
end

function checkers.section(entry, value, path, report)
  return schema.section(entry.of, value, path, report)
end

function checkers.off_or_section(entry, value, path, report)
  if value == false then return false end
  if type(value) ~= "table" then
    report(path, expected("false or a table as " .. entry.example, value))
    return nil
  end
  return schema.section(entry.of, value, path, report)
end

function checkers.form(entry, value, path, report)
  return schema.form(entry.of, value, path, report)
end

function checkers.switch(entry, value, path, report)
  if value == false then return false end
  if value ~= true and type(value) ~= "table" then
    report(path, expected("true, false or a table as " .. entry.example, value))
    return nil
  end
  return schema.section(entry.of, value == true and {} or value, path, report)
end

function checkers.list(entry, value, path, report)
  if type(value) ~= "table" then
    report(path, expected("a list", value))
    return nil
  end
  local list = {}
  for _, key in ipairs(sorted_keys(value)) do
    if math.type(key) ~= "integer" then
      report(join(path, key), "no such key; this is a list: its entries have no names")
    elseif entry.of == "rule" then
      list[#list + 1] = schema.section("weights", value[key], join(path, key), report)
    else
      list[#list + 1] = check_value({ type = entry.of }, value[key], join(path, key), report)
    end
  end
  return list
end

--- Entries without a key: modules of a residual, patterns of a weight rule, or values with a
--- position.
local function check_positional(section, key, value, path, report, result)
  local kind = section.positional == "modules" and types.module
    or section.positional == "patterns" and types.string
  if kind then
    local good = kind.check(value)
    if good == nil then report(join(path, key), expected(types.wanted(kind, value), value)) end
    result[#result + 1] = good
    return
  end
  for _, entry in ipairs(section.fields) do
    if entry.position == key then
      result[entry.name] = check_value(entry, value, join(path, entry.name), report)
      return
    end
  end
  report(
    path,
    ("entry %s has no name; %s"):format(key, unknown(section.name, key):gsub("^no such key; ", ""))
  )
end

--- Checks the keys of a table; the fields that unknown ones were meant for: these are not missing,
--- too, for one mistake has one message.
local function check_keys(section, value, path, report, result, named)
  local meant = {}
  for _, key in ipairs(sorted_keys(value)) do
    local entry = section.by_name[key]
    if entry then
      result[key] = check_value(entry, value[key], join(path, key), report)
    elseif named and (key == 1 or key == "name") then -- the form's own name, checked by schema.form
      result.name = named
    elseif section.refused[key] then
      report(join(path, key), section.refused[key])
    elseif math.type(key) == "integer" then
      check_positional(section, key, value[key], path, report, result)
    else
      local text, near = unknown(section.name, key)
      report(join(path, key), text)
      for _, one in ipairs(section.fields) do
        meant[one.name] = meant[one.name] or one.name == near or says_to_write(text, one.name)
      end
    end
  end
  return meant
end

--- Checks `value` against the section `name`; returns a new table with defaults filled in. Fields
--- that are wrong are left out. `named` is the name of a form whose section this is.
function schema.section(name, value, path, report, named)
  local section = fields.sections[name]
  local result = { name = named }
  if type(value) ~= "table" or types.is_made(value) then
    report(path, expected("a table with " .. table.concat(fields.names(name), ", "), value))
  else
    local meant = check_keys(section, value, path, report, result, named)
    for _, entry in ipairs(section.fields) do
      local given = rawget(value, entry.name) ~= nil
        or entry.position and rawget(value, entry.position) ~= nil
      if entry.required and not given and not meant[entry.name] then
        local example = entry.example or ".."
        report(
          join(path, entry.name),
          ("missing: %s; write %s = %s"):format(entry.doc, entry.name, example)
        )
      end
    end
  end
  if section.positional == "patterns" and #result == 0 then
    report(
      path, "a weight rule starts with a pattern of weight names, as { \"*.gain\", decay = 0 }"
    )
  end
  for _, entry in ipairs(section.fields) do
    if result[entry.name] == nil and not entry.required and entry.default ~= nil then
      result[entry.name] = schema.default(entry)
    end
  end
  return result
end

--- A field's value when it is not given. Tables are new each time; a switch that is on is its
--- section.
function schema.default(entry)
  local function nothing() end
  if entry.type == "switch" and entry.default then
    return schema.section(entry.of, {}, "", nothing)
  end
  if type(entry.default) == "table" then return {} end
  return entry.default
end

--- The names of a form, and what else will do.
local function allowed_of(form)
  return quoted(sorted_keys(form.names)) .. (form.number and ", a number" or "")
    .. (form.call and " or a function" or "")
end

local function unknown_form(form, name, path, report)
  if form.refused and form.refused[name] then
    report(path, ("%q: %s; allowed: %s"):format(name, form.refused[name], allowed_of(form)))
    return
  end
  local near = type(name) == "string" and suggest.nearest(name, sorted_keys(form.names))
  report(path, ("%s is not known; allowed: %s%s"):format(types.show(name), allowed_of(form),
    near and ("; try %q"):format(near) or ""))
end

--- Checks a name, a table that starts with a name, a number or a function against the form `kind`.
--- Returns { name = .., fields .. }; for a function { name = "function", call = it }; nil when
--- wrong.
function schema.form(kind, value, path, report)
  local form = fields.forms[kind]
  if type(value) == "function" and form.call then return { name = "function", call = value } end
  if type(value) == "number" and form.number then value = { form.number, value } end
  if type(value) == "string" then value = { value } end
  if type(value) ~= "table" or types.is_made(value) then
    local others = (form.number and ", a number" or "") .. (form.call and ", a function" or "")
    report(path, expected("a name, a table that starts with a name" .. others, value))
    return nil
  end
  local name = value[1]
  if name == nil then name = value.name end
  if name == nil then name = form.default end
  if name == nil then
    report(path, "a table here starts with a name; allowed: " .. quoted(sorted_keys(form.names)))
    return nil
  end
  if type(name) ~= "string" or not form.names[name] then
    unknown_form(form, name, path, report)
    return nil
  end
  return schema.section(form.names[name], value, path, report, name)
end

--- Checks the options of nn.NAME (`name` is "nn.NAME") that were written at `site`; returns them
--- with defaults. While a recipe loads, mistakes are collected and wrong fields left out; else they
--- raise.
function schema.check(name, options, site)
  local context = where.context()
  local collected = context and context.problems or problems.new()
  local function report(path, text)
    local key = path:sub(#name + 1):match "^%.([^.[]+)"
    key = key or math.tointeger(tonumber(path:sub(#name + 1):match "^%[(%d+)%]"))
    collected:add(key and where.field(site, name, key) or site, path, text)
  end
  local result = schema.section(name, options == nil and {} or options, name, report)
  if not context then collected:raise() end
  return result
end

--- Notes a problem: for the recipe that is being loaded or checked, else until raise_if_any.
function schema.problem(site, path, text)
  local context = where.context()
  local collected = context and context.problems or pending
  collected:add(site, path, text)
end

--- Raises what schema.problem noted outside of loading and checking, and forgets it.
function schema.raise_if_any()
  local collected = pending
  pending = problems.new()
  collected:raise()
end

return schema
