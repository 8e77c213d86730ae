--- The nearest known word to a mistyped one, for "did you mean".
local suggest = {}

suggest.bytes_max = 80 -- no known word is longer, and the time grows with its square

--- How far `a` is from `b`: 2 for each letter to add, drop or change, 1 for two neighbours swapped.
function suggest.distance(a, b)
  local rows = { [0] = {} }
  for j = 0, #b do rows[0][j] = 2 * j end
  for i = 1, #a do
    rows[i] = { [0] = 2 * i }
    for j = 1, #b do
      local change = a:byte(i) == b:byte(j) and 0 or 2
      local best = math.min(rows[i - 1][j] + 2, rows[i][j - 1] + 2, rows[i - 1][j - 1] + change)
      local swapped = i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j)
      if swapped then best = math.min(best, rows[i - 2][j - 2] + 1) end
      rows[i][j] = best
    end
  end
  return rows[#a][#b]
end

local function by_distance(word, known)
  local ranked = {}
  word = word:sub(1, suggest.bytes_max)
  for i, candidate in ipairs(known) do
    ranked[i] = { candidate, suggest.distance(word:lower(), candidate:lower()) }
  end
  local first = word:sub(1, 1):lower()
  for _, entry in ipairs(ranked) do entry[3] = entry[1]:sub(1, 1):lower() == first end
  table.sort(ranked, function(a, b)
    if a[2] ~= b[2] then return a[2] < b[2] end
    if a[3] ~= b[3] then return a[3] end
    return a[1] < b[1]
  end)
  return ranked
end

local function is_near(word, candidate, distance)
  local begins = candidate:find(word, 1, true) == 1 or word:find(candidate, 1, true) == 1
  if #word >= 3 and begins then return true end
  return distance <= 2 * math.max(1, #word // 3) and distance < 2 * math.max(#word, #candidate)
end

--- The word of `known` that is nearest to `word`, or nil when none is near: at most a third of the
--- letters differ (at least one may), or one word begins with the other. Ties go to a word with the
--- same first letter, then to the first in bytewise order. With `count`, the nearest so many words,
--- however far, as a text "a, b, c".
function suggest.nearest(word, known, count)
  local ranked = by_distance(word, known)
  if count then
    local words = {}
    for _, entry in ipairs(ranked) do -- a shared module's name stands there once for each use
      if #words < count and entry[1] ~= words[#words] then words[#words + 1] = entry[1] end
    end
    return table.concat(words, ", ")
  end
  for _, entry in ipairs(ranked) do
    if is_near(word, entry[1], entry[2]) then return entry[1] end
  end
  return nil
end

--- What is nearest to a pattern that matches none of `names`: of "*.qq" other ends, "*.q, *.k".
function suggest.patterns(pattern, names, count)
  local tail = pattern:match "^%*%.([^*]+)$"
  if not tail then return suggest.nearest(pattern, names, count) end
  local _, dots = tail:gsub("%.", "")
  local shape, ends, seen = ("[^.]+%."):rep(dots) .. "[^.]+$", {}, {}
  for _, name in ipairs(names) do
    local part = name:match(shape)
    if part and not seen[part] then
      seen[part] = true
      ends[#ends + 1] = part == name and name or "*." .. part
    end
  end
  return suggest.nearest(pattern, ends, count)
end

--- What to say about `library.key`, which is not among the sorted `names`.
function suggest.missing(place, library, key, names)
  key = tostring(key)
  local near = suggest.nearest(key, names)
  return ("%s%s.%s: no such function; %s%s has %s"):format(place and place .. ": " or "", library,
    key, near and ("did you mean %s.%s? "):format(library, near) or "", library,
    table.concat(names, ", "))
end

return suggest
