--- divergence.lua - where two traces part, and whether inputs or the operation are to blame.
---
---     find     the first step and output that differ                      hashes suffice
---     locate   the element, both values, the rank that owns it            values are needed
---     explain  the instruction run again from what it had: itself, and what ranks keep to
---              themselves before it; then its inputs and numbers on both sides
local compare = require "tidelock.trace.compare"
local core = require "tidelock.core"
local rerun = require "tidelock.trace.rerun"
local sorted_keys = require "tidelock.text.sorted_keys"

local divergence = {}

--- The first output that differs, with its step; nil when all steps that both have are equal.
---@return table?
---@return tidelock.Extent # what was compared until then
function divergence.find(a, b)
  local extent = compare.extent()
  for _, step in ipairs(compare.steps(a, b)) do
    local found = compare.step(a, b, step, extent)
    if found then
      found.step = step
      return found, extent
    end
  end
  return nil, extent
end

local function output_of(t, rank, index) return t.outputs[t:program_of(rank)][index] end

--- Global row and column of element `at` (from 0) of a rank's output; nil in what fills it up.
local function global_of(t, rank, o, at)
  local r, c = at // o.pitch, at % o.pitch
  if r >= o.rows or c >= o.cols then return nil end
  local base = o.row_first + o.rows_per_sample * t.meta.ranks[rank + 1].sample_base
  return base + r // o.piece_rows * o.piece_stride + r % o.piece_rows, o.col_first + c
end

--- The element (from 0) of a rank's output that lies at a global row and column; nil if none does.
local function local_of(t, rank, o, row, col)
  local base = o.row_first + o.rows_per_sample * t.meta.ranks[rank + 1].sample_base
  local piece, c = (row - base) // o.piece_stride, col - o.col_first
  local in_piece = (row - base) % o.piece_stride
  local r = piece * o.piece_rows + in_piece
  if row < base or in_piece >= o.piece_rows or r >= o.rows then return nil end
  if c < 0 or c >= o.cols then return nil end
  return r * o.pitch + c
end

local function value_at(tensor, index) -- from 0
  return { value = tensor:flat()[index + 1], bits = tensor:bits()[index + 1],
    dtype = tensor:dtype() }
end

--- The same output of both sides.
local function locate_same(a, b, found)
  local o = output_of(a, found.rank, found.output)
  local x = a:operand(found.rank, found.step, o.instruction, "after", o.position)
  local y = b:operand(found.rank, found.step, o.instruction, "after", o.position)
  local at, count = core.trace_compare(x, y)
  if not at then return nil end
  local row, col = global_of(a, found.rank, o, at - 1)
  local total = 1
  for _, size in ipairs(x:shape()) do total = total * size end
  local whole = not o.own and compare.locate(a, b, found.step, found.key)
  if whole then count, total = whole.count, whole.total end -- of all ranks, not of this one
  return {
    row = row, col = col, cols = o.cols_full, own = o.own, count = count, total = total,
    a = value_at(x, at - 1), b = value_at(y, at - 1), side = "b",
    rank_a = found.rank, rank_b = found.rank, output_a = found.output, output_b = found.output,
    element_a = at, element_b = at,
  }
end

--- Who holds the element at (row, col) of a key: { rank, output, element from 1 }.
local function owner(t, step, key, row, col)
  for _, share in ipairs(compare.groups(t, step)[key].shares) do
    local o = output_of(t, share.rank, share.output)
    local at = local_of(t, share.rank, o, row, col)
    if at then return share.rank, share.output, at + 1 end
  end
end

--- A logical tensor: the side whose copies disagree is the suspect, else b.
local function locate_logical(a, b, found)
  local swapped = found.odd_a ~= nil and found.odd_b == nil
  local good, other = swapped and b or a, swapped and a or b
  local it = compare.locate(good, other, found.step, found.key)
  if not it then return nil end
  local row, col = it.element // it.cols, it.element % it.cols
  local rank, output, element = owner(good, found.step, found.key, row, col)
  local bad = output_of(other, it.rank, it.output)
  local there = local_of(other, it.rank, bad, row, col)
  local x, y = value_at(it.good, it.element), value_at(it.bad, it.element)
  if swapped then
    return { row = row, col = col, cols = it.cols, count = it.count, total = it.total, side = "a",
      a = y, b = x, rank_a = it.rank, output_a = it.output, element_a = there + 1,
      rank_b = rank, output_b = output, element_b = element }
  end
  return { row = row, col = col, cols = it.cols, count = it.count, total = it.total, side = "b",
    a = x, b = y, rank_b = it.rank, output_b = it.output, element_b = there + 1,
    rank_a = rank, output_a = output, element_a = element }
end

