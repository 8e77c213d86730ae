--- Records of a run: one JSON object a line, one line a step, the summary last.
--
--   {"step":1,"loss":5.5702,"loss_bits":"40b23f14","grad_norm":2.114,...,"version":1}
--   {"summary":true,"key":"5e1c09af77d2c340","weights_hash":"9d41c7e2a05b88f3",...}
--
-- Keys are sorted, so that equal records are equal text. Bits are eight hexadecimal digits. A
-- number that is not finite has no JSON form: it is left out, and its bits say what it was.

local core = require "tidelock.core"

local log = {}

--- Of the form of records, docs/records.schema.json: goes up when a field goes away or changes its
--- meaning, not when one is added.
log.version = 1

local Log = {}
Log.__index = Log

--- A last line without its end is what a killed run can leave: what is appended would be part of
--- it, and lost with it.
local function cut_last_line(path)
  if (core.files.size(path) or 0) == 0 then return end -- nothing, or no file that holds bytes
  local real = core.files.realpath(path)
  local text = core.files.read_all(real)
  if not text or text:sub(-1) == "\n" then return end
  core.files.write_atomic(real, text:match "^.*\n" or "")
end

--- Opens files for writing; every record goes to all of them.
---@param paths string[]
---@param append? boolean # keep what they hold: a run goes on
function log.open(paths, append)
  local self = setmetatable({ files = {}, paths = {} }, Log)
  for _, path in ipairs(paths) do self:add(path, append) end
  return self
end

--- One more file, for the records from here on.
function Log:add(path, append)
  local good, file, message = pcall(function()
    if append then cut_last_line(path) end
    return io.open(path, append and "a" or "w")
  end)
  if not good then file, message = nil, file end
  if not file then
    self:close()
    error({ status = 2, message = "tidelock: cannot write " .. message }, 0)
  end
  table.insert(self.files, file)
  table.insert(self.paths, path)
end

--- `value` without the numbers that JSON cannot hold.
local function finite(value)
  if type(value) == "number" then
    return value == value and math.abs(value) ~= math.huge and value or nil
  elseif type(value) ~= "table" then
    return value
  end
  local copy = {}
  for key, item in pairs(value) do copy[key] = finite(item) end
  return copy
end

--- A record as one line of text, without its end.
function log.line(record) return core.json.encode(finite(record)) end

--- Write one record, to all files or to the one with this number.
---@param record table
---@param only? integer
function Log:write(record, only)
  local text = log.line(record)
  for i = only or 1, only or #self.files do
    local file = self.files[i]
    local written, message = file:write(text, "\n")
    if written then written, message = file:flush() end
    if not written then error(("%s: cannot write it: %s"):format(self.paths[i], message), 0) end
  end
end

--- Ends writing; twice is fine.
function Log:close()
  for _, file in ipairs(self.files) do file:close() end
  self.files = {}
end

local kinds = { step = "integer", loss_bits = "string", grad_norm_bits = "string" }

--- Whether a value is a record: a table whose step and bits, if it has them, are such.
local function is_record(record)
  if type(record) ~= "table" then return false end
  for name, kind in pairs(kinds) do
    local value = record[name]
    if value ~= nil and (math.type(value) or type(value)) ~= kind then return false end
  end
  for _, name in ipairs { "loss_bits", "grad_norm_bits" } do
    local text = record[name] or "0"
    if #text > 8 or not text:find "^%x+$" then return false end
  end
  return true
end

--- The records of a file, or nil and a message when it cannot be read. A last line that was cut off
-- (the run was killed) is dropped, and what stands behind a line that is none of a log's.
function log.read(path)
  if core.files.is_directory(path) then return nil, path .. ": it is a folder" end
  local file, message = io.open(path, "r")
  if not file then return nil, message end
  local records = {}
  for line in file:lines() do
    local ok, record = pcall(core.json.decode, line)
    if not ok or not is_record(record) then break end
    records[#records + 1] = record
  end
  file:close()
  return records
end

return log
