--- experts.lua - how long experts' rows travel with nothing beside them, in a traced step.
---
---     lane 0     [router][    ][gate, up, down of wave 0][ wave 1     ][    ][combine]
---     lane 1             [rows][rows of wave 1 ] [ home 0 ]           [home]
---                         ^^^^ alone                                   ^^^^
---
--- A layer is a mixture of experts with its norm, router and shared expert: the path of its
--- exchanges and what lies under it. Its time is that in which its instructions run, each moment
--- given to one (waits.share), so gaps between layers and attention are not in it.
local waits = require "tidelock.trace.waits"

local trace_experts = {}

---@class tidelock.TimedInstruction # of a rank's step, in order
---@field made { op: string, path: string?, phase: string }
---@field start integer # ns
---@field stop integer
---@field talks boolean

---@class tidelock.ExpertsTime # seconds of a layer in a step
---@field path string
---@field layer number # all of it
---@field rows number # messages with rows of experts
---@field alone number # of `rows`, what no kernel ran beside
---@field passes table<string, { layer: number, alone: number }> # forward, backward

--- Layers whose rows travel, by the paths of their exchanges, in order.
local function layers_of(list)
  local layers, by_path = {}, {}
  for _, one in ipairs(list) do
    local path = one.made.op == "exchange" and one.made.path
    if path and not by_path[path] then
      by_path[path] = { path = path, layer = 0, rows = 0, alone = 0, passes = {} }
      layers[#layers + 1] = by_path[path]
    end
  end
  return layers, by_path
end

--- The layer that a path belongs to: itself, or the nearest above it.
local function owner(by_path, path)
  while path do
    if by_path[path] then return by_path[path] end
    path = path:match "^(.*)%.[^.]*$"
  end
end

--- Layers of a rank's step.
---@param list tidelock.TimedInstruction[]
---@return tidelock.ExpertsTime[]
function trace_experts.of(list)
  local layers, by_path = layers_of(list)
  if #layers == 0 then return layers end
  local own = waits.share(list)
  for i, one in ipairs(list) do
    local layer = owner(by_path, one.made.path)
    if layer then
      local pass = layer.passes[one.made.phase] or { layer = 0, alone = 0 }
      layer.passes[one.made.phase] = pass
      local seconds = own[i] / 1e9
      layer.layer, pass.layer = layer.layer + seconds, pass.layer + seconds
      if one.made.op == "exchange" then
        layer.rows = layer.rows + (one.stop - one.start) / 1e9
        layer.alone, pass.alone = layer.alone + seconds, pass.alone + seconds
      end
    end
  end
  return layers
end

--- Adds b to a, numbers and tables by name.
local function add(a, b)
  for name, value in pairs(b) do -- sums: the order does not show
    if type(value) == "number" then
      a[name] = (a[name] or 0) + value
    elseif type(value) == "table" then
      a[name] = a[name] or {}
      add(a[name], value)
    end
  end
end

--- Sums of several steps of a rank, and of all its layers: the list ends with `all`.
---@param steps tidelock.ExpertsTime[][]
---@return tidelock.ExpertsTime[]
function trace_experts.sum(steps)
  local sums, all = {}, { path = "all", layer = 0, rows = 0, alone = 0, passes = {} }
  for _, layers in ipairs(steps) do
    for k, layer in ipairs(layers) do
      sums[k] = sums[k] or { path = layer.path, layer = 0, rows = 0, alone = 0, passes = {} }
      add(sums[k], layer)
      add(all, layer)
    end
  end
  if #sums > 0 then sums[#sums + 1] = all end
  return sums
end

---@return number # 0 of nothing
function trace_experts.share(part) return part.layer > 0 and part.alone / part.layer or 0 end

local function percent(part)
  return part and ("%.1f%%"):format(100 * trace_experts.share(part)) or "-"
end

--- Of each layer, and of all, the rank that shows the largest share: { path, time, rank }.
--- Stages of a pipeline have layers of their own.
local function worst_of(ranks)
  local list, by_path, all = {}, {}, { path = "all" }
  for r, layers in ipairs(ranks) do
    for _, time in ipairs(layers) do
      local one = time.path == "all" and all or by_path[time.path]
      if not one then
        one = { path = time.path }
        by_path[time.path], list[#list + 1] = one, one
      end
      if not one.time or trace_experts.share(time) > trace_experts.share(one.time) then
        one.time, one.rank = time, r - 1
      end
    end
  end
  if all.time then list[#list + 1] = all end
  return list
end

--- Lines of the table; none without rows.
---@param ranks tidelock.ExpertsTime[][] # sums of each
---@param count integer # steps in them
---@return string[]
function trace_experts.lines(ranks, count)
  local lines = {}
  for k, one in ipairs(worst_of(ranks)) do
    if k == 1 then
      lines[1] = ("  %-20s %9s %9s %9s %7s %8s %9s %5s"):format("rows of experts", "layer ms",
        "rows ms", "alone ms", "share", "forward", "backward", "rank")
    end
    local time = one.time
    lines[#lines + 1] = ("  %-20s %9.3f %9.3f %9.3f %7s %8s %9s %5d"):format(one.path,
      time.layer / count * 1e3, time.rows / count * 1e3, time.alone / count * 1e3, percent(time),
      percent(time.passes.forward), percent(time.passes.backward), one.rank)
  end
  return lines
end

return trace_experts
