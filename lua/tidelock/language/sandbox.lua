--- What a recipe's code can reach, and how its text is loaded.
--
-- A recipe is text, never bytecode, and describes a model; so it gets plain Lua without the world:
-- no io, no os, no clock, no random numbers, and nothing whose answer differs between machines or
-- runs. `pairs` walks keys in order; exp, log, sin, cos and pow of `math` are those of numbers.lua.
-- `require` looks beside the recipe first and loads what it finds in the same way.
local beside = require "tidelock.text.beside"
local numbers = require "tidelock.language.numbers"
local suggest = require "tidelock.text.suggest"
local where = require "tidelock.language.where"

--- bytes_max: of a recipe's text.
local sandbox = { bytes_max = 16 << 20 }

local plain = {
  "assert", "error", "ipairs", "next", "pcall", "rawequal", "rawget", "rawlen", "rawset", "select",
  "setmetatable", "tonumber", "tostring", "type", "xpcall",
}

local kept_math = {
  "abs", "ceil", "floor", "fmod", "huge", "max", "maxinteger", "min", "mininteger", "modf", "pi",
  "sqrt", "tointeger", "type", "ult",
}

local refused = {
  io = "a recipe reads no files; tl.data names them",
  os = "a recipe may not depend on the machine or the time; tl.params takes values from the "
    .. "command line",
  coroutine = "a recipe only describes; use a function",
  debug = "a recipe only describes",
  load = "write the code in a file beside the recipe and require it",
  loadfile = "use tl.load or require",
  dofile = "use tl.load or require",
  package = "require looks beside the recipe",
  collectgarbage = "a recipe only describes",
}

local refused_math = {
  random = "it gives other numbers on every run; initial values come from weight rules and "
    .. "policy.seed",
  randomseed = "there are no random numbers in a recipe; the seed is policy = { \"layout\", "
    .. "seed = .. }",
}
for _, name in ipairs { "acos", "asin", "atan", "tan", "deg", "rad" } do
  refused_math[name] = "its last bits differ between machines; sqrt, exp, log, sin, cos and "
    .. "pow are the same on all"
end

local function refuse(prefix, reasons)
  return {
    __index = function(_, key)
      local reason = reasons[key]
      if reason then error(("%s%s is not there in a recipe: %s"):format(prefix, key, reason), 2) end
      return nil
    end,
  }
end

--- What a recipe usually says before it uses these names.
local beginnings = {
  tl = "local tl = require \"tidelock\"",
  nn = "local nn = require(\"tidelock\").nn",
}

