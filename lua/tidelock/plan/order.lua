--- order.lua - the order of a rank's instructions where rows of experts travel in a lane of their
--- own: ready work that does not wait for a message goes before work that does.
---
---     as written   [shared expert][rows 0][rows 1]........[products 0][products 1]
---                                         <rows 0 travel ><rows 1        >
---     ordered      [rows 0][rows 1][shared expert][products 0][products 1]
---                          <rows 0 travel ><rows 1          >
---
--- Both lanes are run through on paper (paper.lua). Messages keep their order, which all ranks
--- share, and each stands right behind what it needs. Kernels keep theirs, too, but for two rules:
---
---   put off       what takes more memory than it gives back, and is needed for a later message
---                 than what could run in its place (a shared expert, before rows are sent)
---   pulled ahead  what is ready and short enough, where the next kernel would wait for a message
---
--- Weight gradients give back rows, so they are never put off. The order of whatever touches the
--- same bytes of a buffer stays: every sum adds in the order in which it was written, and no bit
--- hangs on the order. It is found before buffers have places, so that no kernel waits since the
--- arena has put it over rows that still travel: buffers of a message live as long as that does.
local lower = require "tidelock.plan.lower"
local paper = require "tidelock.plan.paper"

local order = {}

order.windows = { 200, 25 } -- instructions that a kernel may be pulled over: the first that
order.more = 1.08 -- takes at most so much more memory than kernels in the order as written
order.fits = 1 -- a kernel that is pulled ahead takes at most so much of the wait that it fills
order.small = 1 << 20 -- bytes that are not worth an order
order.late = 1.3 -- a message may take so much longer than on paper, and then some:
order.margin = 1e-4

local moves = { forward = true, backward = true, loss = true }

---@class tidelock.Ordered # an instruction of a section
---@field made table
---@field index integer # from 1, as written
---@field seconds number
---@field talks boolean
---@field open integer # instructions before it that are not placed yet
---@field after tidelock.Ordered[] # those that have to come after it
---@field serves number # the first message that needs it
---@field ready number # when what it needs has ended
---@field grows boolean # gives no memory back
---@field feeds boolean # makes rows that travel
---@field start number
---@field stop number

-- what needs what -------------------------------------------------------------------------------

local function extent(v)
  local bytes = lower.bytes_of[v.dtype]
  for _, size in ipairs(v.shape) do bytes = bytes * size end
  local first = v.offset or 0
  return first, first + bytes
end

--- Notes that `item` comes after those of `list` that touch these bytes.
local function follow(item, list, first, last)
  for _, one in ipairs(list or {}) do
    if one.first < last and first < one.last and one.item.marked ~= item and one.item ~= item then
      one.item.marked = item
      item.open = item.open + 1
      table.insert(one.item.after, item)
    end
  end
end

