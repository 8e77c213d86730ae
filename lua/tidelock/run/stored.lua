--- stored.lua - weights that start from tensors of files: each rank reads its own slices.
--
--     file, mapped   [ rows of rank 0 | rows of rank 1 | .. ]     a column cut reads parts of rows
--                          |                  |
--                          v                  v
--     weight (bf16, or f32 as it is), and beside 16-bit weights the f32 master, exactly the file's
--
-- Rounding to bf16 is to the nearest, ties to even; everything to f32 is exact.
local core = require "tidelock.core"
local emit = require "tidelock.plan.stages.emit"
local experts = require "tidelock.plan.experts"

local stored = {}

local element_bytes = { F32 = 4, F16 = 2, BF16 = 2 }

local function rounded(tensor, dtype)
  if tensor:dtype() == dtype then return tensor end
  local other = core.tensor(dtype, tensor:shape())
  core.call("cast", { tensor }, { other }, {})
  tensor:close()
  return other
end

--- Fills the weight of one rank; returns the bytes that were read.
local function fill(run, rank, param, weight, master)
  local source, at = param.fields.stored, run.table[rank + 1].coordinates
  local dtype = source.file:look(source.name)
  local first, col = emit.resolve(param.row_first, at.tp), emit.resolve(param.col_first, at.tp)
  local function slice(widen)
    return source.file:slice(source.name, first, param.rows, col, param.cols, widen)
  end
  if master then
    local exact <close> = slice "f32"
    run.ranks:write(rank, master, exact)
  end
  local own = param.fields.dtype
  local part <close> = rounded(slice(not (dtype == "BF16" and own == "bf16") and "f32" or nil), own)
  run.ranks:write(rank, weight, part)
  local rows = math.max(0, math.min(param.rows, param.weight.rows - first))
  return rows * param.cols * element_bytes[dtype]
end

--- Fills a weight on every rank that holds it; returns the bytes that were read.
---@param run tidelock.Run
---@param param table
---@return integer bytes
function stored.load(run, param)
  local bytes = 0
  for index, entry in ipairs(run.table) do
    local planned = run.plan.ranks[experts.plan_index(run.spec.layout, entry.coordinates)]
    local persistent = planned.persistent
    local weight, master = persistent["weight " .. param.name], persistent["master " .. param.name]
    if weight and weight.tensor then
      bytes = bytes + fill(run, index - 1, param, weight.tensor, master and master.tensor)
    end
  end
  return bytes
end

return stored
