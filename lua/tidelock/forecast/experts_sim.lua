--- experts_sim.lua - the time of one layer of experts on a cluster, event by event.
---
---     rank     compute     ports: link out, link in (inside an island), network out, network in
---
---     dispatch of wave w    messages; each holds a port of its source and one of its target
---     products of wave w    when all its rows are there and the wave before is done
---     combine of wave w     messages, once the products are done
---
--- A task starts when what it waits for has ended and its resources are free; of several that
--- could, the one that could first, then the one written first. Nothing is random. The ways are
--- those of kernels/moe: flat, by islands (one message to the rank with the same place there,
--- which passes rows on), and in a ring, where whole buffers go round.
local heap = require "tidelock.plan.heap"

local sim = {}

---@class tidelock.SimFacts
---@field ranks integer
---@field island integer # ranks with fast links between them
---@field matrix number # TFLOP/s of a rank
---@field link number # GB/s of a rank inside its island, each direction
---@field network number # GB/s of a rank to other islands, each direction
---@field latency number # us of a message
---@class tidelock.SimLayer
---@field rows number[][] # rows[source][target] of the whole layer, from 1
---@field dim integer
---@field hidden integer
---@field waves integer
---@field way "flat"|"hierarchical"|"ring"

local Sim = {}
Sim.__index = Sim

