--- Recipe files: runs their text, under limits, and finishes the recipe that it returns.
--
-- One loading has one context: { path, problems, files, given, declared, modules, texts }. A
-- recipe that loads another (tl.load) shares it, so that all mistakes of both files are printed
-- together and the command line reaches the knobs of both. A folder of a run is a recipe, too: the
-- texts that it has kept (origin.lua) stand for the files.
local core = require "tidelock.core"
local draft = require "tidelock.language.draft"
local origin = require "tidelock.language.origin"
local overrides = require "tidelock.language.overrides"
local params = require "tidelock.language.params"
local problems = require "tidelock.text.problems"
local sandbox = require "tidelock.language.sandbox"
local types = require "tidelock.language.types"
local where = require "tidelock.language.where"

local recipe = { new = draft.new, is = draft.is, methods = draft.methods, params = params.new }

local function new_context(path, given)
  return {
    path = path,
    problems = problems.new(),
    files = {},
    given = given,
    declared = {},
    modules = {},
    open = {},
  }
end

--- Adds an error that Lua or the recipe raised; its place is taken from the front of its text.
local function add_error(context, message)
  message = types.raised(message)
  local place, text = message:match "^([^\n:]+:%d+): (.*)$"
  if place and place:sub(1, 3) == "..." then -- Lua shortens long paths from the left
    for _, file in ipairs(context.files) do
      local tail, line = place:sub(4):match "^(.*)(:%d+)$"
      if file.path:sub(-#tail) == tail then place = file.path .. line end
    end
  end
  text = text or message
  if text:find "^'}' expected .*near '[%w_{\"]" then
    text = text .. "; fields and entries of a table are separated by commas"
  end
  local lead = context.path .. ": "
  if text:sub(1, #lead) == lead then text = text:sub(#lead + 1) end
  context.problems:add(place or context.path, nil, text)
end

--- Whether a file gave a list of points: recipes, or { "label", recipe }. What is neither is noted.
local function is_list(list, context)
  if type(list) ~= "table" or recipe.is(list) or #list == 0 then return false end
  for i, entry in ipairs(list) do
    local pair = type(entry) == "table" and not recipe.is(entry)
    local one, label = pair and entry[2] or entry, pair and entry[1] or ""
    if not recipe.is(one) or type(label) ~= "string" then
      context.problems:add(context.path, ("point %d"):format(i),
        "expected a recipe or { \"label\", recipe }, got " .. types.show(entry))
    end
  end
  return true
end

--- Runs the file `path` in `context`; its recipe, or nil when it gave none (the problem is noted).
local function run_file(path, context)
  for _, open in ipairs(context.open) do
    if open == path then
      context.problems:add(where.here() or path, "tl.load", path .. " loads itself")
      return nil
    end
  end
  table.insert(context.open, path)
  local chunk, message = sandbox.open(path, context)
  local good, result
  if chunk then
    good, result = where.run(context, chunk, path)
  else
    good, result = false, message
  end
  table.remove(context.open)
  if not good then
    if result ~= context then add_error(context, result) end
    return nil
  end
  if context.listing and context.path == path and is_list(result, context) then
    return result
  end
  if not recipe.is(result) then
    local got = result == nil and "nothing" or types.show(result)
    context.problems:add(
      path, nil, "a recipe ends with return tl.recipe { ... }; this file gives " .. got
    )
    return nil
  end
  return result
end

--- Runs the file `path`, which another one loads, with the knobs `given`. Its recipe knows the file
--- and the knobs that are declared there, so that :with can set them.
local function run_apart(path, context, given)
  local declared, before = context.declared, context.given
  context.declared, context.given = {}, given
  local result = run_file(path, context)
  for name, value in pairs(context.declared) do declared[name] = value end
  context.declared, context.given = declared, before
  if not result then error(context, 0) end -- noted already; run_file knows this error by its value
  return draft.loaded(result, { source = path })
end

--- Loads `path` with the knobs `given` (name -> { value, place }); raises when there is no recipe.
--- With `listing` the file may give a list of points: then a list of { label, recipe }.
function recipe.load_given(path, given, listing)
  local kept = origin.read(path)
  local main = kept and kept.sources[1].path or path
  local context = new_context(main, given)
  context.listing, context.texts = listing, kept and kept.texts
  local result = run_file(main, context)
  if not result then context.problems:raise() end
  local function finish(one)
    return draft.loaded(one, {
      file = path,
      name = main:match "([^/]*)$":gsub("%.lua$", ""),
      given = given,
      declared = context.declared,
      files = context.files,
      problems = context.problems,
    })
  end
  if recipe.is(result) then return finish(result) end
  context.problems:raise()
  local list = {}
  for i, entry in ipairs(result) do
    local pair = not recipe.is(entry)
    list[i] = { label = pair and entry[1], recipe = finish(pair and entry[2] or entry) }
  end
  return list
end

--- Overrides from words; also those without a dot, which may be knobs: name -> { value, place }.
local function parse(words, found)
  local list, given = overrides.parse(words or {}, found), {}
  for _, entry in ipairs(list) do
    if not entry.key:find(".", 1, true) then given[entry.key] = {
      value = entry.value, place = overrides.place,
    } end
  end
  return list, given
end

--- `result` with the overrides that are no knobs of its file.
local function set(result, list, found)
  local rest = {}
  for _, entry in ipairs(list) do
    if result.declared[entry.key] == nil then rest[#rest + 1] = entry end
  end
  result.problems:merge(found)
  return draft.set(result, rest)
end

--- The recipe of the file `path` with overrides, a list of "key=value" from the command line.
--- Raises when the file does not run; other mistakes are kept for the stage "check", which raises
--- them all.
function recipe.load(path, words)
  local found = problems.new()
  local list, given = parse(words, found)
  return set(recipe.load_given(path, given), list, found)
end

--- The points of the file `path`: of a recipe with :over all of them, of a plain recipe itself, of
--- a script that returns a list { recipe, { "label", recipe }, .. } those of every entry.
---@param only integer? # make this one alone, from 1; the others are false
---@return tidelock.Recipe[] points
---@return boolean same_bits # whether the file states that all give the same bits
function recipe.points(path, words, only)
  local found, points = problems.new(), {}
  local list, given = parse(words, found)
  local result = recipe.load_given(path, given, true)
  local function add(one, lead, place) -- a point that was picked out before keeps its own label
    local count = draft.count(one)
    if count > 1 then lead = lead or place end
    for n = 1, count do
      local wanted = not only or only == #points + 1
      local point = wanted and draft.point(one, n)
      local own = point and point.label ~= "" and point.label
      local label = lead and own and lead .. ", " .. own or lead or own or place
      if point and label then point = draft.derive(point, { label = label }) end
      points[#points + 1] = point
    end
  end
  if recipe.is(result) then
    local one = set(result, list, found)
    add(one)
    return points, one.expects_same_bits
  end
  for i, entry in ipairs(result) do
    add(set(entry.recipe, list, found), entry.label, "point " .. i)
  end
  return points, false
end

--- tl.load(path): in a recipe, the file beside it; in a script, a path like any other, from the
--- current folder.
function recipe.load_from(path)
  if type(path) ~= "string" then
    error("tl.load takes the path of a recipe, got " .. types.show(path), 0)
  end
  local context = where.context()
  if not context then return recipe.load(path) end
  local full = path
  if path:sub(1, 1) ~= "/" then
    full = sandbox.normalize(sandbox.folder(where.file() or "") .. path)
  end
  if not context.texts and not core.files.exists(full) and core.files.exists(path) then
    context.problems:add(where.here() or path, "tl.load", full .. " is not there: a recipe loads "
      .. "what stands beside it; a script that starts runs is started by ./tl lua FILE")
    error(context, 0)
  end
  return run_apart(full, context, context.given)
end

draft.reload = recipe.load_given

--- The recipe of the file that gave `one` again, with `knobs`; what the command line or a sweep
--- gives a knob is stronger. Nil when there is no such file, which is noted.
function draft.again(one, knobs)
  local context = where.context()
  local given = {}
  for name, entry in pairs(knobs) do given[name] = entry end
  if not context then
    for name, entry in pairs(one.given or {}) do given[name] = given[name] or entry end
    return recipe.load_given(one.file, given)
  end
  for name, entry in pairs(context.given) do given[name] = entry end
  if one.source then return run_apart(one.source, context, given) end
  for name, entry in pairs(knobs) do
    context.problems:add(entry.place, name, "a knob of the same file; write its value there, "
      .. "sweep it by :over, or change it where tl.load loads this file")
  end
end

return recipe
