--- accumulate.lua - the order in which a rank sums weight gradients over its samples.
---
---     leaf     floor(i*S/n) .. floor((i+1)*S/n) - 1 of the samples; an empty leaf is +0
---     block    of a leaf: as many whole samples as fit in 8,192 tokens (matrices); a longer sample
---              is cut every 8,192 tokens. Inside a block one chain; block sums are added ascending
---     tree     over leaves, kept on a stack like a binary counter: leaf i lands at depth
---              popcount(i) and merges once for every trailing 1 bit of i. An odd leaf of a matrix
---              that one instruction sums is added to its partner by that instruction, so the stack
---              needs no place for it
---
--- Micro-batches cut this work anywhere between samples; they change who does what, not the order.
local accumulate = {}

accumulate.block_tokens = 8192

---@class tidelock.Action
---@field kind "sum"|"merge"|"zero"
---@field buffer integer # depth on the stack; -1 is the spare buffer of a block
---@field from? integer # merge: buffer = buffer + from
---@field first? integer # sum: first sample of the rank
---@field samples? integer # sum: pieces
---@field row? integer # sum: first token of the piece in its sample
---@field rows? integer # sum: tokens of a piece; nil: the whole sample
---@field mode? integer # sum: 0 starts at +0, 1 resumes, 2 adds a finished chain

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

--- Adds an odd leaf that is one block of one micro-batch to the even leaf before it, below `depth`,
--- in one instruction. Returns whether it could.
local function add_to_partner(actions, blocks, leaf, depth, micro)
  local block = blocks[1]
  local last = block.first + block.samples - 1
  if leaf & 1 == 0 or #blocks > 1 or block.first // micro ~= last // micro then return false end
  table.insert(actions[block.first // micro + 1], {
    kind = "sum", buffer = depth - 1, first = block.first, samples = block.samples,
      row = block.row, rows = block.rows, mode = 2,
  })
  return true
end

--- actions[micro + 1]: what to do when that micro-batch's gradients are there; and the buffers that
--- it takes.
---@param o { samples: integer, micro: integer, leaves: integer, length: integer, matrix: boolean }
---@return tidelock.Action[][] actions
---@return integer depth # buffers on the stack
---@return boolean spare # whether the spare buffer is used
function accumulate.plan(o)
  local actions, depth, spare, now = {}, 0, false, 0
  for m = 1, o.samples // o.micro do actions[m] = {} end
  for leaf = 0, o.leaves - 1 do
    local first, last = leaf * o.samples // o.leaves, (leaf + 1) * o.samples // o.leaves
    local at, bits = popcount(leaf), leaf
    local blocks = first < last and blocks_of(first, last, o.length, o.matrix)
    if blocks then now = (last - 1) // o.micro end
    if blocks and o.matrix and add_to_partner(actions, blocks, leaf, at, o.micro) then
      at, bits = at - 1, bits >> 1
    elseif blocks then
      for index, block in ipairs(blocks) do add_block(actions, block, index, at, o.micro) end
    else
      table.insert(actions[now + 1], { kind = "zero", buffer = at })
    end
    depth = math.max(depth, at + 1)
    while bits & 1 == 1 do
      table.insert(actions[now + 1], { kind = "merge", buffer = at - 1, from = at })
      at, bits = at - 1, bits >> 1
    end
  end
  for _, list in ipairs(actions) do
    for _, action in ipairs(list) do spare = spare or action.buffer == -1 end
  end
  return actions, depth, spare
end

return accumulate
