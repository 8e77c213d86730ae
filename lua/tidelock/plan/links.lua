--- links.lua - the way that rows of experts take, from the speeds of links.
---
---     ratio = link / network       GB/s of a rank inside its island, and to the others
---
---     hierarchical   one message a remote island, passed on inside: bytes on the network as flat,
---                    fewer messages there, and the same bytes once more on the fast links,
---                    1 / ratio of the network's time
---     flat           every rank to every rank
---
--- layout.all_to_all = "auto" takes islands from `layout.all_to_all_threshold` on: unset 4, where
--- passing on costs at most a quarter of the network's time. Both ways give the same bits.
local links = {}

links.threshold = 4 -- of link / network

--- Whether the ranks of an expert group are neighbours in the numbering of ranks.
local function neighbours(order)
  local axes, at = {}, {}
  for axis in order:gmatch "%a+" do axes[#axes + 1] = axis end
  for i, axis in ipairs(axes) do at[axis] = i end
  return at.tp < at.dp and at.dp < at.pp
end

--- Ranks of an island of the group; nil, and why, where it has none of its own.
local function island_of(layout, facts)
  local ep, island = layout.ep, layout.island or facts.island
  if not layout.island and not neighbours(layout.order) then
    return nil, ("ranks of ep are no neighbours in the order %s"):format(layout.order)
  end
  if not island or not facts.network or ep <= island then
    return nil, ("all %d ranks of ep are in one island"):format(ep)
  end
  if ep % island ~= 0 then
    return nil, ("islands of %d do not divide ep %d"):format(island, ep)
  end
  return island
end

--- "links at 367 GB/s are 8.2 times the network's 45 GB/s, threshold 4", and whether they are.
function links.compare(facts, threshold)
  local ratio = facts.link / facts.network
  return ("links at %g GB/s are %.1f times the network's %g GB/s, threshold %g"):format(facts.link,
    ratio, facts.network, threshold), ratio >= threshold
end

--- The way of a layout on a machine whose link speeds are known, and why.
---@param layout table # checked; all_to_all is "auto"
---@param facts { link: number, network: number?, island: number? } # of cluster.read
---@return string way
---@return integer? island
---@return string why
function links.choose(layout, facts)
  local island, why = island_of(layout, facts)
  if not island then return "flat", layout.island, why end
  local text, faster = links.compare(facts, layout.all_to_all_threshold or links.threshold)
  return faster and "hierarchical" or "flat", island, text
end

--- What a machine means for any layout: a line for `./tl doctor`.
function links.text(facts)
  if not facts.island or not facts.network then
    return ("flat: %s ranks in one island, links at %g GB/s"):format(facts.ranks, facts.link)
  end
  local text, faster = links.compare(facts, links.threshold)
  return faster and ("hierarchical where ep is above %d, islands of %d: %s"):format(facts.island,
    facts.island, text) or "flat: " .. text
end

return links
