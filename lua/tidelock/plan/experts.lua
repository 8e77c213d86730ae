--- experts.lua - which rank holds which expert, and how many rows can arrive.
---
---     attention grid   tp x dp x pp          rank of a pipeline stage  i = tp + T * dp
---     expert grid      ep x edp x pp         ep = i mod EP, edp = i div EP
---
--- The ranks of an ep group hold runs of the same samples (`share` = T neighbours) and whole groups
--- of samples beside (`sources` = EP / T of them), so an owner sees whole samples, and the edp
--- ranks hold aligned runs of dp leaves: the tree over samples is the same for any ep.
---
--- Home order lists experts by wave, then rank, then slot: a wave is contiguous on both sides.
local experts = {}

---@class tidelock.ExpertGrid
---@field ep integer # ranks of a group
---@field share integer # ranks that hold runs of one sample
---@field sources integer # groups of samples that a group of ranks holds
---@field edp integer # groups with the same experts

--- The expert grid of a layout. Without experts the layout's ep is 1 and every rank stands alone.
---@return tidelock.ExpertGrid
function experts.grid(layout)
  local ep = layout.ep
  if ep == 1 then return { ep = 1, share = 1, sources = 1, edp = layout.dp } end
  local sources, edp = ep // layout.tp, layout.tp * layout.dp // ep
  return { ep = ep, share = layout.tp, sources = sources, edp = edp }
end

--- Coordinates in the expert grid of a rank with coordinates `at`: ep, edp.
function experts.coordinates(layout, at)
  if layout.ep == 1 then return 0, at.dp end
  local i = at.tp + layout.tp * at.dp
  return i % layout.ep, i // layout.ep
end

--- The entry of plan.ranks and plan.places for a rank with coordinates `at`: from 1.
function experts.plan_index(layout, at)
  return at.pp * layout.ep + experts.coordinates(layout, at) + 1
end

--- The program of a rank with coordinates `at`: from 1. With experts each (pp, ep) has its own,
--- else each (pp, tp).
function experts.program_index(layout, at)
  if layout.ep > 1 then return experts.plan_index(layout, at) end
  return at.pp * layout.tp + at.tp + 1
end

--- The rank of the group that holds each expert: contiguous runs, by id modulo, or by a table.
---@return integer[] # by expert, from 1; ranks from 0
function experts.owners(count, ep, placement)
  local owners = {}
  for e = 0, count - 1 do
    if type(placement) == "table" then owners[e + 1] = placement[e + 1]
    elseif placement == "modulo" then owners[e + 1] = e % ep
    else owners[e + 1] = e * ep // count end
  end
  return owners
end

--- Most experts that a rank holds.
function experts.most(owners, ep)
  local counts, most = {}, 0
  for _, rank in ipairs(owners) do counts[rank] = (counts[rank] or 0) + 1 end
  for rank = 0, ep - 1 do most = math.max(most, counts[rank] or 0) end
  return most
end

--- Where every expert is: { list, slots, at }. list: experts in home order, -1 where there is none;
--- slots: of a rank in a wave; at[e + 1] = { wave, rank, slot }.
function experts.listing(count, ep, waves, placement)
  local owners = experts.owners(count, ep, placement)
  local slots = experts.most(owners, ep) // waves
  local list, at, used = {}, {}, {}
  for i = 1, waves * ep * slots do list[i] = -1 end
  for e = 0, count - 1 do
    local rank = owners[e + 1]
    local index = used[rank] or 0
    used[rank] = index + 1
    at[e + 1] = { wave = index // slots, rank = rank, slot = index % slots }
    list[((index // slots) * ep + rank) * slots + index % slots + 1] = e
  end
  return { list = list, slots = slots, at = at }
end

--- Rows that the worst routing can bring, with `tokens` on each rank: of a wave at home, at the
--- owner, and at home in all.
function experts.rows(tokens, top_k, ep, slots)
  return {
    home = tokens * math.min(top_k, ep * slots), owner = ep * tokens * math.min(top_k, slots),
    all = tokens * top_k,
  }
end

experts.block_tokens = 8192 -- of a piece: accumulate.block_tokens

--- Pieces of a sample: the blocks of its tokens whose sums of weight gradients are added.
function experts.pieces(length)
  return (length + experts.block_tokens - 1) // experts.block_tokens
end

return experts
