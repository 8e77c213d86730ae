--- heap.lua - a list whose first item is the least: adding one and taking the least cost as many
--- steps as the list's length has bits.
---
---     heap.push(list, item, less)
---     heap.pop(list, less)           the least, removed
---
--- less(a, b) orders items strictly; of [k], [2k] and [2k + 1], [k] is never the greatest.
local heap = {}

---@generic T
---@param list T[]
---@param item T
---@param less fun(a: T, b: T): boolean
function heap.push(list, item, less)
  local k = #list + 1
  while k > 1 and less(item, list[k // 2]) do
    list[k] = list[k // 2]
    k = k // 2
  end
  list[k] = item
end

---@generic T
---@param list T[] # not empty
---@param less fun(a: T, b: T): boolean
---@return T
function heap.pop(list, less)
  local least, item, count, k = list[1], list[#list], #list - 1, 1
  list[count + 1] = nil
  while 2 * k <= count do
    local child = 2 * k
    if child < count and less(list[child + 1], list[child]) then child = child + 1 end
    if not less(list[child], item) then break end
    list[k] = list[child]
    k = child
  end
  if count > 0 then list[k] = item end
  return least
end

return heap
