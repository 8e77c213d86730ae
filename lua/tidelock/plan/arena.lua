--- Static memory: every tensor of a rank gets its place in one arena before anything runs.
--
--   bytes                                     An item lives from instruction `first` to `last`,
--     |      +-----------------+              both included. Two items may share bytes only when
--     |      | activation      |  +------+    their lives do not meet.
--     |  +---+--------+--------+--+ temp |
--     |  | temporary  |  gradient    +---+    lower bound  most bytes alive at one instruction
--     |  +------------+--------------+        peak         the end of the highest item: the arena
--     |  | weights, optimizer        |
--     +--+---------------------------+-> instructions
--
-- Items that live as long as the program lie at the bottom, in the order given. Two packings
-- compete for the rest, and the smaller peak wins (the second one when they are equal):
--
--   by time    in order of birth, each in the tightest hole; 5,000 items take 20 to 60 ms
--   by size    the largest item first, each at the lowest offset where it fits; quadratic, so for
--              2,500 items at most. Fewer items get further tries: the item that ends at the peak
--              goes first the next time, until the peak is within 1/64 of the bound.
--
-- The result depends on the items alone, never on time, addresses or the order of a hash table.

local heap = require "tidelock.plan.heap"

local arena = {}

arena.alignment = 64
arena.by_size_items_max = 2500
arena.tries_max = 40

local function align(bytes)
  return (bytes + arena.alignment - 1) // arena.alignment * arena.alignment
end

