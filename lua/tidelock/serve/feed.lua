--- feed.lua - what a step's rows are told: the lists that plan/serving.lua's sections read.
---
---     ids        | token of each row, or where | 0 ..    each list is filled up to 16 elements
---     positions  | its place in its request   | 0 ..
---     requests   | slot                       | 0 ..
---     next       | -1 choose, -2 none, or known
---     draws      | top_k, seed, request, position: 6 a row
---     controls   | temperature, top_p         f32, a tensor of its own
---
---     short      ids, positions, requests; of rows that choose: chosen (which row), next, draws
---
--- Rows come as spans: positions of one request that follow each other, a whole chunk of a prompt
--- or one row that decodes. While requests decode, a row goes on with the request that it had: then
--- only token and position change, and the controls stay where they are. So lists are kept, a set
--- for each number of rows, and of a kept tensor only what has changed is written again.
local core = require "tidelock.core"

local feed = {}

---@class tidelock.Span
---@field request table
---@field at integer # its first row, from 1
---@field first integer # position of that row
---@field count integer
---@field decodes boolean # one row, which chooses
---@field token? integer # of a row that decodes; -2 - i: what row i of the step before chose
---@field chooses boolean # its last row does
---@field choice integer? # its place, from 1, among the ids of the step
---@field vain boolean # its request had ended when the step did

---@class tidelock.Feed
local Feed = {}
Feed.__index = Feed

---@return tidelock.Feed
function feed.new()
  return setmetatable({ sets = {}, shorts = {}, counted = {}, last = nil }, Feed)
end

local function padded(count) return (count + 15) // 16 * 16 end

