--- stats.lua - one number of a whole tensor, in a fixed order: it has bits of its own.
---
---     norm, rms   sums of squares in chunks of 65,536 elements (kernels/reduce/reduce.h:
---     square_sum)
---     mean        sums of blocks of 64 elements (sum_tokens)
---     max         exact
---     hash        of names, indices and bits; 16 hex digits
local core = require "tidelock.core"

local stats = {}

local function flat(t)
  local count = 1
  for _, size in ipairs(t:shape()) do count = count * size end
  local whole = core.assemble(t:dtype(), { count }, { { tensor = t, rows = count, cols = 1 } })
  return whole, count
end

local function squares(t)
  local x, count = flat(t)
  local matrix = core.assemble(t:dtype(), { 1, count }, { { tensor = x, rows = 1, cols = count } })
  local slots = core.tensor("f32", { 1 })
  core.call("square_sum", { matrix }, { slots }, { axis = 0, begin = 0, extent = 1, parts = 1,
    slot_first = 0 })
  return slots:flat()[1], count
end

---@param t userdata
---@return number
function stats.norm(t) return core.f32(math.sqrt((squares(t)))) end

function stats.rms(t)
  local sum, count = squares(t)
  return core.f32(math.sqrt(core.f32(sum / count)))
end

function stats.mean(t)
  local x, count = flat(t)
  local sum = core.tensor("f32", { 1, 1 })
  core.call("sum_tokens", { x, false, false, false }, { sum },
    { kind = 0, first = 0, samples = 1, length = count, runs = 1, mode = 0 })
  return core.f32(sum:flat()[1] / count)
end

function stats.max(t)
  local x, count = flat(t)
  local matrix = core.assemble(t:dtype(), { 1, count }, { { tensor = x, rows = 1, cols = count } })
  local best = core.tensor("f32", { 1 })
  core.call("row_max", { matrix }, { best }, { columns = count })
  return best:flat()[1]
end

function stats.hash(t) return t:hash() end

return stats
