--- experts_plan.lua - what `./tl plan` says of mixtures of experts: each term of their buffers.
---
---     T   tokens of a micro-batch on a rank       k   top_k       E   experts      W   waves
---     e   ranks of ep                             s   experts of a rank in a wave: E / (e W)
---
---     a wave sends at most T min(k, e s) rows and receives at most e T min(k, s), whatever the
---     routing, so no routing can run out of memory
local screen = require "tidelock.text.screen"
local sim = require "tidelock.forecast.experts_sim"

local plan = {}

--- Facts of each mixture that differs from the others: { count, layers, f }.
local function mixtures(plan_)
  local list, known = {}, {}
  for _, node in ipairs(plan_["local"].nodes) do
    local f = node.moe
    if f then
      local id = ("%d %d %d"):format(f.experts, f.top_k, f.hidden)
      if not known[id] then
        known[id] = { layers = 0, f = f }
        list[#list + 1] = known[id]
      end
      known[id].layers = known[id].layers + 1
    end
  end
  return list
end

--- Bytes of rows that a rank reads in a micro-batch's forward pass if load is even, by path.
local function path_text(f, size)
  if f.ep == 1 then return nil end
  local bytes = 2 * f.rows.all * f.dim * size * (f.ep - 1) / f.ep
  return ("    paths      %s MiB a pass and rank if load is even: peer among threads and GPUs, "
    .. "network among processes; host 0"):format(screen.mib(bytes))
end

--- Bytes that a rank gets in such a pass where each GPU has a process: as many as there could be.
local function slab_text(f, size)
  if f.ep == 1 then return nil end
  local rows = math.min(f.rows.home, f.rows.owner) + math.min(f.rows.owner, f.rows.all)
  return ("    slabs      %s MiB a pass and rank between GPUs of several processes: as long as the "
    .. "worst load needs"):format(screen.mib((f.ep - 1) * f.waves * rows * f.dim * size))
end

local ways = { [0] = "flat", "hierarchical", "ring" }

local function lines_of(one, dtype, why)
  local f, n = one.f, screen.grouped
  local size = dtype == "f32" and 4 or 2
  local owner = f.rows.owner * size
  local wave = owner * (2 * f.dim + 3 * f.hidden)
  return {
    ("  experts    %d in each of %s, top %d; ep %d, %s of %d on a rank"):format(f.experts,
      screen.plural(one.layers, "layer"), f.top_k, f.ep, screen.plural(f.waves, "wave"), f.slots),
    ("    sent       T min(k, e s) = %s min(%d, %d * %d) = %s rows a wave"):format(n(f.tokens),
      f.top_k, f.ep, f.slots, n(f.rows.home)),
    ("    received   e T min(k, s) = %d * %s min(%d, %d) = %s rows a wave, at worst"):format(f.ep,
      n(f.tokens), f.top_k, f.slots, n(f.rows.owner)),
    ("    buffers    rows (2 h + 3 f) %d = %s (2 * %d + 3 * %d) %d bytes: %s MiB a wave, at most "
      .. "%d at once"):format(size, n(f.rows.owner), f.dim, f.hidden, size, screen.mib(wave),
      math.min(f.buffers, f.waves)),
    ("    at home    T k = %s rows of %d: %s MiB"):format(n(f.rows.all), f.dim,
      screen.mib(f.rows.all * f.dim * size)),
    "    backward   " .. (f.keeps and ("rows of the forward pass are kept: %s MiB a layer")
      :format(screen.mib(f.waves * wave))
      or "x and the routing are kept; rows are sent and computed again, wave by wave"),
    ("    way        %s%s%s"):format(ways[f.ep > 1 and f.hops or 0],
      f.hops == 1 and f.ep > 1 and (", islands of %d"):format(f.island) or "",
      why and ": " .. why or ""),
    path_text(f, size),
    slab_text(f, size),
  }
end

--- Rows that an owner gets if every expert has as many, as a share of the worst case; 1 without
--- experts.
function plan.share(planned)
  local one = mixtures(planned)[1]
  return one and one.f.tokens * one.f.top_k / (one.f.waves * one.f.rows.owner) or 1
end

--- Each mixture's layer on a cluster, forward: products, rows on the links, and how much of that
--- the products hide, if every expert has as many rows.
function plan.add_layers(planned, facts, lines)
  local dtype = planned.spec.dtype
  for _, one in ipairs(mixtures(planned)) do
    local f = one.f
    local island = math.min(facts.island or f.ep, f.ep)
    local machine = { ranks = f.ep, island = island, matrix = facts.matrix[dtype],
      link = facts.link, network = facts.network or facts.link, latency = facts.latency }
    local layer = { rows = sim.rows(f.ep, f.tokens, f.top_k, "uniform"), dim = f.dim,
      hidden = f.hidden, waves = f.waves, way = f.ep > 1 and ways[f.hops] or "flat" }
    local flop = 6 * f.tokens * f.top_k * f.dim * f.hidden
    local bytes = 2 * f.tokens * f.top_k * f.dim * (dtype == "f32" and 4 or 2) * (f.ep - 1) / f.ep
    local products = flop / (machine.matrix * 1e12)
    local whole = sim.layer(machine, layer).seconds
    machine.matrix = math.huge
    local apart = sim.layer(machine, layer).seconds -- the rows alone
    local exposed = math.max(0, whole - products)
    lines[#lines + 1] = ("    experts' layer   %s, %s MB on links; products %.2f ms, links %.2f "
      .. "ms: %.2f hidden, %.2f exposed"):format(screen.flop(flop), screen.grouped(
      math.floor(bytes / 1e6)), products * 1e3, apart * 1e3, math.max(0, apart - exposed) * 1e3,
      exposed * 1e3)
  end
end

--- Rows of a wave that a rank sends or gets back, all ranks alike; 0 without experts.
function plan.wave_rows(planned)
  local one = mixtures(planned)[1]
  return one and one.f.tokens * one.f.top_k / one.f.waves or 0
end

--- What the ways would take on a cluster, by the simulator: a line, or nothing.
function plan.add_ways(planned, facts, lines)
  local one = mixtures(planned)[1]
  if not one or not facts.island or one.f.ep <= facts.island then return end
  local f, words, best = one.f, {}, nil
  for _, way in ipairs { "flat", "hierarchical" } do
    local layer = sim.layer({ ranks = f.ep, island = facts.island, matrix = facts.matrix.bf16,
      link = facts.link, network = facts.network, latency = facts.latency }, {
      rows = sim.rows(f.ep, f.tokens, f.top_k, "uniform"), dim = f.dim, hidden = f.hidden,
      waves = f.waves, way = way,
    })
    words[#words + 1] = ("%s %.2f ms"):format(way, layer.seconds * 1000)
    if not best or layer.seconds < best.seconds then
      best = { way = way, seconds = layer.seconds }
    end
  end
  lines[#lines + 1] = ("    experts         a layer's rows and products: %s; %s"):format(
    table.concat(words, ", "), best.way == ways[f.hops] and "the shorter is taken"
      or best.way == "flat" and "layout.all_to_all=flat takes the shorter"
      or "layout.island=" .. facts.island .. " takes the shorter")
end

--- Adds the lines; none for a model without experts.
function plan.add(planned, lines)
  for _, one in ipairs(mixtures(planned)) do
    local own = lines_of(one, planned.spec.dtype, planned.way)
    table.move(own, 1, #own, #lines + 1, lines)
  end
end

return plan
