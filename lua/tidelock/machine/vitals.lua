--- vitals.lua - clock, temperature and power of what computes, read beside a hash or a time.
---
---     host    the middle clock of the processors (/proc/cpuinfo), the hottest thermal zone
---     cuda    GPU 0, by NVML
---
--- What a machine does not report is absent, and printed as a dash: virtual machines often hide
--- temperatures.
local core = require "tidelock.core"

local vitals = {}

---@class tidelock.Vitals
---@field clock_mhz? number
---@field celsius? number
---@field watts? number

--- The middle of the clocks in the text of /proc/cpuinfo; nil where it has none.
function vitals.clock_in(text)
  local list = {}
  for mhz in text:gmatch "cpu MHz%s*:%s*([%d.]+)" do list[#list + 1] = tonumber(mhz) end
  table.sort(list)
  return list[(#list + 1) // 2]
end

local function read(path)
  local file = io.open(path)
  if not file then return nil end
  local text = file:read "a"
  file:close()
  return text
end

--- The hottest zone, in degrees; nil where the system shows none.
local function celsius()
  local most
  for _, path in ipairs(core.files.glob "/sys/class/thermal/thermal_zone*/temp") do
    local milli = tonumber(read(path) or "")
    if milli then most = math.max(most or milli, milli) end
  end
  return most and most / 1000
end

---@param device "host"|"cuda"
---@return tidelock.Vitals
function vitals.read(device)
  if device == "cuda" then return core.cuda_vitals(0) or {} end
  return { clock_mhz = vitals.clock_in(read "/proc/cpuinfo" or ""), celsius = celsius() }
end

--- "1980 MHz", "45 C", "310 W", or a dash each.
---@param now tidelock.Vitals
---@return string clock, string temperature, string power
function vitals.words(now)
  local function word(value, unit) return value and ("%.0f %s"):format(value, unit) or "-" end
  return word(now.clock_mhz, "MHz"), word(now.celsius, "C"), word(now.watts, "W")
end

return vitals