function Sim:task(seconds, resources, after)
  local list = {}
  for _, other in ipairs(after) do if other then list[#list + 1] = other end end
  local task = { seconds = seconds, resources = resources, after = list, id = #self.tasks + 1 }
  self.tasks[task.id] = task
  return task
end

local function island_of(f, rank) return (rank - 1) // f.island end

--- A message of `rows` rows; nil when there are none.
function Sim:message(source, target, rows, after)
  if rows == 0 then return nil end
  local f = self.facts
  if source == target then return self:task(0, {}, after) end
  local near = island_of(f, source) == island_of(f, target)
  local bytes = rows * self.layer.dim * 2
  local seconds = f.latency * 1e-6 + bytes / ((near and f.link or f.network) * 1e9)
  local kind = near and "link" or "network"
  self.bytes[kind] = self.bytes[kind] + bytes
  return self:task(seconds, { kind .. " out " .. source, kind .. " in " .. target }, after)
end

local way = {}

--- Messages of one exchange. rows(s, t): rows from s to t; ready[s]: what rank s waits for.
--- Returns, for each rank, the tasks after which all its rows are there.
function way.flat(self, rows, ready)
  local done, n = {}, self.facts.ranks
  for t = 1, n do done[t] = {} end
  for step = 0, n - 1 do -- everybody starts with another peer
    for s = 1, n do
      local t = (s - 1 + step) % n + 1
      table.insert(done[t], self:message(s, t, rows(s, t), { ready[s] }))
    end
  end
  return done
end

function way.hierarchical(self, rows, ready)
  local f, done = self.facts, {}
  local n, g = f.ranks, f.island
  for t = 1, n do done[t] = {} end
  for step = 0, g - 1 do
    for s = 1, n do
      local t = island_of(f, s) * g + (s - 1 + step) % g + 1
      table.insert(done[t], self:message(s, t, rows(s, t), { ready[s] }))
    end
  end
  for step = 1, n // g - 1 do
    for s = 1, n do
      local island = (island_of(f, s) + step) % (n // g)
      local relay, total = island * g + (s - 1) % g + 1, 0
      for t = island * g + 1, (island + 1) * g do total = total + rows(s, t) end
      local hop = self:message(s, relay, total, { ready[s] })
      for i = 0, g - 1 do
        local t = island * g + (relay - 1 + i) % g + 1
        if hop then table.insert(done[t], self:message(relay, t, rows(s, t), { hop })) end
      end
    end
  end
  return done
end

function way.ring(self, rows, ready)
  local n, done, carried = self.facts.ranks, {}, {}
  for s = 1, n do
    done[s], carried[s] = { self:message(s, s, rows(s, s), { ready[s] }) }, ready[s]
  end
  for step = 1, n - 1 do
    local moved = {}
    for s = 1, n do -- the rows of source s go from s + step - 1 to s + step
      local from, to, total = (s + step - 2) % n + 1, (s + step - 1) % n + 1, 0
      for t = 1, n do total = total + (t ~= s and rows(s, t) or 0) end
      moved[s] = self:message(from, to, total, { carried[s] })
      table.insert(done[to], moved[s])
    end
    carried = moved
  end
  return done
end

local function sooner(a, b)
  if a.start ~= b.start then return a.start < b.start end
  return a.id < b.id
end

--- When a task could start, all that it waits for having ended.
local function start_of(task, free)
  local start = 0
  for _, other in ipairs(task.after) do start = math.max(start, other.finish) end
  for _, name in ipairs(task.resources) do start = math.max(start, free[name] or 0) end
  return start
end

--- Runs all tasks. Returns the end of the last, and the busy seconds of every resource. Starts only
--- grow while others run, so the first of the heap is the next one when its start still holds.
function Sim:run()
  local free, busy, last, ready = {}, {}, 0, {}
  local function add(task)
    task.start = start_of(task, free)
    heap.push(ready, task, sooner)
  end
  for _, task in ipairs(self.tasks) do
    task.before, task.behind = #task.after, {}
    for _, other in ipairs(task.after) do table.insert(other.behind, task) end
    if task.before == 0 then add(task) end
  end
  while #ready > 0 do
    local task = heap.pop(ready, sooner)
    if start_of(task, free) > task.start then
      add(task)
    else
      task.finish = task.start + task.seconds
      for _, name in ipairs(task.resources) do
        free[name], busy[name] = task.finish, (busy[name] or 0) + task.seconds
      end
      last = math.max(last, task.finish)
      for _, other in ipairs(task.behind) do
        other.before = other.before - 1
        if other.before == 0 then add(other) end
      end
    end
  end
  return last, busy
end

--- Busy seconds of the fullest port if rows went straight, dispatch and combine together.
local function link_bound(f, layer)
  local most = 0
  for r = 1, f.ranks do
    local seconds = { 0, 0, 0, 0 }
    for other = 1, f.ranks do
      local near, step = island_of(f, r) == island_of(f, other), layer.dim * 2
      local rate = (near and f.link or f.network) * 1e9
      local both = (layer.rows[r][other] + layer.rows[other][r]) * step / rate
      if other ~= r then seconds[near and 1 or 2] = seconds[near and 1 or 2] + both end
    end
    most = math.max(most, seconds[1], seconds[2])
  end
  return most
end

--- Seconds of products on each rank.
local function products(f, layer)
  local list = {}
  for t = 1, f.ranks do
    local rows = 0
    for s = 1, f.ranks do rows = rows + layer.rows[s][t] end
    list[t] = rows * 6 * layer.dim * layer.hidden / (f.matrix * 1e12)
  end
  return list
end

--- The layer: { seconds, bound, ratio, variance, network }. ratio: seconds over the larger of
--- products and link; variance: of the share of time that ranks compute; network: bytes between
--- islands.
---@param f tidelock.SimFacts
---@param layer tidelock.SimLayer
function sim.layer(f, layer)
  local self = setmetatable({ facts = f, layer = layer, tasks = {}, bytes = { link = 0,
    network = 0 } }, Sim)
  local work, n, w = products(f, layer), f.ranks, layer.waves
  local before = {}
  local function rows(s, t) return layer.rows[s][t] / w end
  local function back(s, t) return layer.rows[t][s] / w end
  for _ = 1, w do
    local arrived, computed = way[layer.way](self, rows, {}), {}
    for t = 1, n do
      local after = arrived[t]
      after[#after + 1] = before[t]
      if work[t] > 0 then computed[t] = self:task(work[t] / w, { "compute " .. t }, after) end
    end
    before = computed
    way[layer.way](self, back, computed)
  end
  local seconds = self:run()
  local most, mean, variance = 0, 0, 0
  for t = 1, n do most, mean = math.max(most, work[t]), mean + work[t] / seconds / n end
  for t = 1, n do variance = variance + (work[t] / seconds - mean) ^ 2 / n end
  local bound = math.max(most, link_bound(f, layer))
  return { seconds = seconds, bound = bound, ratio = seconds / bound, variance = variance,
    network = self.bytes.network }
end

--- Rows from every rank to every rank: `tokens` on each, k slots. load: "uniform", "skewed" (70 %
--- go to the experts of rank 0), "one" (all do).
function sim.rows(ranks, tokens, k, load)
  local rows = {}
  for s = 1, ranks do
    rows[s] = {}
    for t = 1, ranks do
      local share = load == "uniform" and 1 / ranks or load == "one" and (t == 1 and 1 or 0)
        or t == 1 and 0.7 or 0.3 / (ranks - 1)
      rows[s][t] = tokens * k * share
    end
  end
  return rows
end

return sim
