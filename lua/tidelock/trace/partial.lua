--- partial.lua - the partial sums of one element of an output, in the order of the contract.
---
---     fold, all_reduce, reduce_scatter    the leaves of the tree: rows, or ranks in group order
---     linear                              one chain for each leaf of the summed dim
---     linear_grad_weight                  the chain after each sample, or that of each leaf
---
--- They are made by the operators themselves, from the operands that a trace has kept.
local core = require "tidelock.core"
local rerun = require "tidelock.trace.rerun"

local partial = {}

--- Element `at` (from 1) of a tensor, by the operator's own dtype: { value, bits }.
local function element(t, at)
  local flat = t:flat()[at]
  return { value = flat, bits = t:bits()[at], dtype = t:dtype() }
end

local function leaves(list, name)
  local out = {}
  for i, e in ipairs(list) do
    e.name = ("%s %d"):format(name, i - 1)
    out[i] = e
  end
  return out
end

local of = {}

--- x (leaves, d): a column of it.
function of.fold(t, rank, step, instruction, at)
  local x = rerun.inputs(t, rank, step, instruction)[1]
  local shape, list = x:shape(), {}
  local width = 1
  for k = 2, #shape do width = width * shape[k] end
  for r = 1, shape[1] do list[r] = element(x, (r - 1) * width + at) end
  return leaves(list, "leaf")
end

function of.all_reduce(t, rank, step, instruction, at)
  local made, list = t:program(rank).instructions[instruction], {}
  for i, member in ipairs(rerun.members(t, rank, made)) do
    local ins = rerun.inputs(t, member, step, instruction)
    if not ins then return nil end
    list[i] = element(ins[1], at)
    list[i].name = "rank " .. member
  end
  return list
end

function of.reduce_scatter(t, rank, step, instruction, at)
  local made, list = t:program(rank).instructions[instruction], {}
  local members, mine = rerun.members(t, rank, made), 0
  for i, member in ipairs(members) do
    if member == rank then mine = i - 1 end
  end
  local _, shape = t:tensor_facts(rank, made.outs[1])
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local piece = count // made.attrs.outer
  local outer, inner = (at - 1) // piece, (at - 1) % piece
  for i, member in ipairs(members) do
    local ins = rerun.inputs(t, member, step, instruction)
    if not ins then return nil end
    list[i] = element(ins[1], (outer * #members + mine) * piece + inner + 1)
    list[i].name = "rank " .. member
  end
  return list
end

--- Row `r` (from 0) of a matrix with everything outside columns first .. last - 1 set to +0.
local function masked_row(x, r, cols, first, last)
  local bits, whole = {}, x:narrow(1, r + 1, 1):bits()
  for c = 1, cols do bits[c] = c > first and c <= last and whole[c] or 0 end
  return core.tensor_from_bits(x:dtype(), { 1, cols }, bits)
end

function of.linear(t, rank, step, instruction, at, position)
  local made = t:program(rank).instructions[instruction]
  local ins = rerun.inputs(t, rank, step, instruction)
  local x, weight = ins[1], ins[1 + position]
  local k, n = x:shape()[2], weight:shape()[1]
  local count, list = made.attrs.leaves, {}
  if count < 2 or k % count ~= 0 then return nil end
  local r, c = (at - 1) // n, (at - 1) % n
  for leaf = 0, count - 1 do
    local first, last = leaf * k // count, (leaf + 1) * k // count
    local y = core.tensor("f32", { 1, 1 })
    core.call("linear", { masked_row(x, r, k, first, last), masked_row(weight, c, k, first, last) },
      { y }, { parts = 1, biases = 0, leaves = 1 })
    list[leaf + 1] = element(y, 1)
  end
  return leaves(list, "leaf")
end

--- `samples` of a linear_grad_weight from sample `first` on, as one chain from what stood there.
local function weight_sum(t, rank, step, instruction, first, samples)
  local made, attrs = t:program(rank).instructions[instruction], {}
  local dtype, shape = t:tensor_facts(rank, made.outs[1])
  local y = t:operand(rank, step, instruction, "into", 1) or core.tensor(dtype, shape)
  for key, value in pairs(made.attrs) do attrs[key] = value end
  attrs.first, attrs.samples, attrs.leaves = attrs.first + first * attrs.stride, samples, 1
  core.call("linear_grad_weight", rerun.inputs(t, rank, step, instruction), { y }, attrs)
  return y
end

--- The chain after each sample, or the chain of each leaf where the samples are several.
function of.linear_grad_weight(t, rank, step, instruction, at)
  local attrs, list = t:program(rank).instructions[instruction].attrs, {}
  local count, each = attrs.leaves, attrs.samples // attrs.leaves
  if count > 1 then
    if attrs.samples % count ~= 0 then return nil end
    for leaf = 0, count - 1 do
      list[leaf + 1] = element(weight_sum(t, rank, step, instruction, leaf * each, each), at)
    end
    return leaves(list, "leaf")
  end
  for samples = 1, attrs.samples do
    list[samples] = element(weight_sum(t, rank, step, instruction, 0, samples), at)
    list[samples].name = "after sample " .. samples - 1
  end
  return list
end

--- { name, value, bits, dtype } in order; nil where the operator has no partial sums to show.
---@param position integer # the output
---@param at integer # the element in it, from 1
---@return table[]?
function partial.of(t, rank, step, instruction, position, at)
  local fn = of[t:program(rank).instructions[instruction].op]
  return fn and fn(t, rank, step, instruction, at, position)
end

return partial