--- What is left of a list once bytes are written: later ones need only follow the writer.
local function uncovered(list, first, last)
  local left = {}
  for _, one in ipairs(list or {}) do
    if one.first < first or one.last > last then left[#left + 1] = one end
  end
  return left
end

local function link(items)
  local readers, writers = {}, {}
  for _, item in ipairs(items) do
    local ins, outs = item.made.inputs, item.made.outputs
    for i = 1, #ins do
      if ins[i] then follow(item, writers[ins[i].buffer], extent(ins[i])) end
    end
    for i = 1, #outs do
      if outs[i] then
        follow(item, writers[outs[i].buffer], extent(outs[i]))
        follow(item, readers[outs[i].buffer], extent(outs[i]))
      end
    end
    for i = 1, #outs do
      local buffer = outs[i] and outs[i].buffer
      if buffer then
        local first, last = extent(outs[i])
        readers[buffer] = uncovered(readers[buffer], first, last)
        writers[buffer] = uncovered(writers[buffer], first, last)
        table.insert(writers[buffer], { item = item, first = first, last = last })
      end
    end
    for i = 1, #ins do
      local buffer = ins[i] and ins[i].buffer
      if buffer then
        local first, last = extent(ins[i])
        readers[buffer] = readers[buffer] or {}
        table.insert(readers[buffer], { item = item, first = first, last = last })
      end
    end
  end
end

--- Bytes of buffers that an instruction touches first, less those of which it is the last.
local function growth(made, at)
  local bytes, seen = 0, {}
  for _, list in ipairs { made.inputs, made.outputs } do
    for i = 1, #list do
      local buffer = list[i] and list[i].buffer
      if buffer and not buffer.persistent and not seen[buffer] then
        seen[buffer] = true
        bytes = bytes + (buffer.first == at and buffer.bytes or 0)
          - (buffer.last == at and buffer.bytes or 0)
      end
    end
  end
  return bytes
end

---@return tidelock.Ordered[] items # of a section
---@return tidelock.Ordered[] messages # of them
local function items_of(self, range)
  local items, messages, experts = {}, {}, paper.experts(self.l)
  for i = 1, range[2] do
    local at = range[1] + i - 1
    local made = self.instructions[at]
    local seconds, talks = paper.seconds(made, self.l.length, self.l.t, experts)
    items[i] = { made = made, index = i, seconds = seconds, talks = talks, open = 0, after = {},
      serves = math.huge, ready = 0, grows = growth(made, at) > -order.small }
    if talks then
      messages[#messages + 1] = items[i]
      items[i].number = #messages
    end
  end
  link(items)
  for i = #items, 1, -1 do
    for _, later in ipairs(items[i].after) do
      items[i].serves = math.min(items[i].serves, later.number or later.serves)
      items[i].feeds = items[i].feeds or later.made.op == "exchange"
    end
  end
  return items, messages
end

-- both lanes, on paper --------------------------------------------------------------------------

local Paper = {}
Paper.__index = Paper

--- Notes a kernel for which all before it is placed; they stand in the order as written.
function Paper:note(item)
  local list, at = self.open, #self.open + 1
  while at > 1 and list[at - 1].index > item.index do at = at - 1 end
  table.insert(list, at, item)
end

--- Puts an instruction next in its lane.
function Paper:place(item)
  local lane = item.talks and 1 or 0
  item.start = math.max(self.free[lane], item.ready)
  item.stop = item.start + item.seconds
  item.placed, self.free[lane] = true, item.stop
  self.list[#self.list + 1] = item
  for _, later in ipairs(item.after) do
    later.open = later.open - 1
    later.ready = math.max(later.ready, item.stop)
    if later.open == 0 and not later.talks then self:note(later) end
  end
end

--- Messages for which all is there.
function Paper:send()
  local message = self.messages[self.sent + 1]
  while message and message.open == 0 do
    self.sent = self.sent + 1
    self:place(message)
    message = self.messages[self.sent + 1]
  end
end

--- The last place from which a kernel may come now: not past the window, nor past one that stays.
function Paper:reach()
  local items = self.items
  while items[self.head] and (items[self.head].placed or items[self.head].talks) do
    self.head = self.head + 1
  end
  self.stay = math.max(self.stay, self.head)
  while items[self.stay] do
    local item = items[self.stay]
    if not item.talks and not item.placed and not moves[item.made.phase] then break end
    self.stay = self.stay + 1
  end
  return self.stay == self.head and self.head or math.min(self.stay - 1, self.head + self.window)
end

--- The kernel that comes next.
function Paper:choose()
  local list, reach = self.open, self:reach()
  local at = 1
  for i, item in ipairs(list) do
    if item.index > reach or not list[at].grows then break end
    if item.serves < list[at].serves then at = i end
    if not item.grows then break end
  end
  local wait = list[at] and list[at].ready - self.free[0] or 0
  for i, item in ipairs(wait > 0 and list or {}) do
    if item.index > reach then break end
    local short = item.ready <= self.free[0] and item.seconds <= order.fits * wait
    if short and not item.feeds then
      at = i
      break
    end
  end
  return table.remove(list, at)
end

--- The instructions of a section in their new order.
local function run(items, messages, window)
  local self = setmetatable({ items = items, messages = messages, window = window, list = {},
    open = {}, sent = 0, head = 1, stay = 1, free = { [0] = 0, [1] = 0 } }, Paper)
  for _, item in ipairs(items) do
    if item.open == 0 and not item.talks then self:note(item) end
  end
  self:send()
  local item = self:choose()
  while item do
    self:place(item)
    self:send()
    item = self:choose()
  end
  assert(#self.list == #items, "every instruction has its place")
  return self.list
end

-- what comes of it ------------------------------------------------------------------------------

local sections = { "step", "eval" }

--- The instructions of a section up to the last one that may move: first and count.
local function part_of(self, name)
  local first, count = self.sections[name][1], self.sections[name][2]
  while count > 0 and not moves[self.instructions[first + count - 1].phase] do count = count - 1 end
  return { first, count }
end

--- The list of each section.
local function find(self, window)
  local found = {}
  for _, name in ipairs(sections) do
    local items, messages = items_of(self, part_of(self, name))
    found[name] = run(items, messages, window)
  end
  return found
end

--- Whether a list is one of these instructions: ranks that hold other experts do the same work.
local function fits(self, found)
  for _, name in ipairs(sections) do
    local range, list = part_of(self, name), found[name]
    if range[2] ~= #list then return false end
    for _, item in ipairs(list) do
      if self.instructions[range[1] + item.index - 1].op ~= item.made.op then return false end
    end
  end
  return true
end

local function touch(made, fn)
  for _, list in ipairs { made.inputs, made.outputs } do
    for i = 1, #list do
      if list[i] then fn(list[i].buffer) end
    end
  end
end

--- First and last instruction of every buffer, anew.
local function relive(self)
  for _, buffer in ipairs(self.buffers) do buffer.first, buffer.last = nil, nil end
  for i, made in ipairs(self.instructions) do
    touch(made, function(buffer) buffer.first, buffer.last = buffer.first or i, i end)
  end
end

--- Buffers of a message live until the kernels that may run beside it have begun.
local function hold(self, list, first)
  for i, message in ipairs(list) do
    if message.talks then
      local last, stop = i, message.start + order.late * message.seconds + order.margin
      for k = i + 1, #list do
        if not list[k].talks and list[k].start >= stop then break end
        last = k
      end
      touch(self.instructions[first + i - 1], function(buffer)
        buffer.last = math.max(buffer.last, first + last - 1)
      end)
    end
  end
end

--- Bytes that live at once, at the most.
local function peak(self)
  local change, bytes, most = {}, 0, 0
  for _, buffer in ipairs(self.buffers) do
    if buffer.first and not buffer.persistent then
      change[buffer.first] = (change[buffer.first] or 0) + buffer.bytes
      change[buffer.last + 1] = (change[buffer.last + 1] or 0) - buffer.bytes
    end
  end
  for i = 1, #self.instructions do
    bytes = bytes + (change[i] or 0)
    most = math.max(most, bytes)
  end
  return most
end

local function arrange(self, written, found)
  for _, name in ipairs(sections) do
    local first = self.sections[name][1]
    for i, item in ipairs(found[name]) do
      self.instructions[first + i - 1] = written[first + item.index - 1]
    end
  end
  relive(self)
  for _, name in ipairs(sections) do hold(self, found[name], self.sections[name][1]) end
end

--- An order that takes hardly more memory than kernels as they were written: what is pulled far
--- ahead leaves its outputs lying about, the more so with many micro-batches.
local function choose(self, written)
  local plain, room
  for _, window in ipairs { 0, table.unpack(order.windows) } do
    table.move(written, 1, #written, 1, self.instructions)
    relive(self)
    local found = find(self, window)
    arrange(self, written, found)
    plain, room = plain or found, room or order.more * peak(self)
    if window > 0 and peak(self) <= room then return found end
  end
  return plain
end

--- Orders the instructions of a rank of a GPU. `known`: orders of the ranks before it, by pipeline
--- rank; those of one see their messages in one order.
---@param self tidelock.Lower
---@param known table<integer, table>
function order.run(self, known)
  if self.spec.device ~= "cuda" or self.spec.layout.ep == 1 then return end
  local written = table.move(self.instructions, 1, #self.instructions, 1, {})
  local found = known[self.rank]
  if not found or not fits(self, found) then found = choose(self, written) end
  known[self.rank] = found
  arrange(self, written, found)
  self.ordered = true
end

return order
