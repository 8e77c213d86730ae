--- origin.lua - what a run came from, kept in its folder, so that the folder repeats the run.
---
---     runs/quickstart-5e1c/origin.json
---       sources    the recipe and every file that it loaded: path and text
---       recipe     its path, overrides and point, as they were typed
---       data       every file of the data: path, bytes, hash
---       key, recipe_hash, contracts, program
---
--- `./tl run runs/X` (and every other command that takes a recipe) reads the recipe from there,
--- whatever has become of the files; data is read where it lies. When the key is another one, what
--- differs is named: a contract, or a file of the data.
local contracts = require "tidelock.language.contracts"
local core = require "tidelock.core"
local key = require "tidelock.language.key"
local screen = require "tidelock.text.screen"

local origin = {}

origin.file = "origin.json"
origin.version = 1

local pieces, piece_bytes = 64, 64 << 10

local function usage(format, ...)
  error({ status = 2, message = "tidelock: " .. format:format(...) }, 0)
end

--- A hash of a file: of all of it up to 4 MiB, else of 64 pieces of 64 KiB. The key covers every
--- byte of the data; this one tells which file is another.
local function hash_of(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local bytes = file:seek "end"
  local texts = { ("%d\n"):format(bytes) }
  if bytes <= pieces * piece_bytes then
    file:seek "set"
    texts[2] = file:read "a"
  else
    for i = 0, pieces - 1 do
      file:seek("set", (bytes - piece_bytes) * i // (pieces - 1))
      texts[#texts + 1] = file:read(piece_bytes)
    end
  end
  file:close()
  return core.hash(table.concat(texts)), bytes
end

--- Every file of the data of a run, once, in the order in which they are read.
local function data_of(run)
  local list, seen = core.json.array {}, {}
  for _, notes in ipairs(run.notes) do
    for _, path in ipairs(notes.files or {}) do
      local hash, bytes = nil, nil
      if not seen[path] then hash, bytes = hash_of(path) end
      seen[path] = true
      if hash then list[#list + 1] = { path = path, hash = hash, bytes = bytes } end
    end
  end
  return list
end

--- The text of origin.json.
---@param run tidelock.Run
---@param request tidelock.Request
---@param known? table # of a folder whose run is repeated
---@return string
function origin.text(run, request, known)
  local plan, sources, words = run.plan, core.json.array {}, core.json.array {}
  for i, file in ipairs(plan.recipe.files) do
    sources[i] = { path = file.path, text = file.text }
  end
  for _, word in ipairs(known and known.overrides or {}) do words[#words + 1] = word end
  for _, word in ipairs(request.overrides) do words[#words + 1] = word end
  return core.json.encode {
    version = origin.version, program = core.build().version, contracts = key.contracts,
    key = plan.key, recipe_hash = plan.recipe_hash, recipe = known and known.recipe
      or request.recipe, overrides = words,
    point = request.options.point or known and known.point or nil, sources = sources,
    data = data_of(run),
  } .. "\n"
end

--- What a folder's run came from; nil where `path` is no folder of a run.
---@param path string
---@return table? # as in the file, with texts: path -> text
function origin.read(path)
  local file = path:gsub("/+$", "") .. "/" .. origin.file
  if not core.files.is_directory(path) or not core.files.exists(file) then return nil end
  local good, found = pcall(core.json.decode, core.files.read_all(file))
  if not good or type(found) ~= "table" or type(found.sources) ~= "table"
    or type(found.sources[1]) ~= "table" then
    usage("%s is damaged", file)
  end
  if found.version ~= origin.version then
    usage("%s has version %s; this program reads version %d", file, tostring(found.version),
      origin.version)
  end
  found.folder, found.texts = path:gsub("/+$", ""), {}
  for _, source in ipairs(found.sources) do found.texts[source.path] = source.text end
  return found
end

--- Lines that say why a run that was to be repeated has another key.
local function reasons(known)
  local lines = {}
  if known.contracts ~= key.contracts then
    lines[#lines + 1] = ("contracts: version %s | %d (program %s | %s); other results: %s"):format(
      tostring(known.contracts), key.contracts, tostring(known.program), core.build().version,
      contracts.between(math.tointeger(known.contracts) or 0, key.contracts))
  end
  for _, file in ipairs(known.data) do
    local hash, bytes = hash_of(file.path)
    if hash ~= file.hash then
      lines[#lines + 1] = hash and ("data: %s has other bytes: %s | %s, hash %s | %s"):format(
        file.path, screen.grouped(file.bytes), screen.grouped(bytes), file.hash, hash)
        or ("data: %s is not there"):format(file.path)
    end
  end
  if #lines == 0 then
    lines[1] = "the data: its files were changed in places that are not sampled, or there are "
      .. "others"
  end
  return lines
end

--- Refuses a repeated run that is another one; with overrides of its own it may be, and a note says
--- so.
---@param known? table # of origin.read
---@param plan table # with the key
---@param changed boolean # overrides were given
---@return string? note
function origin.check(known, plan, changed)
  if not known or known.key == plan.key then return nil end
  if changed then
    return ("another key than %s, which has %s"):format(known.folder, screen.spaced(known.key))
  end
  usage("%s was run with key %s, and this gives %s; what differs:\n  %s\n1 error; nothing was "
    .. "started", known.folder, screen.spaced(known.key), screen.spaced(plan.key),
    table.concat(reasons(known), "\n  "))
end

return origin