--- Bytes alive after each instruction at which something is born: the bound and where it is met.
local function lower_bound(items, sizes)
  local change, times = {}, {}
  local function add(time, bytes)
    if not change[time] then
      change[time] = 0
      times[#times + 1] = time
    end
    change[time] = change[time] + bytes
  end
  for i, item in ipairs(items) do
    add(item.first, sizes[i])
    add(item.last + 1, -sizes[i])
  end
  table.sort(times)
  local alive, most, at = 0, 0, times[1] or 0
  for _, time in ipairs(times) do
    alive = alive + change[time]
    if alive > most then most, at = alive, time end
  end
  return most, at
end

--- Indices sorted by `less(a, b)`, which tells every two of them apart.
local function sorted(indices, less)
  local order = table.move(indices, 1, #indices, 1, {})
  if order[2] then table.sort(order, less) end
  return order
end

--- The largest first, of equals the first.
local function larger(sizes)
  return function(a, b)
    local size, other = sizes[a], sizes[b]
    if size ~= other then return size > other end
    return a < b
  end
end

--- In the order given, each at the lowest offset where it meets no placed item alive with it.
-- Placed items form a linked list in order of offset.
---@param lives { first: integer[], last: integer[] } # of each item
---@param order integer[]
local function place_in_order(lives, sizes, order)
  local first_of, last_of, offset, stop, above = lives.first, lives.last, {}, {}, {}
  for i = 1, #sizes do offset[i], stop[i], above[i] = 0, 0, 0 end -- arrays from the start
  local lowest = 0 -- the first of the list
  for _, i in ipairs(order) do
    local first, last, size = first_of[i], last_of[i], sizes[i]
    local low, below = 0, 0 -- the candidate offset, and a placed item that begins below it
    local j = lowest
    while j ~= 0 do
      if first_of[j] <= last and last_of[j] >= first then
        if offset[j] - low >= size then break end
        if stop[j] > low then low, below = stop[j], j end
      end
      j = above[j]
    end
    local next = below == 0 and lowest or above[below]
    while next ~= 0 and offset[next] < low do below, next = next, above[next] end
    if below == 0 then lowest = i else above[below] = i end
    above[i], offset[i], stop[i] = next, low, low + size
  end
  return offset
end

--- End of the highest item, and the place in `indices` of the first item that ends there.
local function top_of(offset, sizes, indices)
  local top, at = 0, 0
  for k, i in ipairs(indices) do
    if offset[i] + sizes[i] > top then top, at = offset[i] + sizes[i], k end
  end
  return top, at
end

--- The largest item first, the longer-lived of equals; then, as long as the number of items allows
-- and the peak is far from the bound, again with the item that ended at the peak in front.
local function place_by_size(items, sizes, indices, bound)
  local lives = { first = {}, last = {} }
  for i, item in ipairs(items) do lives.first[i], lives.last[i] = item.first, item.last end
  local order = sorted(indices, function(a, b)
    if sizes[a] ~= sizes[b] then return sizes[a] > sizes[b] end
    local life, other = items[a].last - items[a].first, items[b].last - items[b].first
    if life ~= other then return life > other end
    return a < b
  end)
  local tries = math.min(arena.tries_max, (arena.by_size_items_max // math.max(1, #order)) ^ 2)
  local best, best_top
  for _ = 1, tries do
    local offset = place_in_order(lives, sizes, order)
    local top, at = top_of(offset, sizes, order)
    if not best or top < best_top then best, best_top = offset, top end
    if best_top - bound <= bound // 64 then break end
    table.insert(order, 1, table.remove(order, at))
  end
  return best, best_top
end

--- The place of the first number of an ascending list that is not below `wanted`.
local function first_from(list, wanted)
  local low, high = 1, #list + 1
  while low < high do
    local middle = (low + high) // 2
    if list[middle] < wanted then low = middle + 1 else high = middle end
  end
  return low
end

--- The free ranges of an arena without an end; neighbours are joined. They are found by their
--- begin, by their end, and by size: offsets of a size lie in a heap, from which those that are no
--- longer so large are dropped when they come up. So neither call looks at all holes.
local function new_holes()
  local size_at, begin_of = {}, {} -- by offset; by the offset behind it
  local sizes, heaps, counts = {}, {}, {} -- the sizes that holes have, ascending; by size
  local holes = {}

  local function add(offset, size)
    size_at[offset], begin_of[offset + size] = size, offset
    if not heaps[size] then
      heaps[size], counts[size] = {}, 0
      table.insert(sizes, first_from(sizes, size), size)
    end
    heap.push(heaps[size], offset, math.ult)
    counts[size] = counts[size] + 1
  end

  local function drop(offset)
    local size = size_at[offset]
    size_at[offset], begin_of[offset + size] = nil, nil
    counts[size] = counts[size] - 1
    if counts[size] == 0 then
      heaps[size] = nil
      table.remove(sizes, first_from(sizes, size))
    end
    return size
  end

  --- The offset of `size` bytes at the start of the tightest hole, the lowest of such.
  function holes.take(size)
    local found = sizes[first_from(sizes, size)]
    local offsets = heaps[found]
    while size_at[offsets[1]] ~= found do heap.pop(offsets, math.ult) end
    local offset = offsets[1]
    drop(offset)
    if found > size then add(offset + size, found - size) end
    return offset
  end

  function holes.give(offset, size)
    local before, behind = begin_of[offset], size_at[offset + size] and offset + size
    if behind then size = size + drop(behind) end
    if before then offset, size = before, size + drop(before) end
    add(offset, size)
  end

  add(0, math.maxinteger)
  return holes
end

--- Items by the instruction that is their `field`, and those instructions, ascending.
---@param field "first"|"last"
local function by_time(items, indices, field)
  local groups, times = {}, {}
  for _, i in ipairs(indices) do
    local time = items[i][field]
    if not groups[time] then
      groups[time] = {}
      times[#times + 1] = time
    end
    table.insert(groups[time], i)
  end
  table.sort(times)
  return groups, times
end

--- In order of birth (the larger first), each in the tightest hole that the dead have left.
local function place_by_time(items, sizes, indices)
  local born, births = by_time(items, indices, "first")
  local dead, deaths = by_time(items, indices, "last")
  local holes, offset, next = new_holes(), {}, 1
  for _, now in ipairs(births) do
    while deaths[next] < now do
      for _, i in ipairs(dead[deaths[next]]) do holes.give(offset[i], sizes[i]) end
      next = next + 1
    end
    for _, i in ipairs(sorted(born[now], larger(sizes))) do offset[i] = holes.take(sizes[i]) end
  end
  return offset
end

--- Round the sizes up and sort the items out: empty ones, those that live throughout, the rest.
local function sort_out(items)
  local sizes, throughout, others = {}, {}, {}
  local begin, finish = math.huge, -math.huge
  for i, item in ipairs(items) do
    assert(item.size >= 0 and item.last >= item.first, "item without a size or a life")
    sizes[i] = align(item.size)
    begin, finish = math.min(begin, item.first), math.max(finish, item.last)
  end
  for i, item in ipairs(items) do
    if sizes[i] > 0 then
      local whole = item.first == begin and item.last == finish
      table.insert(whole and throughout or others, i)
    end
  end
  return sizes, throughout, others
end

--- The ten largest items alive at an instruction, the largest first.
local function largest_at(items, sizes, offset, at)
  local alive = {}
  for i, item in ipairs(items) do
    if item.first <= at and at <= item.last and sizes[i] > 0 then alive[#alive + 1] = i end
  end
  local largest = {}
  for n, i in ipairs(sorted(alive, larger(sizes))) do
    if n > 10 then break end
    largest[n] = { name = items[i].name, size = sizes[i], offset = offset[i], index = i }
  end
  return largest
end

---@class tidelock.Placement
---@field offsets integer[] # of each item, multiples of 64; 0 for an item without bytes
---@field peak integer # bytes of the arena
---@field lower_bound integer # bytes alive at the fullest instruction
---@field peak_at integer # that instruction, the first of its kind
---@field largest table[] # the ten largest items alive there: { name, size, offset, index }

--- Place `items` = { { size, first, last, name }, .. }; sizes are bytes.
---@return tidelock.Placement
function arena.place(items)
  local sizes, throughout, others = sort_out(items)
  local offsets, base = {}, 0
  for i in ipairs(items) do offsets[i] = 0 end
  for _, i in ipairs(throughout) do
    offsets[i] = base
    base = base + sizes[i]
  end
  local bound, at = lower_bound(items, sizes)
  local best = place_by_time(items, sizes, others)
  local top = top_of(best, sizes, others)
  if #others > 0 and #others <= arena.by_size_items_max then
    local by_size, by_size_top = place_by_size(items, sizes, others, bound - base)
    if by_size_top <= top then best, top = by_size, by_size_top end
  end
  for _, i in ipairs(others) do offsets[i] = base + best[i] end
  return {
    offsets = offsets, peak = base + top, lower_bound = bound, peak_at = at,
    largest = largest_at(items, sizes, offsets, at),
  }
end

return arena
