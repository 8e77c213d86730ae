--- From the words of a command to one recipe and its plan, with the right exit status.
--
-- What a recipe or a layout does wrong is status 2, and its message ends with "nothing was
-- started"; a mistake of ours, whose message begins with a place in a Lua file of the library,
-- stays a plain error.

local core = require "tidelock.core"
local origin = require "tidelock.language.origin"
local planner = require "tidelock.plan"
local recipes = require "tidelock.language.recipe"

local requests = {}

--- "Resume me": the exit status of a command that Ctrl-C, SIGTERM or SIGHUP ended before its end,
--- though nothing is wrong, or that lost a rank.
requests.stopped = 75

--- The exit status after an error that names none: the loss of a rank is nobody's mistake.
function requests.failed(problem)
  return type(problem) == "string" and core.lost(problem) and requests.stopped or 1
end

--- Call fn(...); what it raises about the recipe is raised again as { status = 2, message }.
function requests.guarded(fn, ...)
  local results = table.pack(pcall(fn, ...))
  if results[1] then return table.unpack(results, 2, results.n) end
  local problem = results[2]
  local status = requests.failed(problem)
  if status ~= 1 then error({ status = status, message = problem }, 0) end
  local ours = type(problem) ~= "string" or problem:find "tidelock/[%w_/]+%.lua:%d+:"
  if ours then error(problem, 0) end
  if not problem:find("nothing was started", 1, true) then
    problem = problem .. "\n1 error; nothing was started"
  end
  error({ status = 2, message = problem }, 0)
end

--- The points of a sweep as text, and how to choose one.
local function list_points(points, file)
  local lines = { ("%s has %d points; choose one with --point N:"):format(file, #points) }
  for i, point in ipairs(points) do lines[#lines + 1] = ("  %d  %s"):format(i, point.label) end
  return table.concat(lines, "\n")
end

local function join(first, second)
  local all = table.move(first, 1, #first, 1, {})
  return table.move(second, 1, #second, #all + 1, all)
end

--- All points of a file with overrides, and whether it states that they give the same bits;
--- `only` as in recipe.points.
function requests.points(file, overrides, only)
  local known = origin.read(file)
  overrides = known and join(known.overrides, overrides) or overrides
  return requests.guarded(recipes.points, file, overrides, only)
end

--- The recipe of a file with overrides; of a sweep the chosen point. A run's folder is the recipe
--- that it ran: its overrides come first.
---@param file string
---@param overrides string[] # "key=value"
---@param point integer? # from 1
---@param keep? fun(word: string): boolean # which of the run's own overrides hold; all unless given
function requests.recipe(file, overrides, point, keep)
  local known = origin.read(file)
  if known then
    local own = {}
    for _, word in ipairs(known.overrides) do
      if not keep or keep(word) then own[#own + 1] = word end
    end
    overrides, point = join(own, overrides), point or known.point
  end
  return requests.guarded(function()
    local points = recipes.points(file, overrides, point)
    if #points == 1 and (point or 1) == 1 then return points[1] end
    if not point then error({ status = 2, message = list_points(points, file) }, 0) end
    if not points[point] then
      local text = "tidelock: --point %d: %s has points 1 to %d"
      error({ status = 2, message = text:format(point, file, #points) }, 0)
    end
    return points[point]
  end)
end

--- The recipe that a request names.
---@param request tidelock.Request
---@param more string[]? # overrides after those of the request
function requests.of(request, more)
  return requests.recipe(request.recipe, join(request.overrides, more or {}), request.options.point)
end

--- Plan up to and including `stage`; all stages when it is nil.
---@param links? table # speeds of links, of cluster.read
function requests.plan(recipe, stage, links)
  return requests.guarded(planner, recipe, stage, { links = links })
end

return requests
