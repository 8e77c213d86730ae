--- waits.lua - which time of a step belongs to whom: messages, waiting for ranks, work beside them.
---
---     rank 0   [linear]  [all_reduce . . . . . . ]      its own 3 ms: the last to come waits for
---     rank 1   [linear            ]  [all_reduce ]      nobody, and rank 0 has waited 4 ms
---
---     kernels  [a        ][b     ]                      a message beside a and b takes no time of
---     messages     [send . . . . . . .]                 the step until b has ended
---
--- The host notes how long a rank waits; a GPU's stream does not, so there the shortest time that a
--- member of a message took is the message, and the rest of the others' time a wait.
local waits = {}

--- Counts messages of one rank, so that its nth of a kind is known by the same id on all ranks.
---@param rank integer
---@param names string[] # of the program's groups
---@param groups table<string, integer[]> # members by name
---@return fun(made: table): string? # id of an instruction's message; nil: nobody else is in it
function waits.counter(rank, names, groups)
  local counts = {}
  return function(made)
    if not made.attrs.group then return nil end
    local name = names[made.attrs.group + 1]
    local members = groups[name] or { rank }
    local key = #members > 1 and name .. " " .. table.concat(members, ",") or nil
    if made.op == "send" or made.op == "recv" then
      local peer = members[made.attrs.peer + 1]
      local from, to = rank, peer
      if made.op == "recv" then from, to = peer, rank end
      key = ("%d>%d:%d"):format(from, to, made.attrs.channel)
    end
    if not key then return nil end
    local own = made.op .. " " .. key
    counts[own] = (counts[own] or 0) + 1
    return ("%s %s %d"):format(key, made.op == "recv" and "send" or made.op, counts[own])
  end
end

--- ns that instructions waited for other ranks, where no clock noted it.
---@param ranks table[] # of each rank: counter, of waits.counter; list, { made, ns } in order
---@return integer[][] # by rank, by place in its list
function waits.of(ranks)
  local shortest, ids, found = {}, {}, {}
  for r, rank in ipairs(ranks) do
    ids[r] = {}
    for k, one in ipairs(rank.list) do
      local id = rank.counter(one.made)
      if id then
        ids[r][k], shortest[id] = id, math.min(shortest[id] or one.ns, one.ns)
      end
    end
  end
  for r, rank in ipairs(ranks) do
    found[r] = {}
    for k, one in ipairs(rank.list) do
      local id = ids[r][k]
      found[r][k] = id and one.ns - shortest[id] or 0
    end
  end
  return found
end

--- Who has each moment of a rank's step: kernels in it share it; else the messages in it do.
---@param list { start: integer, stop: integer, talks: boolean }[]
---@return number[] own # ns of each
---@return integer busy # ns in which there was one at all
function waits.share(list)
  local edges, own, busy = {}, {}, 0
  for i, one in ipairs(list) do
    own[i] = 0
    if one.stop > one.start then
      edges[#edges + 1] = { at = one.start, i = i, opens = true }
      edges[#edges + 1] = { at = one.stop, i = i, opens = false }
    end
  end
  table.sort(edges, function(x, y)
    if x.at ~= y.at then return x.at < y.at end
    return x.i < y.i
  end)
  local open, kernels, last = {}, 0, 0
  for _, edge in ipairs(edges) do
    local ns = edge.at - last
    if ns > 0 and #open > 0 then
      busy = busy + ns
      for _, i in ipairs(open) do
        if kernels == 0 or not list[i].talks then
          own[i] = own[i] + ns / (kernels > 0 and kernels or #open)
        end
      end
    end
    last = edge.at
    local step = edge.opens and 1 or -1
    if not list[edge.i].talks then kernels = kernels + step end
    if edge.opens then
      open[#open + 1] = edge.i
    else
      for k, i in ipairs(open) do
        if i == edge.i then table.remove(open, k) break end
      end
    end
  end
  return own, busy
end

return waits
