--- sides.lua - what is known of the two runs that `./tl diff` compares, before any trace: the
--- recipe and the losses.
---
---     a side    a folder of a trace (recorder.lua) or of a run (runs.lua)
local beside = require "tidelock.text.beside"
local core = require "tidelock.core"
local differences = require "tidelock.run.differences"
local log = require "tidelock.run.log"
local runs = require "tidelock.run.runs"
local screen = require "tidelock.text.screen"
local traces = require "tidelock.trace.traces"

local sides = {}

---@class tidelock.Side
---@field folder string
---@field key string
---@field fields string # "path = value" lines
---@field layout table # tp, dp, pp
---@field device string
---@field records table # by step: loss_bits, grad_norm_bits
---@field last integer
---@field recipe? string # what to load to run it again
---@field overrides string[]
---@field point? integer
---@field weights? string # hash of the weights after the last step
---@field run? string # the run folder
---@field trace? table

local function layout_in(fields)
  local layout = {}
  local text = fields:match "[\n^]layout = ([^\n]*)" or ""
  for _, axis in ipairs { "tp", "dp", "pp" } do
    layout[axis] = math.tointeger(tonumber(text:match("%f[%w]" .. axis .. " = (%d+)")
      or fields:match("\nlayout%." .. axis .. " = (%d+)"))) or 1
  end
  return layout
end

---@param t table # of traces.open
---@return tidelock.Side
function sides.of_trace(t)
  local meta, records, last = t.meta, {}, 0
  for _, step in ipairs(t.steps) do
    if step.step > 0 then records[step.step], last = step, step.step end
  end
  return {
    folder = t.dir, key = meta.key, fields = meta.fields, layout = meta.layout,
    device = meta.device, records = records, last = last, recipe = meta.recipe,
    overrides = meta.overrides or {}, point = meta.point, trace = t,
  }
end

local function of_run(folder)
  local summary = runs.summary(folder)
  local fields = core.files.read_all(folder .. "/resolved.txt")
  if not summary or not fields then
    local text = "tidelock: diff: %s is neither a trace nor a finished run"
    if not core.files.is_directory(folder) then
      text = "tidelock: diff: there is no folder %s; --trace DIR of ./tl run makes one%s"
    end
    error({ status = 2, message = text:format(folder, beside.hint(folder, true)) }, 0)
  end
  local records = {}
  for _, record in ipairs(log.read(folder .. "/log.jsonl") or {}) do
    if record.step then records[record.step] = record end
  end
  local recipe = summary.recipe
  if not recipe or not core.files.exists(recipe) then recipe = folder .. "/recipe.lua" end
  local overrides = {}
  for word in (summary.overrides or ""):gmatch "%S+" do overrides[#overrides + 1] = word end
  if core.files.exists(folder .. "/origin.json") then recipe, overrides = folder, {} end
  return {
    folder = folder, key = summary.key, fields = fields, layout = layout_in("\n" .. fields),
    device = fields:match '\ndevice = "(%a+)"' or "host", records = records, last = summary.steps,
    recipe = recipe, overrides = overrides, weights = summary.weights_hash, run = folder,
  }
end

--- The side that a path means.
---@return tidelock.Side
function sides.open(path)
  path = path:match "^(.-)/*$"
  if traces.is(path) then return sides.of_trace(traces.open(path)) end
  return of_run(path)
end

local function layout_text(layout)
  local words = {}
  for _, axis in ipairs { "tp", "pp", "dp" } do
    if layout[axis] > 1 then words[#words + 1] = axis .. " " .. layout[axis] end
  end
  return #words > 0 and table.concat(words, " ") or "one rank"
end

local function recipe_lines(lines, a, b)
  local function add(label, text) lines[#lines + 1] = ("%-8s %s"):format(label, text) end
  if a.key ~= b.key then
    add("recipe", ("keys %s | %s; what can change bits:"):format(screen.spaced(a.key),
      screen.spaced(b.key)))
    for _, d in ipairs(differences.gathered(differences.of(a.fields, b.fields))) do
      add("", ("%s: %s | %s"):format(d.label, d.old, d.new))
    end
    return
  end
  local x, y = layout_text(a.layout), layout_text(b.layout)
  local text = x == y and "same layout" or ("layout differs: %s | %s"):format(x, y)
  if a.device ~= b.device then text = ("%s; device %s | %s"):format(text, a.device, b.device) end
  add("recipe", ("same key %s; %s. The bits must be equal."):format(screen.spaced(a.key), text))
end

local function loss_text(bits)
  local value = string.unpack("<f", string.pack("<I4", tonumber(bits, 16)))
  return ("%s (%s)"):format(screen.loss(value), bits)
end

--- "steps 1 to 17 equal", or "step 1 equal".
local function equal_text(first, last)
  if first == last then return ("step %d equal"):format(first) end
  return ("steps %d to %d equal"):format(first, last)
end

--- The first step whose loss or gradient norm differs.
local function losses_line(lines, a, b)
  local first, last
  local function add(text)
    local before = first and equal_text(first, last) .. (text and "; " or "") or ""
    lines[#lines + 1] = ("%-8s %s%s"):format("losses", before, text or "")
  end
  for step = 1, math.min(a.last, b.last) do
    local x, y = a.records[step], b.records[step]
    if x and y and x.loss_bits and y.loss_bits then
      if x.loss_bits ~= y.loss_bits then
        add(("step %d: %s | %s"):format(step, loss_text(x.loss_bits), loss_text(y.loss_bits)))
        return step
      elseif x.grad_norm_bits ~= y.grad_norm_bits then
        add(("step %d: equal loss, gradient norm %s | %s"):format(step, loss_text(x.grad_norm_bits),
          loss_text(y.grad_norm_bits)))
        return step
      end
      first, last = first or step, step
    end
  end
  if first then add() else lines[#lines + 1] = "losses   no step in both" end
end

--- Lines "recipe" and "losses"; lines.differ is true when a loss does.
---@return table lines
---@return integer? step # the first that differs
function sides.lines(a, b)
  local lines = {}
  recipe_lines(lines, a, b)
  local step = losses_line(lines, a, b)
  lines.differ = step ~= nil
  return lines, step
end

return sides
