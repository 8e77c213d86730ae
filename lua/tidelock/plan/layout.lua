--- Layouts: the grid of ranks, and the rules that a layout must keep.
--
-- One order string fixes every group. The leftmost axis has stride 1: its ranks are neighbours.
--
--     order "tp-cp-dp-pp", tp 2, dp 2, pp 2        rank  0 1 2 3 4 5 6 7
--                                                  tp    0 1 0 1 0 1 0 1   groups 01 23 45 67
--     rank = tp + 2 dp + 4 pp                      dp    0 0 1 1 0 0 1 1   groups 02 13 46 57
--                                                  pp    0 0 0 0 1 1 1 1   groups 04 15 26 37
--
-- Ranks, coordinates and group numbers count from 0.
local layout = {}

layout.axes = { "tp", "cp", "dp", "pp" }

--- The axes of an order string; nil and what is wrong with it. `ep` is dropped (experts have a grid
--- of their own), a missing axis of size 1 stands at the end.
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
      if size[axis] > 1 then return nil, (
        "it has no %s, which has %d ranks"
      ):format(axis, size[axis]) end
      order[#order + 1] = axis
    end
  end
  return order
end

--- Axes with their sizes and strides, neighbours first: { axis, size, stride } each.
local function grid(section)
  local order, message = layout.parse_order(section.order, section)
  if not order then error("layout.order: " .. message, 0) end
  local list, stride = {}, 1
  for i, axis in ipairs(order) do
    list[i] = { axis = axis, size = section[axis], stride = stride }
    stride = stride * section[axis]
  end
  return list, stride
end

--- The number of ranks of a layout section.
function layout.world(section) return (select(2, grid(section))) end

--- The coordinates of a rank: { tp, cp, dp, pp }.
function layout.coordinates(section, rank)
  local result = {}
  for _, one in ipairs(grid(section)) do result[one.axis] = rank // one.stride % one.size end
  return result
end

--- The rank with these coordinates; those left out are 0.
function layout.rank(section, coordinates)
  local rank = 0
  for _, one in ipairs(grid(section)) do rank = rank + (coordinates[one.axis] or 0) * one.stride end
  return rank
end

--- Distances of ranks when the axes of `list` for which varies[axis] == wanted run through all
--- their coordinates, the leftmost fastest.
local function distances(list, varies, wanted)
  local result = { 0 }
  for _, one in ipairs(list) do
    if (varies[one.axis] or false) == wanted then
      local longer = {}
      for digit = 0, one.size - 1 do
        for _, distance in ipairs(result) do longer[#longer + 1] = distance + digit * one.stride end
      end
      result = longer
    end
  end
  return result
end

--- All groups in which `axes` ({ "tp" }, { "tp", "dp" }, ..) vary and the others are fixed: a list
--- of lists of ranks, ascending in both.
function layout.groups(section, axes)
  local varies, groups, list = {}, {}, grid(section)
  for _, axis in ipairs(axes) do varies[axis] = true end
  local inside = distances(list, varies, true)
  for i, base in ipairs(distances(list, varies, false)) do
    groups[i] = {}
    for j, distance in ipairs(inside) do groups[i][j] = base + distance end
  end
  return groups
end

return layout