local function new_set(count)
  local set = { list = {}, controls = {}, owner = {}, stride = padded(count), used = 0 }
  set.draws = 4 * set.stride
  for i = 1, set.draws + padded(6 * count) do set.list[i] = 0 end
  for i = 1, count do
    set.list[i], set.list[2 * set.stride + i], set.list[3 * set.stride + i] = -1, -1, -2
    set.controls[2 * i - 1], set.controls[2 * i], set.owner[i] = 0, 1, false
  end
  set.tensor = core.tensor("i32", { #set.list }, set.list)
  return set
end

--- What row `span.at + k` is to do: choose, nothing, or the token that is known.
---@param span tidelock.Span
---@param k integer # from 0
function feed.next_of(span, k)
  if span.decodes then return -1 end
  local following = span.request.tokens[span.first + k + 2]
  return not following and -1 or span.request.echo and following or -2
end

--- Row i chooses: its controls and draws.
local function begin_choice(set, i, request)
  set.controls[2 * i - 1], set.controls[2 * i] = request.temperature, request.top_p
  table.move(request.draws, 1, 5, set.draws + 6 * (i - 1) + 1, set.list)
end

--- A row that decodes. True: it is new here.
local function fill_row(set, span)
  local list, stride, i, request = set.list, set.stride, span.at, span.request
  local is_new = set.owner[i] ~= request
  if is_new then
    set.owner[i] = request
    list[2 * stride + i], list[3 * stride + i] = request.slot, -1
    begin_choice(set, i, request)
  end
  list[i], list[stride + i] = span.token, span.first
  list[set.draws + 6 * i] = span.first + 1
  return is_new
end

--- A part of a prompt. True: its last row chooses.
local function fill_prompt(set, span)
  local list, stride, owner, request = set.list, set.stride, set.owner, span.request
  local tokens, slot, echo, at, first = request.tokens, request.slot, request.echo, span.at,
    span.first
  for k = 0, span.count - 1 do
    local i = at + k
    owner[i] = false
    list[i], list[stride + i], list[2 * stride + i] = tokens[first + k + 1], first + k, slot
    list[3 * stride + i] = echo and tokens[first + k + 2] or -2
  end
  if tokens[first + span.count + 1] then return false end
  local last = at + span.count - 1
  list[3 * stride + last] = -1
  begin_choice(set, last, request)
  list[set.draws + 6 * last] = first + span.count
  return true
end

--- Lists of a kept set go to its tensor. Draws are read of rows that choose alone.
local function put(set, spans, rows, whole)
  local list, stride, tensor = set.list, set.stride, set.tensor
  tensor:put(list, 1, rows):put(list, stride + 1, rows)
  if whole then tensor:put(list, 2 * stride + 1, rows):put(list, 3 * stride + 1, rows) end
  local first, last = nil, nil
  local function flush()
    if first then tensor:put(list, set.draws + 6 * (first - 1) + 1, 6 * (last - first + 1)) end
  end
  for _, span in ipairs(spans) do
    local row = span.at + span.count - 1
    if list[3 * stride + row] == -1 then
      if last ~= row - 1 then
        flush()
        first = row
      end
      last = row
    end
  end
  flush()
end

--- The lists of `spans` for a section of `count` rows, of which `rows` are used; the controls are
--- nil where they are what they were in the last step. The lists hold until the next step.
---@param spans tidelock.Span[]
---@param rows integer
---@param count integer
---@return tidelock.Tensor lists
---@return tidelock.Tensor? controls
function Feed:fill(spans, rows, count)
  local set = self.sets[count] or new_set(count)
  self.sets[count] = set
  local list, owner, stride = set.list, set.owner, set.stride
  local changed, whole = self.last ~= count, rows ~= set.used
  for _, span in ipairs(spans) do
    if span.decodes then
      if fill_row(set, span) then changed, whole = true, true end
    else
      whole = true
      if fill_prompt(set, span) then changed = true end
    end
  end
  for i = rows + 1, set.used do
    owner[i] = false
    list[i], list[stride + i], list[2 * stride + i], list[3 * stride + i] = -1, 0, -1, -2
  end
  put(set, spans, math.max(rows, set.used), whole)
  self.last, set.used = count, rows
  return set.tensor, changed and core.tensor("f32", { count, 2 }, set.controls) or nil
end

-- short sections --------------------------------------------------------------------------------

local function new_short(count, choosers)
  local set = { list = {}, controls = {}, stride = padded(count), wide = padded(choosers) }
  set.draws = 3 * set.stride + 2 * set.wide
  for i = 1, set.draws + padded(6 * choosers) do set.list[i] = 0 end
  for i = 1, choosers do set.controls[2 * i - 1], set.controls[2 * i] = 0, 1 end
  set.tensor = core.tensor("i32", { #set.list }, set.list)
  return set
end

--- Tokens, positions and slots of a span's rows.
local function fill_rows(self, set, span)
  local list, stride, request, at = set.list, set.stride, span.request, span.at
  local first, count, counted, slot = span.first, span.count, self.counted, span.request.slot
  for k = #counted, first + count - 1 do counted[k + 1] = k end
  if span.decodes then
    list[at] = span.token
  else
    table.move(request.tokens, first + 1, first + count, at, list)
  end
  table.move(counted, first + 1, first + count, stride + at, list)
  for i = 2 * stride + at, 2 * stride + at + count - 1 do list[i] = slot end
end

--- The lists of `spans` for a short section, whose choices come in the order of spans.
---@param spans tidelock.Span[]
---@param rows integer
---@param count integer
---@param choosers integer
---@return tidelock.Tensor lists
---@return tidelock.Tensor controls
function Feed:fill_short(spans, rows, count, choosers)
  local set = self.shorts[count] or new_short(count, choosers)
  self.shorts[count], self.last = set, nil
  local list, stride, chosen = set.list, set.stride, 3 * set.stride
  local next_ = chosen + set.wide
  for i = rows + 1, count do list[i], list[stride + i], list[2 * stride + i] = -1, 0, -1 end
  for i = 1, choosers do list[chosen + i], list[next_ + i] = -1, -2 end
  for _, span in ipairs(spans) do
    local request, c = span.request, span.choice
    fill_rows(self, set, span)
    if c then
      list[chosen + c], list[next_ + c] = span.at + span.count - 2, -1
      set.controls[2 * c - 1], set.controls[2 * c] = request.temperature, request.top_p
      table.move(request.draws, 1, 5, set.draws + 6 * (c - 1) + 1, list)
      list[set.draws + 6 * c] = span.first + span.count
    end
  end
  set.tensor:put(list, 1, #list)
  return set.tensor, core.tensor("f32", { choosers, 2 }, set.controls)
end

return feed
