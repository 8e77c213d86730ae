--- bench/baseline.lua - `./tl bench .. --baseline FILE`: what became slower than an earlier
--- `-o json`, beyond the noise of both.
---
---     measure   { name, value, unit, low, high, smaller }    low, high: of all rounds;
---                                                            smaller: less is better
---     slower    the best of now is worse than the worst of then, and by 3 % at least; where a
---               table has no rounds: worse by its noise (5 % unless it says another)
---     faster    the same the other way round
---     =         all between: a gain inside the spread is no gain
---
--- Tables that state no measures are read: the first column of a speed, by the words in front.
local core = require "tidelock.core"

local baseline = {}

local least_change, noise_default = 0.03, 0.05

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

--- By what share of the old value `now` is better; below 0: worse; nil within the noise.
---@return number?
function baseline.change(old, now)
  local sign = now.smaller and -1 or 1
  local change = sign * (now.value - old.value) / old.value
  if math.abs(change) <= least_change then return nil end
  if not (old.low and now.low) then
    return math.abs(change) > (now.noise or noise_default) and change or nil
  end
  local best_now = now.smaller and now.low or now.high
  local worst_now = now.smaller and now.high or now.low
  local best_old = old.smaller and old.low or old.high
  local worst_old = old.smaller and old.high or old.low
  local slower, faster = sign * (best_now - worst_old) < 0, sign * (worst_now - best_old) > 0
  return (change < 0 and slower or change > 0 and faster) and change or nil
end

local function are_tables(list)
  if list ~= nil and type(list) ~= "table" then return false end
  for _, one in ipairs(list or {}) do
    if type(one) ~= "table" then return false end
  end
  return true
end

--- Where a file's tables are not as bench writes them; nil where all are.
local function damage(tables)
  if not are_tables(tables) then return "tables" end
  for i, one in ipairs(tables) do
    if type(one.title) ~= "string" or type(one.columns) ~= "table" or not are_tables(one.rows)
      or not are_tables(one.measures) then
      return ("table %d"):format(i)
    end
    for k, m in ipairs(one.measures or {}) do
      local function number(value, absent) return type(value) == "number" or absent end
      if type(m.name) ~= "string" or not number(m.value) or not number(m.low, m.low == nil)
        or not number(m.high, m.high == nil) then
        return ("table %d, measure %d"):format(i, k)
      end
    end
  end
end

--- The tables of a file of `-o json`.
function baseline.load(path)
  local text, message = core.files.read_all(path)
  local good, found = pcall(core.json.decode, text or "")
  if not text or not good or type(found) ~= "table" or type(found.tables) ~= "table" then
    error({ status = 2, message = ("tidelock: bench: --baseline %s: %s"):format(path, not text
      and message or "it is no output of ./tl bench -o json") }, 0)
  end
  local place = damage(found.tables)
  if place then
    error({ status = 2, message = ("tidelock: bench: --baseline %s: %s is damaged; measure it "
      .. "again with -o json"):format(path, place) }, 0)
  end
  return found
end

--- "slower by 20.0%: NAME: 80 GFLOP/s, was 100 (TITLE)"
local function line_of(word, now, was, title)
  return ("%s: %s: %.4g %s, was %.4g (%s)"):format(word, now.name, now.value, now.unit, was.value,
    title:match "^[^:(]*[^:( ]")
end

--- Lines of what became slower, the largest drop first; of all other measures that both have, with
--- "faster by 9.0%" or "=", in the order of the tables.
---@param before table[] # tables of then
---@param now table[]
---@return string[] slower, string[] others
function baseline.compare(before, now)
  local old_by, drops, slower, others = {}, {}, {}, {}
  for _, result in ipairs(before) do old_by[title_of(result)] = measures_of(result) end
  for _, result in ipairs(now) do
    local old = old_by[title_of(result)] or {}
    local _, list = measures_of(result)
    for _, one in ipairs(list) do
      local was = old[one.name]
      local change = was and baseline.change(was, one)
      if change and change < 0 then
        drops[#drops + 1] = { -change, one, was, result.title }
      elseif was then
        others[#others + 1] = line_of(change and ("faster by %.1f%%"):format(100 * change) or "=",
          one, was, result.title)
      end
    end
  end
  table.sort(drops, function(a, b)
    if a[1] ~= b[1] then return a[1] > b[1] end
    return a[2].name < b[2].name
  end)
  for i, d in ipairs(drops) do
    slower[i] = line_of(("slower by %.1f%%"):format(100 * d[1]), d[2], d[3], d[4])
  end
  return slower, others
end

return baseline
