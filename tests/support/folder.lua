--- A folder of its own for a spec's files.
---
---     local folder = require "support.folder" ()
---     local path = folder:write("a.txt", "text")   -- returns the path
---     folder:remove()
local core = require "tidelock.core"

local Folder = {}
Folder.__index = Folder

function Folder:path(name) return self.root .. "/" .. name end

function Folder:write(name, ...)
  local path = self:path(name)
  local file = assert(io.open(path, "wb"))
  assert(file:write(...))
  assert(file:close())
  return path
end

--- Little-endian token ids; `format` is string.pack's: "I2" or "I4".
function Folder:write_tokens(name, ids, format)
  local bytes = {}
  for i, id in ipairs(ids) do bytes[i] = string.pack("<" .. format, id) end
  return self:write(name, table.concat(bytes))
end

--- Removes the folder and everything in it.
function Folder:remove()
  local function remove(path)
    for _, name in ipairs(core.files.is_directory(path) and core.files.list(path) or {}) do
      remove(path .. "/" .. name)
    end
    os.remove(path)
  end
  remove(self.root)
end

return function()
  local root = os.tmpname()
  os.remove(root)
  core.files.mkdirs(root)
  return setmetatable({ root = root }, Folder)
end
