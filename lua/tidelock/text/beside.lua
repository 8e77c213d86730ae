--- beside.lua - what to say behind "there is no such file": the nearest name, or what is there.
---
---     beside.hint "runs/lama-412f"     "; did you mean runs/llama-412f?"
---     beside.hint "nowhere/at/all"     "; the current folder has README.md, docs, lua, .."
local core = require "tidelock.core"
local suggest = require "tidelock.text.suggest"

local beside = {}

beside.names_max = 8

--- The names of a folder that do not begin with a dot; of folders only, where those are wanted.
local function names_of(folder, folders)
  local good, all = pcall(core.files.list, folder)
  local names = {}
  for _, name in ipairs(good and all or {}) do
    local wanted = not folders or core.files.is_directory(folder .. "/" .. name)
    if wanted and name:sub(1, 1) ~= "." then names[#names + 1] = name end
  end
  return names
end

--- Those of `names` that end as `name` does (".yaml"), or all of them where none does.
local function alike(names, name)
  local ending, list = name:match "%.%w+$", {}
  for _, one in ipairs(names) do
    if ending and one:sub(-#ending) == ending then list[#list + 1] = one end
  end
  return #list > 0 and list or names
end

--- The longest part of `path` that is a folder ("" is the current one), the name behind it, and the
--- rest with its slash.
local function first_missing(path)
  local lead = path:match "^/*"
  local at = #lead + 1
  while true do
    local first, last = path:find("[^/]+", at)
    if not first then return nil end
    local here = path:sub(1, last)
    if last == #path or not core.files.is_directory(here) then
      return path:sub(1, first - 1), path:sub(first, last), path:sub(last + 1)
    end
    at = last + 1
  end
end

--- The folder on the way to `path` that is not there, or nil. A pattern's signs end the way.
function beside.missing_folder(path)
  local fixed = path:match "^[^*?[]*"
  local folder = fixed:match "^(.*)/[^/]*$"
  if not folder or folder == "" or core.files.is_directory(folder) then return nil end
  local lead, name = first_missing(folder)
  return lead .. name
end

--- "; did you mean X?", or "; DIR has a, b", or "". `folders`: only folders will do.
function beside.hint(path, folders)
  local lead, name, rest = first_missing((path:gsub("(.)/+$", "%1")))
  if not lead then return "" end
  local names = names_of(lead == "" and "." or lead, folders or rest ~= "")
  local near = suggest.nearest(name, names)
  if near then
    local whole = lead .. near .. rest
    return ("; did you mean %s?"):format(core.files.exists(whole) and whole or lead .. near)
  end
  names = alike(names, name)
  if #names == 0 then return "" end
  return ("; %s has %s%s"):format(lead == "" and "the current folder" or lead:gsub("(.)/+$", "%1"),
    table.concat(names, ", ", 1, math.min(#names, beside.names_max)),
    #names > beside.names_max and ", .." or "")
end

return beside
