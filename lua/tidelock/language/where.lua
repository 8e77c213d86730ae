--- Where in a recipe something was written: "recipes/moe.lua:23".
--
-- The innermost frame of the stack that belongs to a recipe is the place, with one exception:
-- `return tl.recipe { ... }` is a tail call, and the recipe's frame is gone before tl.recipe runs.
-- So the last recipe line is noted while a recipe's code runs (where.run), and a frame that was
-- entered by a tail call is blamed on that line. Lines are counted, too: a recipe that does not end
-- is an error with its line.
--
-- Paths are as given on the command line, or, for a file that another one loads, joined to its
-- folder.
local core = require "tidelock.core"
local scan = require "tidelock.language.scan"

local where = {}

--- Lines that a file, one call of `layer` or one step of a schedule may run: about a second.
where.lines_max = 2000000

local texts = {} -- path of a recipe file -> its text
local tokens_of = {} -- path -> tokens, made when first asked for
local nodes = {} -- "site name key" -> scanned constructor, or false
local library = debug.getinfo(1, "S").source:match("^(.*)language/where%.lua$")
local floors = {} -- functions of the library: what called them wrote nothing that they find
local skip = library -- files whose lines are not looked at: the library's
local current -- what is being loaded; made by where.run's caller
local last_source, last_line

--- Makes `path` known as recipe text, so that its frames and its lines can be found.
function where.add(path, text)
  texts[path], tokens_of[path], nodes = text, nil, {}
  if ("@" .. path):sub(1, #library) == library then skip = nil end
end

--- What is being loaded or checked right now (the table given to where.run), or nil.
function where.context() return current end

local function is_recipe(source) return source:sub(1, 1) == "@" and texts[source:sub(2)] ~= nil end

local function is_script(source)
  return source:sub(1, 1) == "@" and source:sub(1, #library) ~= library
end

--- Below `fn` where.here finds nothing: a script that starts a run has not written its modules.
function where.floor(fn) floors[fn] = true end

--- The place of the innermost recipe frame, else of the innermost script frame, else nil.
function where.here()
  local script
  for level = 2, math.huge do
    local info = debug.getinfo(level, "Sltf")
    if not info or floors[info.func] then break end
    if is_recipe(info.source) then return info.source:sub(2) .. ":" .. info.currentline end
    if info.istailcall and last_line and current then
      return last_source:sub(2) .. ":" .. last_line
    end
    if not script and info.what ~= "C" and is_script(info.source) then
      script = info.short_src .. ":" .. info.currentline
    end
  end
  return script
end

--- The file of the innermost recipe or script that is running, or nil.
function where.file()
  local here = where.here()
  return here and here:match("^(.*):%d+$")
end

local function node_of(site, name, key)
  name = name:match "[%w_]+$"
  local id = table.concat({ site, name, key or "" }, "\0")
  if nodes[id] == nil then
    local path, line = site:match("^(.*):(%d+)$")
    local text = path and texts[path]
    if text then tokens_of[path] = tokens_of[path] or scan.tokens(text) end
    nodes[id] = text and scan.find(tokens_of[path], tonumber(line), name, key) or false
  end
  return nodes[id]
end

--- The path of field `key` in `path`: "layout.tp", "weights[1]".
function where.join(path, key)
  if math.type(key) == "integer" then return ("%s[%d]"):format(path, key) end
  return path == "" and tostring(key) or path .. "." .. tostring(key)
end

--- Calls found(path, place) for every field of the constructor that `name` is called with at
--- `site`; paths are those of where.join.
function where.each(site, name, key, found)
  local path = site and site:match("^(.*):%d+$")
  local function visit(node, prefix)
    for field, child in pairs(node.fields or {}) do
      local full = where.join(prefix, field)
      found(full, path .. ":" .. child.line)
      visit(child, full)
    end
  end
  local node = path and node_of(site, name, key)
  if node then visit(node, "") end
end

--- The place of one field of the constructor that `name` is called with at `site`; `site` itself
--- when the text does not tell. Of a dotted name ("nn.linear") the last word counts.
function where.field(site, name, field)
  local node = site and node_of(site, name)
  local child = node and node.fields[field]
  return child and site:match("^(.*):%d+$") .. ":" .. child.line or site
end

--- Each turn of a loop and each call is a line event, so no endless program escapes; it is raised
--- again at every further line, so that no pcall in the recipe can catch it for good.
local function check_budget(source, line)
  current.lines = current.lines + 1
  if current.lines > where.lines_max then
    error(("%s:%d: stopped after %d million lines: this does not end, and a recipe only "
      .. "describes"):format(
      source:sub(2), line, where.lines_max // 1000000), 0)
  end
end

local function note(source, line)
  if is_recipe(source) then
    last_source, last_line = source, line
    check_budget(source, line)
  end
end

--- Lua names the line where the stack ended, which may be one of `note`: what helps is the line
--- of the recipe.
local function named(good, message, ...)
  local what = not good and last_source and type(message) == "string"
    and message:match "(C? ?stack overflow)$"
  if not what then return good, message, ... end
  return good, ("%s:%d: %s: a function calls itself without an end"):format(last_source:sub(2),
    last_line, what:gsub("^ ", ""))
end

local function finish(previous, ...)
  if not previous.noted then -- first: `note` reads `current`
    core.lines(nil)
    debug.sethook(previous.hook, previous.mask, previous.count)
  end
  current, last_source, last_line = previous.context, previous.source, previous.line
  return ...
end

--- pcall(f, ...) for code of a recipe, with its lines noted and counted. `context` is what
--- where.context() answers meanwhile. Calls may nest; the hook that was set before is set again.
function where.run(context, f, ...)
  local previous = { context = current, source = last_source, line = last_line }
  previous.hook, previous.mask, previous.count = debug.gethook()
  if current ~= context then context.lines = 0 end
  current = context
  previous.noted = core.lines(note, skip)
  return finish(previous, named(pcall(f, ...)))
end

return where
