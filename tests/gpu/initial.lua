--- initial.lua - initial weights of a recipe for scripts that generate: `initial(10)` gives a
--- reader for the engine whose logits differ, `initial(1, "cuda")` one that draws on the GPU.
local core = require "tidelock.core"

local kinds = { constant = 0, normal = 1, uniform = 2 }

---@param factor number # of all spreads
---@param device string? # that draws; the host unless given
---@return fun(param: table, row: integer, col: integer): tidelock.Tensor
return function(factor, device)
  return function(param, row, col)
    local init, part = param.fields.init, core.tensor("f32", { param.rows, param.cols })
    core.call("init", {}, { part }, { kind = kinds[init.kind], first = init.first or 0,
      second = (init.second or 0) * factor, name_hash = core.hash_int(param.name),
      row_first = row, col_first = col, cols_full = param.full_cols },
      { seed = 0, device = device })
    return part
  end
end
