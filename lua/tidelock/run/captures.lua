--- captures.lua - where the operands of instructions are kept, so that each can be run again.
---
---     instruction      reads                 writes         kept
---     12 rms_norm      x (of 9), gain        y, rstd        gain before, y after, rstd after
---     13 linear        y (of 12), weight     q, k, v        weight before, q, k, v after
---
--- An operand is kept once: an input that an instruction before has left, unchanged since, is that
--- copy. Buffers that live together do not overlap, so the last write to a buffer is all that has
--- to be known. Places that are written and were read before (table!) are kept before and after.
local core = require "tidelock.core"
local logical = require "tidelock.plan.logical"
local work = require "tidelock.forecast.work"

local captures = {}

--- The outputs of each operator that are also read: position -> true.
local function in_place()
  local list = {}
  for _, row in ipairs(core.ops()) do
    local positions, k = {}, 0
    for word in row.outputs:gmatch "%S+" do
      k = k + 1
      positions[k] = word:find("!", 1, true) and true or nil
    end
    list[row.name] = positions
  end
  return list
end

local function bytes_of(v) return work.bytes_of { v.dtype, v.shape } end

local Plan = {}
Plan.__index = Plan

local function place_key(v) return (v.offset or 0) .. " " .. bytes_of(v) end

--- A place in the block for a view; remembered as what its buffer holds there.
function Plan:keep(i, position, v, output, after)
  local offset = self.bytes
  self.bytes = offset + (bytes_of(v) + 63) // 64 * 64
  self.rows[#self.rows + 1] = { i, position, output and 1 or 0, after and 1 or 0, offset }
  self.held[v.buffer][place_key(v)] = offset
  return offset
end

--- Where the present contents of a view are kept; kept now where they are not.
function Plan:before(i, position, v, output)
  self.held[v.buffer] = self.held[v.buffer] or {}
  return self.held[v.buffer][place_key(v)] or self:keep(i, position, v, output, false)
end

local function add_instruction(self, made, i, wanted)
  local entry = { before = {}, into = {}, after = {} }
  local changed = self.in_place[made.op] or {}
  for k = 1, #made.inputs do
    local v = made.inputs[k]
    entry.before[k] = wanted and v and self:before(i, k, v, false) or -1
  end
  for k = 1, #made.outputs do
    local v = made.outputs[k]
    entry.into[k] = wanted and v and changed[k] and self:before(i, k, v, true) or -1
  end
  for k = 1, #made.outputs do
    local v = made.outputs[k]
    if v then self.held[v.buffer] = {} end -- what was there is no more
  end
  for k = 1, #made.outputs do
    local v = made.outputs[k]
    entry.after[k] = wanted and v and self:keep(i, k, v, true, true) or -1
  end
  return entry
end

---@param rank table # of plan.ranks
---@param select? fun(instruction: integer): boolean
---@return { rows: table[], bytes: integer, text: table } # text: by instruction, offsets of inputs
---  (before), of outputs before (into) and after; -1: not kept
function captures.plan(rank, select)
  local instructions = logical.instructions(rank)
  local self = setmetatable({ rows = {}, bytes = 0, in_place = in_place() }, Plan)
  local text = {}
  for i = 1, #instructions do text[i] = { before = {}, into = {}, after = {} } end
  for _, name in ipairs { "step", "init" } do
    self.held = {}
    local range = rank.sections[name]
    for i = range[1], range[1] + range[2] - 1 do
      text[i] = add_instruction(self, instructions[i], i, not select or select(i))
    end
  end
  for _, entry in ipairs(text) do
    for _, field in ipairs { "before", "into", "after" } do
      entry[field] = core.json.array(entry[field])
    end
  end
  return { rows = self.rows, bytes = self.bytes, text = text }
end

return captures
