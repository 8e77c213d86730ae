--- compare.lua - two traces side by side: the first output whose bits differ.
---
---     one layout       rank by rank, instruction by instruction
---     two layouts      logical tensor by logical tensor: shares of all ranks add up (hash.h)
---     inside each      copies of one share on several ranks must agree
---
--- "First" is in the order of causes (logical.lua): of the outputs that differ, the one that no
--- other can have caused.
local core = require "tidelock.core"

local compare = {}

--- Whether the ranks of both run the same programs, so that outputs pair up one by one.
function compare.same_layout(a, b)
  if a:ranks() ~= b:ranks() or a.meta.micro ~= b.meta.micro then return false end
  for _, axis in ipairs { "tp", "dp", "pp", "ep" } do
    if a.meta.layout[axis] ~= b.meta.layout[axis] then return false end
  end
  for rank = 0, a:ranks() - 1 do
    local p, q = a.outputs[a:program_of(rank)], b.outputs[b:program_of(rank)]
    if #p ~= #q then return false end
    for i, o in ipairs(p) do
      if o.key ~= q[i].key or o.instruction ~= q[i].instruction then return false end
    end
  end
  return true
end

--- Steps that both have, ascending.
function compare.steps(a, b)
  local list = {}
  for _, step in ipairs(a.steps) do
    if b.by_step[step.step] then list[#list + 1] = step.step end
  end
  return list
end

local function earlier(x, y)
  if not y then return true end
  for _, field in ipairs { "phase", "order", "micro", "instruction", "rank" } do
    if x[field] ~= y[field] then return x[field] < y[field] end
  end
  return false
end

local function found_at(o, rank, index, extra)
  local found = { key = o.key, phase = o.phase, order = o.order, micro = o.micro, rank = rank,
    instruction = o.instruction, output = index, own = o.own }
  for key, value in pairs(extra or {}) do found[key] = value end
  return found
end

---@class tidelock.Extent # how much of two traces was compared, over all steps
---@field compared integer # outputs where the layouts are one, else logical tensors
---@field otherwise integer # logical tensors of which one side hashed all, the other a sample
---@field alone integer # outputs, and logical tensors, that only one layout has

---@return tidelock.Extent
function compare.extent() return { compared = 0, otherwise = 0, alone = 0 } end

--- The first output that differs, rank by rank.
local function by_rank(a, b, step, extent)
  local first
  for rank = 0, a:ranks() - 1 do
    for _, o in ipairs(a.outputs[a:program_of(rank)]) do
      if a:ran(rank, step, o) then extent.compared = extent.compared + 1 end
    end
    if a:hash_text(rank, step) ~= b:hash_text(rank, step) then
      for i, o in ipairs(a.outputs[a:program_of(rank)]) do
        if a:ran(rank, step, o) and a:hash(rank, step, i) ~= b:hash(rank, step, i) then
          local found = found_at(o, rank, i, { kind = "same" })
          if earlier(found, first) then first = found end
        end
      end
    end
  end
  return first
end

--- All shares of each logical tensor of a step, by key; keys in the order of causes.
---@return table<string, table> groups # key -> { shares = { { rank, output, place, hash } }, .. }
---@return string[] keys
function compare.groups(t, step)
  local groups, keys = {}, {}
  for rank = 0, t:ranks() - 1 do
    local base = t.meta.ranks[rank + 1].sample_base
    for i, o in ipairs(t.outputs[t:program_of(rank)]) do
      if not o.own and t:ran(rank, step, o) then
        local group = groups[o.key]
        if not group then
          group = found_at(o, rank, i, { shares = {}, at = {} })
          groups[o.key], keys[#keys + 1] = group, o.key
        end
        local place = (o.row_first + o.rows_per_sample * base) .. " " .. o.col_first
        local share = { rank = rank, output = i, place = place, hash = t:hash(rank, step, i) }
        local known = group.at[rank .. " " .. place]
        if known then group.shares[known] = share -- written twice: the last counts
        else
          group.shares[#group.shares + 1] = share
          group.at[rank .. " " .. place] = #group.shares
        end
      end
    end
  end
  return groups, keys
end

--- The sum over different places, and the first share that disagrees with a copy of it.
local function sum_of(group)
  local seen, sum, odd = {}, 0, nil
  for _, share in ipairs(group.shares) do
    local known = seen[share.place]
    if not known then
      seen[share.place] = share
      sum = sum + share.hash
    elseif known.hash ~= share.hash then
      odd = odd or { known, share }
    end
  end
  return sum, odd
end
compare.sum_of = sum_of

--- Whether both hashed this key the same way: all of it, or the same sample of it.
local function comparable(a, b, x, y, sampled_above)
  local o = a.outputs[a:program_of(x.rank)][x.output]
  local p = b.outputs[b:program_of(y.rank)][y.output]
  if o.cols_full ~= p.cols_full or o.rows_full ~= p.rows_full then return false end
  return a.meta.full == b.meta.full or o.rows_full * o.cols_full <= sampled_above
end

--- Outputs of a step that have a meaning in their own layout only.
local function own_outputs(t, step)
  local count = 0
  for rank = 0, t:ranks() - 1 do
    for _, o in ipairs(t.outputs[t:program_of(rank)]) do
      if o.own and t:ran(rank, step, o) then count = count + 1 end
    end
  end
  return count
end

local function by_key(a, b, step, extent)
  local groups, keys = compare.groups(a, step)
  local others, other_keys = compare.groups(b, step)
  local above = require("tidelock.plan.logical").sampled_above
  local first, shared = nil, 0
  for _, key in ipairs(keys) do
    local x, y = groups[key], others[key]
    if y then shared = shared + 1 end
    if y and not comparable(a, b, x, y, above) then
      extent.otherwise = extent.otherwise + 1
    elseif y then
      extent.compared = extent.compared + 1
      local sum, odd = sum_of(x)
      local other_sum, other_odd = sum_of(y)
      if sum ~= other_sum or odd or other_odd then
        local found = found_at(a.outputs[a:program_of(x.rank)][x.output], x.rank, x.output, {
          kind = "logical", odd_a = odd, odd_b = other_odd,
        })
        if earlier(found, first) then first = found end
      end
    end
  end
  extent.alone = extent.alone + #keys + #other_keys - 2 * shared
    + own_outputs(a, step) + own_outputs(b, step)
  return first
end

--- The first output that differs in a step; nil when none does.
---@param extent? tidelock.Extent # counted on
---@return table?
function compare.step(a, b, step, extent)
  extent = extent or compare.extent()
  if compare.same_layout(a, b) and a.meta.full == b.meta.full then
    return by_rank(a, b, step, extent)
  end
  return by_key(a, b, step, extent)
end

--- Copies that disagree inside one trace: the first such output of a step.
function compare.copies(t, step)
  local groups, keys = compare.groups(t, step)
  local first
  for _, key in ipairs(keys) do
    local _, odd = sum_of(groups[key])
    if odd then
      local o = t.outputs[t:program_of(odd[2].rank)][odd[2].output]
      local found = found_at(o, odd[2].rank, odd[2].output, { kind = "copies", odd = odd })
      if earlier(found, first) then first = found end
    end
  end
  return first
end

-- values ----------------------------------------------------------------------------------------

--- Where a share of an output lies, as core.assemble takes it.
local function pieces_of(t, rank, output, tensor)
  local o = t.outputs[t:program_of(rank)][output]
  local base = o.row_first + o.rows_per_sample * t.meta.ranks[rank + 1].sample_base
  local list = {}
  for first = 0, o.rows - 1, o.piece_rows do
    list[#list + 1] = {
      tensor = tensor, rows = math.min(o.piece_rows, o.rows - first), cols = o.cols,
      source_row = first, row_first = base + first // o.piece_rows * o.piece_stride,
      col_first = o.col_first,
    }
  end
  return list
end

local function pieces_at(t, step, rank, output)
  local o = t.outputs[t:program_of(rank)][output]
  local tensor = t:operand(rank, step, o.instruction, "after", o.position)
  return tensor and pieces_of(t, rank, output, tensor), tensor and tensor:dtype(), o
end

--- The logical tensor of a key from one copy of each share; and the pieces it was made of.
function compare.whole(t, step, key)
  local groups = compare.groups(t, step)
  local group, seen, pieces = groups[key], {}, {}
  local dtype, o
  for _, share in ipairs(group and group.shares or {}) do
    if not seen[share.place] then
      seen[share.place] = true
      local list
      list, dtype, o = pieces_at(t, step, share.rank, share.output)
      if not list then return nil end
      table.move(list, 1, #list, #pieces + 1, pieces)
    end
  end
  if not o then return nil end
  return core.assemble(dtype, { o.rows_full, o.cols_full }, pieces), pieces, group
end

--- What of `other` is not as in the whole tensor of `good`: the owner of the first such element.
---@return table? # { rank, output, element (from 0), count, total, good, bad }: tensors
function compare.locate(good, other, step, key)
  local whole, base, _ = compare.whole(good, step, key)
  local _, _, group = compare.whole(other, step, key)
  if not whole or not group then return nil end
  local shape, dtype = whole:shape(), whole:dtype()
  local all, first = table.move(base, 1, #base, 1, {}), nil
  for _, share in ipairs(group.shares) do
    local pieces = pieces_at(other, step, share.rank, share.output)
    local overlaid = table.move(base, 1, #base, 1, {})
    table.move(pieces, 1, #pieces, #overlaid + 1, overlaid)
    local at = core.trace_compare(whole, core.assemble(dtype, shape, overlaid))
    if at then
      table.move(pieces, 1, #pieces, #all + 1, all)
      if not first or at < first.at then
        first = { at = at, rank = share.rank, output = share.output }
      end
    end
  end
  if not first then return nil end
  local bad = core.assemble(dtype, shape, all)
  local _, count = core.trace_compare(whole, bad)
  return {
    rank = first.rank, output = first.output, element = first.at - 1, count = count,
    total = shape[1] * shape[2], good = whole, bad = bad, cols = shape[2], dtype = dtype,
  }
end

return compare