--- The names that the code `level` frames above can see: its locals, those around it, globals.
local function names_seen(level, env)
  local names, info = {}, debug.getinfo(level + 1, "f")
  for i = 1, info and 200 or 0 do -- Lua allows no more in a function
    local name = debug.getlocal(level + 1, i)
    local around = debug.getupvalue(info.func, i)
    if not name and not around then break end
    names[#names + 1], names[#names + 2] = name or around, name and around
  end
  for name in pairs(env) do names[#names + 1] = name end
  table.sort(names)
  return names
end

--- In Lua a misspelt name is nil, and what it was meant for is missing somewhere else: so here it
--- is an error where it stands.
local function undefined(env, key, context)
  if type(key) ~= "string" then return nil end
  local text = key .. ": nothing of this name is defined here"
  local near = suggest.nearest(key, names_seen(2, env))
  if beginnings[key] then
    text = text .. "; write " .. beginnings[key]
  elseif context.declared[key] ~= nil then
    text = ("%s; it is a knob: local p = tl.params { .. }, then p.%s"):format(text, key)
  elseif near then
    text = ("%s; did you mean %s?"):format(text, near)
  end
  error(text, 2)
end

--- Names that a recipe has not, each with its reason; all others are undefined.
local function refuse_globals(context)
  local refusing = refuse("", refused).__index
  return {
    __index = function(env, key)
      if refused[key] then return refusing(env, key) end
      return undefined(env, key, context)
    end,
  }
end

local function copy(library)
  local other = {}
  for key, value in pairs(library) do other[key] = value end
  return other
end

--- pairs in a fixed order: numbers ascending, then strings bytewise, then the rest as it comes.
local function ordered_pairs(value)
  local meta = getmetatable(value)
  if type(value) ~= "table" or type(meta) == "table" and meta.__pairs then return pairs(value) end
  local keys, rank = {}, { number = 1, string = 2 }
  for key in pairs(value) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    local first, second = rank[type(a)] or 3, rank[type(b)] or 3
    if first ~= second then return first < second end
    return first < 3 and a < b
  end)
  local at = 0
  return function()
    repeat at = at + 1 until keys[at] == nil or rawget(value, keys[at]) ~= nil
    return keys[at], value[keys[at]]
  end
end

--- That of texts belongs to the whole program: a recipe would change the planner's own `format`.
local function own_metatable(value)
  if type(value) == "string" then return "string" end
  return getmetatable(value)
end

local function make_math()
  local library = { exp = numbers.exp, log = numbers.log, sin = numbers.sin, cos = numbers.cos }
  library.pow = numbers.power
  for _, name in ipairs(kept_math) do library[name] = math[name] end
  return setmetatable(library, refuse("math.", refused_math))
end

--- Of a file that has no end, such as /dev/zero, no more is read than a recipe may have. `texts`:
--- those that a run's folder has kept, instead of the files.
local function read(path, texts)
  if texts then
    return texts[path], path .. ": the run's folder has kept no such file"
  end
  local file, message = io.open(path, "rb")
  if not file then return nil, message .. beside.hint(path) end
  local text, reason = file:read(sandbox.bytes_max + 1)
  file:close()
  if not text and reason then
    return nil, path .. ": a folder, and no run's; a recipe is a .lua file, or the folder of a run"
  end
  if text and #text > sandbox.bytes_max then
    return nil, ("%s: more than %d MiB, which no recipe has"):format(path, sandbox.bytes_max >> 20)
  end
  return text or ""
end

--- The folder of a path, with its last slash, or "".
function sandbox.folder(path) return path:match "^(.*/)[^/]*$" or "" end

--- `path` without "folder/.." and "./" inside.
function sandbox.normalize(path)
  local before
  path = path:gsub("/%./", "/"):gsub("^%./", "")
  repeat
    before = path
    path = path:gsub(
      "([^/]+)/%.%./", function(folder) return folder == ".." and "../../" or "" end, 1
    )
  until path == before
  return path
end

--- A file that is loaded again, for a knob, is the same file.
local function note_file(files, path, text)
  for _, file in ipairs(files) do
    if file.path == path then return end
  end
  files[#files + 1] = { path = path, text = text }
end

--- The chunk of the file `path` with the environment of a recipe, or nil and a message.
function sandbox.open(path, context)
  local text, message = read(path, context.texts)
  if not text then return nil, message end
  if text:sub(1, 4) == "\27Lua" then
    return nil, path .. ": this is bytecode; a recipe is Lua text"
  end
  text = text:gsub("^\xEF\xBB\xBF", ""):gsub("^#[^\n]*", "") -- a byte order mark, a line for env
  note_file(context.files, path, text)
  where.add(path, text)
  return load(text, "@" .. path, "t", sandbox.environment(path, context))
end

local function require_beside(path, context, name)
  if type(name) ~= "string" then
    error(("%s: require wants the name of a file, got %s"):format(where.here() or path,
      type(name)), 0)
  end
  if name == "tidelock" or name == "tidelock.language.numbers" then return require(name) end
  local stem = sandbox.folder(path) .. name:gsub("%.", "/")
  local known = context.modules[stem]
  if known then return known.value end
  for _, candidate in ipairs { stem .. ".lua", stem .. "/init.lua" } do
    if read(candidate, context.texts) then
      local chunk, message = sandbox.open(candidate, context)
      if not chunk then error(message, 0) end
      context.modules[stem] = { value = true } -- a file that requires itself gets true, as in Lua
      local value = chunk(name, candidate)
      if value ~= nil then context.modules[stem].value = value end
      return context.modules[stem].value
    end
  end
  local text = "module '%s' not found: no file %s.lua and no %s/init.lua beside the recipe"
  error(text:format(name, stem, stem), 2)
end

--- The global table of a recipe file.
function sandbox.environment(path, context)
  local env = { math = make_math(), string = copy(string), table = copy(table), utf8 = copy(utf8) }
  for _, name in ipairs(plain) do env[name] = _G[name] end
  env.pairs = ordered_pairs
  env.getmetatable = own_metatable
  env._VERSION = _VERSION
  env.print = function(...)
    local words = table.pack(...)
    for i = 1, words.n do words[i] = tostring(words[i]) end
    io.stderr:write(table.concat(words, "\t"), "\n")
  end
  env.require = function(name) return require_beside(path, context, name) end
  env._G = env
  return setmetatable(env, refuse_globals(context))
end

return sandbox
