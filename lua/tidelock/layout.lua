--- Layouts: the grid of ranks, and the rules that a layout must keep.
--
-- One order string fixes every group. The leftmost axis has stride 1: its ranks are neighbours.
--
--     order "tp-cp-dp-pp", tp 2, dp 2, pp 2        rank   0 1 2 3 4 5 6 7
--                                                  tp     0 1 0 1 0 1 0 1     groups of tp: 01 23 45 67
--     rank = tp + 2 dp + 4 pp                      dp     0 0 1 1 0 0 1 1     groups of dp: 02 13 46 57
--                                                  pp     0 0 0 0 1 1 1 1     groups of pp: 04 15 26 37
--
-- Ranks, coordinates and group numbers count from 0.
local layout = {}

layout.axes = { "tp", "cp", "dp", "pp" }

---@class tidelock.Grid
---@field world integer # number of ranks
---@field order string[] # axes, neighbours first
---@field size table<string, integer>
---@field stride table<string, integer>
local Grid = {}
Grid.__index = Grid

--- The axes of an order string; nil and what is wrong with it. `ep` is dropped (experts have a grid of
--- their own), a missing axis of size 1 stands at the end.
function layout.parse_order(text, size)
  local order, seen = {}, {}
  for word in (text .. "-"):gmatch "([^-]*)-" do
    local known = word == "ep"
    for _, axis in ipairs(layout.axes) do known = known or axis == word end
    if not known then return nil, ("%q is no axis; an order names tp, cp, dp, pp"):format(word) end
    if seen[word] then return nil, ("%s stands in it twice"):format(word) end
    seen[word] = true
    if word ~= "ep" then order[#order + 1] = word end
  end
  for _, axis in ipairs(layout.axes) do
    if not seen[axis] then
      if size[axis] > 1 then return nil, ("it has no %s, which has %d ranks"):format(axis, size[axis]) end
      order[#order + 1] = axis
    end
  end
  return order
end

--- The grid of a layout section (tp, cp, dp, pp and order).
function layout.grid(section)
  local order, message = layout.parse_order(section.order, section)
  if not order then error("layout.order: " .. message, 0) end
  local grid = setmetatable({ order = order, size = {}, stride = {}, world = 1 }, Grid)
  for _, axis in ipairs(order) do
    grid.size[axis], grid.stride[axis] = section[axis], grid.world
    grid.world = grid.world * section[axis]
  end
  return grid
end

--- The coordinates of a rank: { tp, cp, dp, pp }.
function Grid:coordinates(rank)
  local result = {}
  for _, axis in ipairs(self.order) do result[axis] = rank // self.stride[axis] % self.size[axis] end
  return result
end

--- The rank with these coordinates; those left out are 0.
function Grid:rank(coordinates)
  local rank = 0
  for _, axis in ipairs(self.order) do rank = rank + (coordinates[axis] or 0) * self.stride[axis] end
  return rank
end

--- Numbers 0 .. product - 1 over some axes in mixed radix, as offsets of ranks.
local function offsets(self, wanted)
  local list = { 0 }
  for _, axis in ipairs(self.order) do
    if wanted[axis] then
      local longer = {}
      for digit = 0, self.size[axis] - 1 do
        for _, offset in ipairs(list) do longer[#longer + 1] = offset + digit * self.stride[axis] end
      end
      list = longer
    end
  end
  return list
end

--- All groups in which the axes of `mask` ({ tp = true, .. }) vary and the others are fixed: a list of
--- lists of ranks, ascending in both.
function Grid:groups(mask)
  local fixed, groups = {}, {}
  for _, axis in ipairs(self.order) do fixed[axis] = not mask[axis] end
  local inner = offsets(self, mask)
  for i, base in ipairs(offsets(self, fixed)) do
    groups[i] = {}
    for j, offset in ipairs(inner) do groups[i][j] = base + offset end
  end
  return groups
end

--- The group of `rank` in which the axes of `mask` vary, ascending.
function Grid:group(rank, mask)
  local own, ranks = self:coordinates(rank), {}
  for axis in pairs(mask) do own[axis] = 0 end
  local base = self:rank(own)
  for i, offset in ipairs(offsets(self, mask)) do ranks[i] = base + offset end
  return ranks
end

return layout
