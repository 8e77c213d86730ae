--- place.lua - a place in the arena for every buffer, from the first and last instruction that
--- touch it. One arena serves init, step and eval: their buffers do not live at the same time.
local arena = require "tidelock.plan.arena"

local place = {}

--- What is kept can be read until the next step, also after an evaluation.
local function kept_until(rank)
  local step, eval = rank.sections.step, rank.sections.eval
  return math.max(step[1] + step[2], eval[1] + eval[2]) - 1
end

local function items_of(rank)
  local items = {}
  for _, buffer in ipairs(rank.buffers) do
    if buffer.first then
      local last = buffer.kept and kept_until(rank) or buffer.last
      items[#items + 1] = {
        size = buffer.bytes, first = buffer.persistent and 1 or buffer.first,
        last = buffer.persistent and #rank.instructions or last, name = buffer.name or "?",
        buffer = buffer,
        persistent = buffer.persistent,
      }
    end
  end
  return items
end

--- Bytes by kind: persistent kinds whole, the others by what lives at the peak instruction.
local function by_kind(items, at)
  local kinds = {}
  for _, item in ipairs(items) do
    if item.first <= at and at <= item.last then
      local kind = item.buffer.kind
      kinds[kind] = (kinds[kind] or 0) + item.size
    end
  end
  return kinds
end

function place.run(plan)
  local places = {}
  for i, rank in ipairs(plan.ranks) do
    local items = items_of(rank)
    local result = arena.place(items)
    for j, item in ipairs(items) do item.buffer.offset = result.offsets[j] end
    places[i] = {
      bytes = result.peak, lower_bound = result.lower_bound, at = result.peak_at,
      largest = result.largest, kinds = by_kind(items, result.peak_at),
    }
  end
  return { places = places }
end

return place
