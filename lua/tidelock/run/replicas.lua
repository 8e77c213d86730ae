--- replicas.lua - what several ranks hold alike must be alike: hashes of every weight and of its
--- optimizer state, compared at the start and every log.replicas steps.
---
---     rank       0    1    2    3        dp 2, tp 2
---     q          a    b    a    b        shards a and b, two replicas each
---     gain       c    c    c    d        rank 3 differs: the run stops and says so
---
--- The hashes are sums over elements (hash.h), so a shard on its own is compared; nothing travels.
local emit = require "tidelock.plan.stages.emit"
local experts = require "tidelock.plan.experts"

local replicas = {}

replicas.kinds = { "weight", "master", "m", "v" }

--- "0 to 2, 5": ranks in words; the list ascends.
function replicas.ranks_text(list)
  local words, i = {}, 1
  while i <= #list do
    local last = i
    while list[last + 1] == list[last] + 1 do last = last + 1 end
    if last - i < 2 then last = i end
    words[#words + 1] = last > i and ("%d to %d"):format(list[i], list[last]) or tostring(list[i])
    i = last + 1
  end
  return table.concat(words, ", ")
end

--- Which part of the weight a rank holds.
local function part_of(param, at)
  return ("%d %d"):format(emit.resolve(param.row_first, at.tp),
    emit.resolve(param.col_first, at.tp))
end

--- Who holds which part of one tensor: a list of { rank, tensor } for every part.
local function collect(run, param, kind)
  local parts, list = {}, {}
  for index, rank in ipairs(run.table) do
    local at = rank.coordinates
    local planned = run.plan.ranks[experts.plan_index(run.spec.layout, at)]
    local v = planned.persistent[kind .. " " .. param.name]
    if v and v.tensor then
      local part = part_of(param, at)
      if not parts[part] then
        parts[part] = {}
        list[#list + 1] = parts[part]
      end
      table.insert(parts[part], { rank = index - 1, tensor = v.tensor })
    end
  end
  return list
end

--- The ranks of a part by what they have: hashes in the order in which they are found.
local function compared(run, param, part)
  local hashes, ranks = {}, {}
  for _, holder in ipairs(part) do
    local hash = run.ranks:hash(holder.rank, holder.tensor, param.name, { row_first = 0,
      col_first = 0, rows = param.rows, cols = param.cols, cols_full = param.cols })
    if not ranks[hash] then
      ranks[hash] = {}
      hashes[#hashes + 1] = hash
    end
    table.insert(ranks[hash], holder.rank)
  end
  return hashes, ranks
end

--- What is wrong with one tensor, or nil. A part that one rank holds alone is not looked at.
local function difference(run, param, kind)
  for _, part in ipairs(collect(run, param, kind)) do
    local hashes, holders = {}, {}
    if #part > 1 then hashes, holders = compared(run, param, part) end
    if #hashes > 1 then
      local words = {}
      for i, hash in ipairs(hashes) do
        local ranks = holders[hash]
        words[i] = ("%s %s %s %016x"):format(#ranks == 1 and "rank" or "ranks",
          replicas.ranks_text(ranks), #ranks == 1 and "has" or "have", hash)
      end
      return ("%s of %s: %s"):format(kind, param.name, table.concat(words, "; "))
    end
  end
end

--- Raises every difference; `step`: steps that are done.
function replicas.check(run, step)
  if #run.table == 1 then return end
  local found = {}
  for _, param in ipairs(run.plan["local"].params) do
    for _, kind in ipairs(replicas.kinds) do
      found[#found + 1] = difference(run, param, kind)
    end
  end
  if #found == 0 then return end
  error(("replicas differ %s: %s"):format(step == 0 and "at the start" or "after step " .. step,
    table.concat(found, "\n  ", 1, math.min(#found, 8))), 0)
end

--- Whether a comparison is due.
function replicas.due(run, step)
  local every = run.spec.log.replicas
  return every > 0 and step % every == 0
end

return replicas
