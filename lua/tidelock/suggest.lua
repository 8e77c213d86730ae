--- The nearest known word to a mistyped one, for "did you mean".
local suggest = {}

--- The number of letters to add, drop, change or swap with a neighbour to turn `a` into `b`.
function suggest.distance(a, b)
  local before, row, previous = {}, {}, {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    before, previous, row = previous, row, { [0] = i }
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      row[j] = math.min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (same and 0 or 1))
      local swapped = i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j)
      if swapped then row[j] = math.min(row[j], before[j - 2] + 1) end
    end
  end
  return row[#b]
end

local function by_distance(word, known)
  local ranked = {}
  for i, candidate in ipairs(known) do
    ranked[i] = { candidate, suggest.distance(word:lower(), candidate:lower()) }
  end
  table.sort(ranked, function(a, b)
    if a[2] ~= b[2] then return a[2] < b[2] end
    return a[1] < b[1]
  end)
  return ranked
end

local function is_near(word, candidate, distance)
  local begins = candidate:find(word, 1, true) == 1 or word:find(candidate, 1, true) == 1
  if #word >= 3 and begins then return true end
  return distance <= math.max(1, #word // 3) and distance < math.max(#word, #candidate)
end

--- The word of `known` that is nearest to `word`, or nil when none is near: at most a third of the
--- letters differ (at least one may), or one word begins with the other. Ties go to the first in
--- bytewise order. With `count`, the nearest so many words, however far, as a text "a, b, c".
function suggest.nearest(word, known, count)
  local ranked = by_distance(word, known)
  if count then
    local words = {}
    for i = 1, math.min(count, #ranked) do words[i] = ranked[i][1] end
    return table.concat(words, ", ")
  end
  for _, entry in ipairs(ranked) do
    if is_near(word, entry[1], entry[2]) then return entry[1] end
  end
  return nil
end

return suggest