--- The element that differs, in traces that have the values of the step; nil when no element does.
---@param found table # of find
---@return table?
function divergence.locate(a, b, found)
  if found.kind == "same" then return locate_same(a, b, found) end
  return locate_logical(a, b, found)
end

--- Inputs of one instruction on both sides, where the layouts are one: the first that differs.
local function differing_input(a, b, rank, step, instruction)
  local made = a:program(rank).instructions[instruction]
  local count = 0
  for _, field in ipairs { "ins", "outs" } do
    for k, index in ipairs(made[field]) do
      local which = field == "ins" and "before" or "into"
      local x = index ~= 0 and a:operand(rank, step, instruction, which, k)
      local y = index ~= 0 and b:operand(rank, step, instruction, which, k)
      if x and y then
        count = count + 1
        local at, differ = core.trace_compare(x, y)
        if at then
          local _, _, name = a:tensor_facts(rank, index)
          return { position = k, name = name, element = at, count = differ,
            a = value_at(x, at - 1), b = value_at(y, at - 1) }, count
        end
      end
    end
  end
  return nil, count
end

local seeded = { init = true, dropout = true, load_micro = true } -- operators that read the seed

--- Shapes of an instruction's operands, where both layouts are one: those that differ, as text.
local function differing_shapes(a, b, rank, p, q)
  local list = {}
  for _, field in ipairs { "ins", "outs" } do
    for k, index in ipairs(p[field]) do
      local _, x = a:tensor_facts(rank, index)
      local _, y = b:tensor_facts(rank, q[field][k] or 0)
      local left, right = table.concat(x or {}, ", "), table.concat(y or {}, ", ")
      if left ~= right then
        list[#list + 1] = ("shape of %s %d (%s) | (%s)"):format(
          field == "ins" and "input" or "output", k, left, right)
      end
    end
  end
  return list
end

--- Numbers that an instruction gets beside its operands, and shapes: what differs, as text. The
--- seed and the step's own numbers count where the instruction reads them.
local function differing_numbers(a, b, rank_a, rank_b, step, x, y)
  local p = a:program(rank_a).instructions[x]
  local q = b:program(rank_b).instructions[y]
  local alike = a:program_of(rank_a) == b:program_of(rank_b) and rank_a == rank_b
  local list = alike and differing_shapes(a, b, rank_a, p, q) or {}
  for _, name in ipairs(sorted_keys(p.attrs)) do
    if type(p.attrs[name]) == "number" and p.attrs[name] ~= q.attrs[name]
      and a:program_of(rank_a) == b:program_of(rank_b) then
      list[#list + 1] = ("%s %s | %s"):format(name, p.attrs[name], q.attrs[name])
    end
  end
  if a.meta.seed ~= b.meta.seed and seeded[p.op] then
    list[#list + 1] = ("policy.seed %d | %d"):format(a.meta.seed, b.meta.seed)
  end
  local s, r = a.by_step[step].scalars, b.by_step[step].scalars
  local reads = p.attrs.scalar or p.attrs.scalar_first
  for i = 1, reads and math.max(#s, #r) or 0 do
    if s[i] ~= r[i] then
      list[#list + 1] = ("%s %.9g | %.9g"):format(i == 1 and "learning rate" or i <= 3 and
        "bias correction" or "scalar " .. i, s[i] or 0 / 0, r[i] or 0 / 0)
    end
  end
  return list
end

---@class tidelock.Cause
---@field side? "a"|"b" # whose instruction is wrong
---@field verdict? tidelock.Verdict
---@field input? table # that differs already
---@field numbers? string[] # that differ
---@field inputs integer # that were compared and are equal
---@field checked integer # instructions that were run again

--- Why the element differs.
---@param found table # of find
---@param at table # of locate
---@return tidelock.Cause
function divergence.explain(a, b, found, at)
  local cause = { checked = 0, inputs = 0 }
  local i = output_of(a, at.rank_a, at.output_a).instruction
  local j = output_of(b, at.rank_b, at.output_b).instruction
  local order = at.side == "a" and { { "a", a, at.rank_a, i }, { "b", b, at.rank_b, j } }
    or { { "b", b, at.rank_b, j }, { "a", a, at.rank_a, i } }
  if found.kind == "same" then
    cause.input, cause.inputs = differing_input(a, b, at.rank_a, found.step, i)
  end
  if cause.input then return cause end
  for _, side in ipairs(order) do
    local verdict, checked = rerun.blame(side[2], side[3], found.step, side[4])
    cause.checked = cause.checked + checked
    if verdict then
      cause.side, cause.verdict = side[1], verdict
      return cause
    end
  end
  cause.numbers = differing_numbers(a, b, at.rank_a, at.rank_b, found.step, i, j)
  return cause
end

return divergence
