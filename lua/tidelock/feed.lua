--- feed.lua - what a step's rows are told: the lists that serving.lua's sections read.
---
---     ids        | token of each row          | 0 ..     each list is filled up to 16 elements
---     positions  | its place in its request   | 0 ..
---     requests   | slot                       | 0 ..
---     next       | -1 choose, -2 none, or known
---     draws      | top_k, seed, request, position: 6 a row
---     controls   | temperature, top_p         f32, a tensor of its own
---
--- While requests decode, a row goes on with the request that it had: then only token and position
--- change, and the controls stay where they are. So lists are kept, a set for each number of rows.
local core = require "tidelock.core"

local feed = {}

---@class tidelock.Feed
local Feed = {}
Feed.__index = Feed

---@return tidelock.Feed
function feed.new() return setmetatable({ sets = {}, last = nil }, Feed) end

local function padded(count) return (count + 15) // 16 * 16 end

local function new_set(count)
  local set = { list = {}, controls = {}, owner = {}, known = {}, stride = padded(count) }
  set.draws = 4 * set.stride
  for i = 1, set.draws + padded(6 * count) do set.list[i] = 0 end
  for i = 1, count do
    set.list[i], set.list[2 * set.stride + i], set.list[3 * set.stride + i] = -1, -1, -2
    set.controls[2 * i - 1], set.controls[2 * i], set.owner[i] = 0, 1, false
  end
  return set
end

--- Row i belongs to another request, or to none, or does something else. Controls and draws are
--- read of rows that choose alone.
local function begin_row(set, i, request, known)
  local list = set.list
  set.owner[i], set.known[i] = request, known
  list[2 * set.stride + i] = request and request.slot or -1
  list[3 * set.stride + i] = request and known or -2
  if not request or known ~= -1 then return end
  set.controls[2 * i - 1], set.controls[2 * i] = request.temperature, request.top_p
  table.move(request.draws, 1, 5, set.draws + 6 * (i - 1) + 1, list)
end

--- The lists of rows { request, position, next } for a section of `count` rows; the controls are
--- nil where they are what they were in the last step.
---@param rows table[]
---@param count integer
---@return tidelock.Tensor lists
---@return tidelock.Tensor? controls
function Feed:fill(rows, count)
  local set = self.sets[count] or new_set(count)
  self.sets[count] = set
  local list, owner, stride, draws = set.list, set.owner, set.stride, set.draws
  local changed = self.last ~= count
  for i = 1, count do
    local row = rows[i]
    if row then
      local request, position, known = row[1], row[2], row[3]
      if owner[i] ~= request or set.known[i] ~= known then
        begin_row(set, i, request, known)
        changed = changed or known == -1
      end
      list[i], list[stride + i] = request.tokens[position + 1], position
      if known == -1 then list[draws + 6 * i] = position + 1 end
    elseif owner[i] then
      begin_row(set, i, false)
      list[i], list[stride + i] = -1, 0
    end
  end
  self.last = count
  return core.tensor("i32", { #list }, list),
    changed and core.tensor("f32", { count, 2 }, set.controls) or nil
end

return feed
