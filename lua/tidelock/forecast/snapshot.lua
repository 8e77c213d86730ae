--- snapshot.lua - the arena of a rank for PyTorch's memory viewer (pytorch.org/memory_viz): a
--- pickle with one segment, the blocks that live throughout, and a trace of all others.
---
---     segments        [ { address, total_size, blocks = [ { size, state, frames }, .. ] } ]
---     device_traces   [ [ { action = "alloc", addr, size, frames, time_us }, .. ] ]
---
--- The frames of a block are its recipe line and what it holds. The pickle uses protocol 2 and a
--- few operations; Python's pickle and the viewer's own reader take it.
local sorted_keys = require "tidelock.text.sorted_keys"

local snapshot = {}

-- pickle ----------------------------------------------------------------------------------------

local write

local function write_integer(out, n)
  if n >= -0x80000000 and n <= 0x7fffffff then out[#out + 1] = "J" .. string.pack("<i4", n)
  else out[#out + 1] = "\x8a\x08" .. string.pack("<i8", n) end
end

local function write_list(out, list)
  out[#out + 1] = "]("
  for _, item in ipairs(list) do write(out, item) end
  out[#out + 1] = "e"
end

local function write_table(out, map)
  out[#out + 1] = "}("
  for _, key in ipairs(sorted_keys(map)) do
    write(out, key)
    write(out, map[key])
  end
  out[#out + 1] = "u"
end

--- A Lua value as operations; a table with `n` is a list, any other a dictionary.
function write(out, value)
  local kind = type(value)
  if kind == "string" then out[#out + 1] = "X" .. string.pack("<s4", value)
  elseif math.type(value) == "integer" then write_integer(out, value)
  elseif kind == "number" then out[#out + 1] = "G" .. string.pack(">d", value)
  elseif kind == "boolean" then out[#out + 1] = value and "\x88" or "\x89"
  elseif value.n then write_list(out, value)
  else write_table(out, value) end
end

--- The pickle of a value: strings, numbers, booleans, { n = .., .. } lists, dictionaries.
---@return string
function snapshot.pickle(value)
  local out = { "\x80\x02" }
  write(out, value)
  out[#out + 1] = "."
  return table.concat(out)
end

-- snapshot --------------------------------------------------------------------------------------

local base = 0x7f0000000000 -- where the arena is said to begin

local function list(items)
  items.n = #items
  return items
end

local function frames(b)
  local file, line = b.site:match "^(.-):(%d+)$"
  return list {
    { filename = file or b.site, line = math.tointeger(tonumber(line)) or 0, name = b.name },
  }
end

local function event(action, b, time)
  return { action = action, addr = base + b.offset, size = b.bytes, stream = 0, frames = frames(b),
    time_us = time, category = "unknown" }
end

--- Allocations and ends of life in the order of instructions. `times[i]`: microseconds at which
--- instruction begin + i - 1 starts; one past the last is there.
local function trace_of(view, times)
  local events = {}
  for k, b in ipairs(view.buffers) do
    local at = b.first - view.begin + 1
    events[#events + 1] = { at = at, rank = 1, k = k, b = b, action = "alloc" }
    if b.last < view.finish then
      for r, action in ipairs { "free_requested", "free_completed" } do
        events[#events + 1] = { at = b.last - view.begin + 2, rank = r - 2, k = k, b = b,
          action = action }
      end
    end
  end
  table.sort(events, function(x, y) -- at one instruction ends come before beginnings
    if x.at ~= y.at then return x.at < y.at end
    if x.rank ~= y.rank then return x.rank < y.rank end
    return x.k < y.k
  end)
  local arena = { offset = 0, bytes = view.bytes, name = "arena", site = "arena:0" }
  local out = { event("segment_alloc", arena, times[1]) }
  for _, e in ipairs(events) do out[#out + 1] = event(e.action, e.b, times[e.at]) end
  return list(out)
end

--- What lies in the arena at the end of the step, and the holes between.
local function blocks_of(view)
  local alive = {}
  for _, b in ipairs(view.buffers) do
    if b.last == view.finish and b.bytes > 0 then alive[#alive + 1] = b end
  end
  table.sort(alive, function(x, y) return x.offset < y.offset end)
  local blocks, at, used = {}, 0, 0
  local function add(offset, size, state, b)
    blocks[#blocks + 1] = { address = base + offset, size = size, requested_size = size,
      state = state, frames = b and frames(b) or list {} }
  end
  for _, b in ipairs(alive) do
    if b.offset > at then add(at, b.offset - at, "inactive") end
    add(b.offset, b.bytes, "active_allocated", b)
    at, used = b.offset + b.bytes, used + b.bytes
  end
  if at < view.bytes then add(at, view.bytes - at, "inactive") end
  return list(blocks), used
end

--- The snapshot of a rank's step.
---@param view table # as arena_view.svg takes it
---@param times integer[] # microseconds
---@return string
function snapshot.of(view, times)
  local blocks, used = blocks_of(view)
  return snapshot.pickle {
    segments = list { {
      device = 0, address = base, total_size = view.bytes, allocated_size = used,
      active_size = used, requested_size = used, stream = 0, segment_type = "large",
      segment_pool_id = list { 0, 0 }, is_expandable = false, frames = list {}, blocks = blocks,
    } },
    device_traces = list { trace_of(view, times) }, allocator_settings = {},
    external_annotations = list {},
  }
end

return snapshot
