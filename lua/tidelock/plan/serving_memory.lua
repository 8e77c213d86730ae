--- serving_memory.lua - the memory that generation takes, told by `./tl plan` and compared with
--- what there is before anything is opened.
---
---     of a rank    arena      weights, pages, and what a step makes
---                  passes     on a GPU: what blocks of the kernel for few rows send each other,
---                             and what it is told of its phases (runtime/passes_cuda.h)
---                  kernels    on a GPU: for any kernel that asks for some
---     of the host  list       which request has which page, and which prefix a page holds
---
--- What tensor-parallel ranks send each other is not counted.
local core = require "tidelock.core"

local serving_memory = {}

-- Of a page: places in three lists, each with room to grow, an entry with a name, and the name's
-- digits. serve/pages.lua; tests/spec/serving_memory_spec.lua measures it.
local page_bytes, position_bytes = 416, 8

---@class tidelock.ServingMemory
---@field arena integer # bytes
---@field passes integer
---@field kernels integer
---@field all integer

--- What a rank of stage `stage` (from 1) of the pipeline takes.
---@param plan tidelock.ServingPlan
---@param stage integer
---@return tidelock.ServingMemory
function serving_memory.of_rank(plan, stage)
  local found = { arena = plan.places[stage].bytes, passes = 0, kernels = 0 }
  if plan.spec.device == "cuda" then
    local program <close> = core.program(plan.programs[(stage - 1) * plan.spec.layout.tp + 1])
    found.passes, found.kernels = program:gpu_bytes()
  end
  found.all = found.arena + found.passes + found.kernels
  return found
end

--- What the list of pages takes once every page has held a prefix.
---@param sizes { pages: integer, page: integer } # of the plan
---@return integer bytes
function serving_memory.of_list(sizes)
  return sizes.pages * (page_bytes + position_bytes * sizes.page)
end

return serving_memory
