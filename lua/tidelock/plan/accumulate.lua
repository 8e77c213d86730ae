--- accumulate.lua - the order in which a rank sums weight gradients over its samples.
---
---     leaf     floor(i*S/n) .. floor((i+1)*S/n) - 1 of the samples; an empty leaf is +0
---     block    of a leaf: as many whole samples as fit in 8,192 tokens (matrices); a longer sample
---              is cut every 8,192 tokens. Inside a block one chain; block sums are added ascending
---     tree     over leaves, kept on a stack like a binary counter: leaf i lands at depth
---              popcount(i) and merges once for every trailing 1 bit of i
---
--- One instruction sums a whole subtree of a matrix (`together` leaves) where its leaves are single
--- blocks, equally many samples, of one micro-batch. An odd subtree is added to its partner by that
--- instruction, so the stack needs no place for it.
---
--- Micro-batches cut this work anywhere between samples; they change who does what, not the order.
local accumulate = {}

accumulate.block_tokens = 8192
--- Leaves of one instruction, at most: what GPU kernels fold while they multiply.
accumulate.leaves_together = 8

---@class tidelock.Action
---@field kind "sum"|"merge"|"zero"
---@field buffer integer # depth on the stack; -1 is the spare buffer of a block
---@field from? integer # merge: buffer = buffer + from
---@field first? integer # sum: first sample of the rank
---@field samples? integer # sum: pieces
---@field row? integer # sum: first token of the piece in its sample
---@field rows? integer # sum: tokens of a piece; nil: the whole sample
---@field mode? integer # sum: 0 starts at +0, 1 resumes, 2 adds a finished sum
---@field leaves? integer # sum: of equally many pieces; nil: one

local function popcount(i)
  local count = 0
  while i > 0 do count, i = count + (i & 1), i >> 1 end
  return count
end

--- Blocks of a leaf as { first, samples, row, rows }.
local function blocks_of(first, last, length, matrix)
  local list = {}
  if not matrix then
    list[1] = { first = first, samples = last - first }
  elseif length <= accumulate.block_tokens then
    local per = accumulate.block_tokens // length
    for s = first, last - 1, per do list[#list + 1] = { first = s, samples = math.min(per,
      last - s) } end
  else
    for s = first, last - 1 do
      for row = 0, length - 1, accumulate.block_tokens do
        list[#list + 1] = { first = s, samples = 1, row = row,
          rows = math.min(accumulate.block_tokens, length - row) }
      end
    end
  end
  return list
end

--- One block, which may be spread over micro-batches, into `depth`.
local function add_block(actions, block, index, depth, micro)
  local last = block.first + block.samples - 1
  local whole = block.first // micro == last // micro
  local target = (index == 1 or whole) and depth or -1
  local s = block.first
  while s <= last do
    local stop = math.min(last, (s // micro + 1) * micro - 1)
    local mode = s > block.first and 1 or index > 1 and whole and 2 or 0
    table.insert(actions[s // micro + 1], {
      kind = "sum", buffer = target, first = s, samples = stop - s + 1, row = block.row,
      rows = block.rows, mode = mode,
    })
    s = stop + 1
  end
  if target == -1 then
    table.insert(actions[last // micro + 1], { kind = "merge", buffer = depth, from = -1 })
  end
end

local function borders(o, leaf)
  return leaf * o.samples // o.leaves, (leaf + 1) * o.samples // o.leaves
end

--- How many leaves from `leaf` on are a subtree that one instruction sums: a power of two, or nil.
local function subtree(o, leaf)
  local first, last = borders(o, leaf)
  local samples, found = last - first, nil
  if samples == 0 or samples > 1 and samples * o.length > accumulate.block_tokens
    or o.length > accumulate.block_tokens then return nil end
  local count = 1
  while count <= (o.together or 1) and leaf % count == 0 and leaf + count <= o.leaves do
    for i = leaf + count // 2, leaf + count - 1 do
      local from, to = borders(o, i)
      if to - from ~= samples or (to - 1) // o.micro ~= first // o.micro then return found end
    end
    found, count = count, count * 2
  end
  return found
end

--- Emits the subtree of `count` leaves from `leaf` on; an odd one is added to its partner. Returns
--- its depth and the bits of its place in the counter.
local function add_subtree(actions, o, leaf, count, depth)
  local first = borders(o, leaf)
  local _, last = borders(o, leaf + count - 1)
  local place = leaf // count
  local odd = place & 1
  table.insert(actions[first // o.micro + 1], {
    kind = "sum", buffer = depth - odd, first = first, samples = last - first, mode = 2 * odd,
    leaves = count > 1 and count or nil,
  })
  return depth - odd, place >> odd
end

--- actions[micro + 1]: what to do when that micro-batch's gradients are there; and the buffers that
--- it takes.
---@param o { samples: integer, micro: integer, leaves: integer, length: integer, matrix: boolean,
---  together?: integer } # leaves that one instruction can sum
---@return tidelock.Action[][] actions
---@return integer depth # buffers on the stack
---@return boolean spare # whether the spare buffer is used
function accumulate.plan(o)
  local actions, depth, spare, now = {}, 0, false, 0
  for m = 1, o.samples // o.micro do actions[m] = {} end
  local leaf = 0
  while leaf < o.leaves do
    local first, last = borders(o, leaf)
    local at, bits, count = popcount(leaf), leaf, o.matrix and subtree(o, leaf)
    if first < last then now = (last - 1) // o.micro end
    if count then
      at, bits = add_subtree(actions, o, leaf, count, at)
    elseif first < last then
      for index, block in ipairs(blocks_of(first, last, o.length, o.matrix)) do
        add_block(actions, block, index, at, o.micro)
      end
    else
      table.insert(actions[now + 1], { kind = "zero", buffer = at })
    end
    depth = math.max(depth, at + 1)
    while bits & 1 == 1 do
      table.insert(actions[now + 1], { kind = "merge", buffer = at - 1, from = at })
      at, bits = at - 1, bits >> 1
    end
    leaf = leaf + (count or 1)
  end
  for _, list in ipairs(actions) do
    for _, action in ipairs(list) do spare = spare or action.buffer == -1 end
  end
  return actions, depth, spare
end

return accumulate
