--- earlier.lua - the files of an earlier run's or checkpoint's weights, by their numbers.
--
--     DIR/weights.safetensors                     or, where they were cut,
--     DIR/weights-00001-of-00003.safetensors ..   to 00003
local core = require "tidelock.core"

local earlier = {}

--- Paths, in order; empty where there are none. Then also the name of a file that should be there.
---@param folder string
---@return string[] paths
---@return string? missing
function earlier.files(folder)
  local single = folder .. "/weights.safetensors"
  if core.files.exists(single) then return { single } end
  local count
  for _, name in ipairs(core.files.is_directory(folder) and core.files.list(folder) or {}) do
    local last = name:match "^weights%-%d%d%d%d%d%-of%-(%d%d%d%d%d)%.safetensors$"
    count = count or math.tointeger(tonumber(last))
  end
  local paths = {}
  for i = 1, count or 0 do
    local name = ("weights-%05d-of-%05d.safetensors"):format(i, count)
    if not core.files.exists(folder .. "/" .. name) then return {}, name end
    paths[i] = folder .. "/" .. name
  end
  return paths
end

--- A hash of all their bytes; nil where there are none, or not all.
---@param folder string
---@return string?
function earlier.hash(folder)
  local hashes = {}
  for i, path in ipairs(earlier.files(folder)) do
    hashes[i] = core.hash(core.files.read_all(path))
  end
  if #hashes == 1 then return hashes[1] end -- as it has always been in the key
  if #hashes > 1 then return #hashes .. " files " .. core.hash(table.concat(hashes, " ")) end
  return nil
end

return earlier
