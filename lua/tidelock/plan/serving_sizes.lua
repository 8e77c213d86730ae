--- serving_sizes.lua - how many pages, rows and requests generation has room for: what the recipe's
--- section serve says, and what follows from it.
---
---     requests 16, context 256, page 64  ->  pages_each 4, pages 64
local problems = require "tidelock.text.problems"
local schema = require "tidelock.language.schema"

local requests_most, pool_most = 65536, 1 << 40

--- serve.* with what was left out, checked against the model.
---@param spec table
---@return { context: integer, page: integer, pages: integer, pages_each: integer,
---  pages_row: integer, rows: integer, requests: integer }
return function(spec)
  local found = problems.new()
  local s = spec.serve or schema.section("serve", {}, "serve", function() end)
  local sizes = { page = s.page, rows = s.rows, requests = s.requests }
  sizes.context = s.context or spec.batch.length
  sizes.pages_each = (sizes.context + s.page - 1) // s.page
  sizes.pages_row = (sizes.pages_each + 15) // 16 * 16 -- of the table
  sizes.pages = s.pages or s.requests * sizes.pages_each
  local function report(field, text, ...)
    found:add(spec.site("serve." .. field), "serve." .. field, text:format(...))
  end
  local positions = spec.model.positions
  if positions and sizes.context > positions then
    report("context", "context %d, and the model has %d learned positions; try serve.context=%d",
      sizes.context, positions, positions)
  end
  if sizes.context > 1 << 21 then
    report("context", "context %d; rope is exact up to %d", sizes.context, 1 << 21)
  end
  if s.requests > requests_most then -- each has a view of its own in every plan
    report("requests", "%d requests at a time; there can be up to %d, more wait", s.requests,
      requests_most)
  elseif sizes.pages * s.page > pool_most then
    report(s.pages and "pages" or "requests", "%d pages of %d positions; a pool has at most %d "
      .. "positions", sizes.pages, s.page, pool_most)
  end
  if sizes.pages * s.page < sizes.context then
    report("pages", "%d pages of %d positions are too few for one context of %d; try "
      .. "serve.pages=%d", sizes.pages, s.page, sizes.context, sizes.pages_each)
  end
  found:raise()
  return sizes
end
