--- bench_baseline.lua - `./tl bench .. --baseline FILE`: what became slower than an earlier
--- `-o json`, beyond the noise of both.
---
---     measure   { name, value, unit, low, high, smaller }    low, high: of all rounds;
---                                                            smaller: less is better
---     drop      the best of now is worse than the worst of then, and by 3 % at least; where a
---               table has no rounds: worse by its noise (5 % unless it says another)
---
--- Tables that state no measures are read: the first column of a speed, by the words in front.
local core = require "tidelock.core"

local baseline = {}

local least_drop, noise_default = 0.03, 0.05

--- Columns that are speeds, the first that a table has.
local speeds = { "TFLOP/s", "tok/s median", "decode tok/s", "tok/s", "median", "busbw GB/s" }

local function number_in(cell)
  local number, unit = tostring(cell):match "^([%d.]+)([kMG]?)$"
  return number and tonumber(number) * ({ [""] = 1, k = 1e3, M = 1e6, G = 1e9 })[unit]
end

--- Measures of a table that states none.
local function read(result)
  local column
  for _, name in ipairs(speeds) do
    for i, title in ipairs(result.columns) do
      if title == name then column = column or i end
    end
  end
  local list = {}
  for _, row in ipairs(column and result.rows or {}) do
    local words = {}
    for i = 1, column - 1 do
      if not tostring(row[i]):find "^[%d.]+%.%d+$" then words[#words + 1] = tostring(row[i]) end
    end
    local value = number_in(row[column])
    if value then
      list[#list + 1] = { name = table.concat(words, " "), value = value,
        unit = result.columns[column] }
    end
  end
  return list
end

--- Measures of a table by name.
local function measures_of(result)
  local by, list = {}, result.measures and #result.measures > 0 and result.measures or read(result)
  for _, one in ipairs(list) do by[one.name] = one end
  return by, list
end

--- A title without the numbers that change from run to run.
local function title_of(result) return (result.title:gsub("%d[%d.]*", "#")) end

--- How far `now` is worse than `old`, as a share of the old value; nil within the noise.
function baseline.drop(old, now)
  local sign = now.smaller and -1 or 1
  local change = sign * (now.value - old.value) / old.value
  if change > -least_drop then return nil end
  if old.low and now.low then
    local best_now = now.smaller and now.low or now.high
    local worst_old = now.smaller and old.high or old.low
    if sign * (best_now - worst_old) >= 0 then return nil end
  elseif change > -(now.noise or noise_default) then
    return nil
  end
  return -change
end

--- The tables of a file of `-o json`.
function baseline.load(path)
  local text, message = core.files.read_all(path)
  local good, found = pcall(core.json.decode, text or "")
  if not text or not good or type(found) ~= "table" or type(found.tables) ~= "table" then
    error({ status = 2, message = ("tidelock: bench: --baseline %s: %s"):format(path, not text
      and message or "it is no output of ./tl bench -o json") }, 0)
  end
  return found
end

--- What became slower: lines, the largest drop first; how many measures were compared.
---@param before table[] # tables of then
---@param now table[]
---@return string[] lines, integer compared
function baseline.compare(before, now)
  local old_by, drops, compared = {}, {}, 0
  for _, result in ipairs(before) do old_by[title_of(result)] = measures_of(result) end
  for _, result in ipairs(now) do
    local old = old_by[title_of(result)] or {}
    local _, list = measures_of(result)
    for _, one in ipairs(list) do
      local was = old[one.name]
      if was then
        compared = compared + 1
        local drop = baseline.drop(was, one)
        if drop then drops[#drops + 1] = { drop, one, was, result } end
      end
    end
  end
  table.sort(drops, function(a, b)
    if a[1] ~= b[1] then return a[1] > b[1] end
    return a[2].name < b[2].name
  end)
  local lines = {}
  for i, d in ipairs(drops) do
    lines[i] = ("slower by %.1f%%: %s: %.4g %s, was %.4g (%s)"):format(100 * d[1], d[2].name,
      d[2].value, d[2].unit, d[3].value, d[4].title:match "^[^:(]*[^:( ]")
  end
  return lines, compared
end

return baseline
