--- Recipe files: runs their text, under limits, and finishes the recipe that it returns.
--
-- One loading has one context: { path, problems, files, given, declared, modules }. A recipe that
-- loads another (tl.load) shares it, so that all mistakes of both files are printed together and
-- the command line reaches the knobs of both.
local core = require "tidelock.core"
local draft = require "tidelock.draft"
local overrides = require "tidelock.overrides"
local params = require "tidelock.params"
local problems = require "tidelock.problems"
local sandbox = require "tidelock.sandbox"
local types = require "tidelock.types"
local where = require "tidelock.where"

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
  if type(message) == "table" and message.message then message = message.message end
  if type(message) ~= "string" then
    message = "raised an error that is no text: " .. types.show(message)
  end
  local place, text = message:match "^([^\n:]+:%d+): (.*)$"
  if place and place:sub(1, 3) == "..." then -- Lua shortens long paths from the left
    for _, file in ipairs(context.files) do
      local tail, line = place:sub(4):match "^(.*)(:%d+)$"
      if file.path:sub(-#tail) == tail then place = file.path .. line end
    end
  end
  text = text or message
  local lead = context.path .. ": "
  if text:sub(1, #lead) == lead then text = text:sub(#lead + 1) end
  context.problems:add(place or context.path, nil, text)
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
  if not recipe.is(result) then
    local got = result == nil and "nothing" or types.show(result)
    context.problems:add(
      path, nil, "a recipe ends with return tl.recipe { ... }; this file gives " .. got
    )
    return nil
  end
  return result
end

--- Loads `path` with the knobs `given` (name -> { value, place }); raises when there is no recipe.
function recipe.load_given(path, given)
  local context = new_context(path, given)
  local result = run_file(path, context)
  if not result then context.problems:raise() end
  return draft.derive(result, {
    file = path,
    name = path:match "([^/]*)$":gsub("%.lua$", ""),
    given = given,
    declared = context.declared,
    files = context.files,
    problems = context.problems,
  })
end

--- The recipe of the file `path` with overrides, a list of "key=value" from the command line.
--- Raises when the file does not run; other mistakes are kept for the stage "check", which raises
--- them all.
function recipe.load(path, words)
  local found = problems.new()
  local list = overrides.parse(words or {}, found)
  local given, rest = {}, {}
  for _, entry in ipairs(list) do
    if not entry.key:find(".", 1, true) then given[entry.key] = {
      value = entry.value, place = overrides.place,
    } end
  end
  local result = recipe.load_given(path, given)
  for _, entry in ipairs(list) do
    if result.declared[entry.key] == nil then rest[#rest + 1] = entry end
  end
  result.problems:merge(found)
  return draft.set(result, rest)
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
  if not core.files.exists(full) and core.files.exists(path) then
    context.problems:add(where.here() or path, "tl.load", full .. " is not there: a recipe loads "
      .. "what stands beside it; a script that starts runs is started by ./tl lua FILE")
    error(context, 0)
  end
  local result = run_file(full, context)
  if not result then error(context, 0) end -- noted already; run_file knows this error by its value
  return result
end

draft.reload = recipe.load_given

return recipe
