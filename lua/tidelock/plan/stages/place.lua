--- place.lua - a place in the arena for every buffer, from the first and last instruction that
--- touch it. One arena serves init, step and eval: their buffers do not live at the same time.
local arena = require "tidelock.plan.arena"

local place = {}

--- What is kept can be read until the next step, also after an evaluation.
local function kept_until(rank)
  local step, eval = rank.sections.step, rank.sections.eval
  return math.max(step[1] + step[2], eval[1] + eval[2]) - 1
end

--- Rows of experts that travel are read while the kernels' lane goes on. Were their place free
--- behind the instruction that sends them, the products that they travel beside would write there,
--- and so wait for them: they keep it until the message after the next one.
---
---     kernels   [rows of wave 1][products of wave 0]......[rows of wave 2]
---     messages                  [wave 1 to its owners    ][wave 0 home   ]
---@return table<table, integer> # by buffer: an instruction of its section
local function held(rank)
  local last = {}
  for _, name in ipairs { "init", "step", "eval" } do
    local range, next_one, after_next = rank.sections[name], nil, nil
    for i = range and range[1] + range[2] - 1 or 0, range and range[1] or 1, -1 do
      local made = rank.instructions[i]
      if made.op == "exchange" then
        local buffer = made.inputs[1].buffer
        last[buffer] = math.max(last[buffer] or 0, after_next or i)
        next_one, after_next = i, next_one
      end
    end
  end
  return last
end

local function items_of(rank, apart)
  local items, sent = {}, apart and held(rank) or {}
  for _, buffer in ipairs(rank.buffers) do
    if buffer.first then
      local last = buffer.kept and kept_until(rank) or math.max(buffer.last, sent[buffer] or 0)
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
    local items = items_of(rank, plan.spec.device == "cuda" and plan.spec.layout.ep > 1)
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
