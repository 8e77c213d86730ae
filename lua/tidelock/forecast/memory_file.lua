--- memory_file.lua - writes the arena of a rank to a file: a picture (.svg) or a snapshot
--- (.pickle).
local arena_view = require "tidelock.forecast.arena_view"
local core = require "tidelock.core"
local snapshot = require "tidelock.forecast.snapshot"

local memory_file = {}

local function usage(format, ...) error({ status = 2, message = format:format(...) }, 0) end

--- Which of the two a file name means.
function memory_file.kind(path)
  local kind = path:match "%.(%a+)$"
  if kind ~= "svg" and kind ~= "pickle" then
    usage("tidelock: --memory: %s: a name that ends in .svg (a picture) or .pickle (for PyTorch's "
      .. "memory viewer)", path)
  end
  return kind
end

--- `view` as arena_view.svg takes it; `times` microseconds by instruction, one more at the end; an
--- instruction is one microsecond unless they are given.
function memory_file.write(path, view, times)
  local kind = memory_file.kind(path)
  if not times then
    times = {}
    for i = 0, view.finish - view.begin + 1 do times[i + 1] = i end
  end
  local text = kind == "svg" and arena_view.svg(view) or snapshot.of(view, times)
  local good, message = pcall(core.files.write_atomic, path, text)
  if not good then usage("tidelock: --memory: %s", (message:gsub("^[^\n]-%.lua:%d+: ", ""))) end
end

--- The view of an entry of plan.ranks.
function memory_file.view_of_plan(plan, index, title)
  local buffers, begin, finish = arena_view.buffers(plan.ranks[index])
  return { title = title, buffers = buffers, bytes = plan.places[index].bytes, begin = begin,
    finish = finish }
end

return memory_file
