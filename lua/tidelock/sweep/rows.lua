--- sweep/rows.lua - the file of a sweep: one JSON object a line, one line a finished point.
--
--   {"id":"9d41..","label":"dp 2 tp 4","ms":1327.1,"status":"ok",...}
--
-- A row is appended with one write and is on the disk before the next point starts, so a sweep that
-- is killed at any moment has lost nothing that it finished. A last line without its end is what a
-- kill can leave: it is cut off when the file is opened. `id` hashes the recipe and how it was
-- measured; a point whose id is there is never run again.

local core = require "tidelock.core"
local log = require "tidelock.run.log"

local rows = {}

local Rows = {}
Rows.__index = Rows

local function no_row(path, number)
  error({ status = 2, message = ("tidelock: %s:%d: this is no row of a sweep; another --jsonl "
    .. "FILE, or remove the line"):format(path, number) }, 0)
end

--- The rows in `text`: whole lines only. Raises at a line that is no row, with its number.
---@return table[] list
---@return integer bytes # of the whole lines
function rows.parse(text, path)
  local list, at, number = {}, 1, 0
  while true do
    local stop = text:find("\n", at, true)
    if not stop then break end
    number = number + 1
    local good, row = pcall(core.json.decode, text:sub(at, stop - 1))
    if not good or type(row) ~= "table" or type(row.id) ~= "string" then no_row(path, number) end
    list[#list + 1] = row
    at = stop + 1
  end
  -- What a sweep has begun is cut off, or the zeros that a crash left there: no letter of others.
  if text:find("^[^{\0]", at) then no_row(path, number + 1) end
  return list, at - 1
end

local function in_use(path)
  error({ status = 2, message = ("tidelock: %s is in use by another sweep"):format(path) }, 0)
end

--- Opens the file for going on, and claims it.
---@param path string
function rows.open(path)
  local folder = path:match "^(.*)/[^/]*$"
  local good, why = pcall(function()
    if folder and folder ~= "" then core.files.mkdirs(folder) end
    core.files.append(path, "")
  end)
  if not good then
    error({ status = 2, message = "tidelock: --jsonl: " .. why:gsub("^[^\n]-%.lua:%d+: ", "") }, 0)
  end
  local lock = core.files.lock(path)
  if not lock then in_use(path) end
  local text = core.files.read_all(path)
  local list, bytes = rows.parse(text, path)
  local self = setmetatable({ path = path, list = list, by_id = {}, lock = lock }, Rows)
  for _, row in ipairs(list) do self.by_id[row.id] = row end
  if bytes < #text then
    self.cut = #text - bytes
    core.files.write_atomic(path, text:sub(1, bytes))
    self.lock = core.files.lock(path) -- of the new file, before the old one is let go
    if not self.lock then in_use(path) end
  end
  return self
end

--- Lets the file go; twice is fine.
function Rows:close()
  if self.lock then self.lock:close() end
  self.lock = nil
end

--- The finished row of an id, or nil.
function Rows:find(id) return self.by_id[id] end

--- A point is finished.
function Rows:add(row)
  core.files.append(self.path, log.line(row) .. "\n")
  self.list[#self.list + 1] = row
  self.by_id[row.id] = row
end

return rows
