--- report/read.lua - files of several kinds as points and tables, for one report of them all.
--
--   sweep rows     a point a row                          ./tl sweep --jsonl
--   a run's log    one point: the middle of its steps     runs/NAME, log.jsonl, ./tl run --jsonl
--   bench tables   tables as they are                     ./tl bench -o json
--
-- A point has the fields of a sweep's row (docs/operations.md); what a kind does not know is not
-- there.

local beside = require "tidelock.text.beside"
local core = require "tidelock.core"
local middle = require("tidelock.sweep.point").middle
local trace = require "tidelock.trace"
local traces = require "tidelock.trace.traces"

local report_read = {}

local function fail(path, text)
  error({ status = 2, message = ("tidelock: %s: %s"):format(path, text) }, 0)
end

--- The records of a text with one JSON object a line. What a kill left of a last line is dropped;
--- any other line that is none is a mistake.
local function records_of(text, path)
  local list, number = {}, 0
  for line, stop in text:gmatch "([^\n]*)(\n?)" do
    number = number + 1
    if line:find "%S" then
      local good, record = pcall(core.json.decode, line)
      if good and type(record) == "table" then
        list[#list + 1] = record
      elseif stop == "\n" then
        fail(path, ("line %d is no JSON object; a report reads rows of ./tl sweep, logs of "
          .. "./tl run, and ./tl bench -o json"):format(number))
      end
    end
  end
  return list
end

--- A run as one point: medians over its steps behind the first two.
local function point_of_run(records, path)
  local steps, summary, order = {}, nil, {}
  for _, record in ipairs(records) do
    if record.summary then summary = record end
    if math.type(record.step) == "integer" then
      if not steps[record.step] then order[#order + 1] = record.step end
      steps[record.step] = record -- one that stands twice counts the second time
    end
  end
  table.sort(order)
  local times, curve, last = {}, {}, steps[order[#order]]
  for i, n in ipairs(order) do
    local record = steps[n]
    if record.ms and (i > 2 or #order <= 2) then times[#times + 1] = record.ms end
    if record.loss then curve[#curve + 1] = { n, record.loss } end
  end
  if not last then fail(path, "this log has no step") end
  local point = {
    label = path:gsub("/log%.jsonl$", ""):match "([^/]+)/*$", status = "ok", curve = curve,
    steps = last.step, loss = last.loss, loss_bits = last.loss_bits, tokens = last.tokens,
    peak_bytes = last.bytes, experts = last.experts,
  }
  if #times > 0 then
    point.ms, point.spread = middle(times)
    point.tokens_per_s = last.tokens and last.tokens / point.ms * 1000
  end
  if last.mfu and last.ms and point.ms then point.mfu = last.mfu * last.ms / point.ms end
  if summary then
    point.weights_hash, point.key, point.bits = summary.weights_hash, summary.key,
      summary.weights_hash
    point.peak_bytes, point.beside_bytes = summary.peak_bytes, summary.beside_bytes
  end
  return point
end

--- The points of a sweep; a row that was run again stands for the earlier one.
local function points_of_sweep(records)
  local list, place = {}, {}
  for _, row in ipairs(records) do
    if row.losses then
      row.curve = {}
      for i, loss in ipairs(row.losses) do row.curve[i] = { i, loss } end
    end
    place[row.id] = place[row.id] or #list + 1
    list[place[row.id]] = row
  end
  return list
end

local function is_bench(text)
  local good, value = pcall(core.json.decode, text)
  return good and type(value) == "table" and type(value.tables) == "table" and value or nil
end

--- What a trace's folder shows: the arena of rank 0, planned and as it was in its last step.
local function open_trace(path)
  local t <close> = traces.open(path)
  local view = trace.memory_view(t, 0)
  return { path = path, kind = "trace", points = {}, tables = {}, arenas = { view } }
end

---@class tidelock.ReportInput
---@field path string
---@field kind "sweep"|"run"|"bench"|"trace"
---@field points table[]
---@field tables table[] # of bench: { title, columns, rows, notes }
---@field arenas table[]? # of a trace: views of arena_view.lua
---@field machine string?

--- Reads a file or a run folder.
---@param path string
---@return tidelock.ReportInput
function report_read.open(path)
  if traces.is(path) then return open_trace(path) end
  local file = core.files.is_directory(path) and path:gsub("/+$", "") .. "/log.jsonl" or path
  local text, message = core.files.read_all(file)
  if not text then
    local hint = core.files.exists(file) and "" or beside.hint(path)
    fail(path, message:gsub("^.-: ", "", 1) .. hint)
  end
  local bench = is_bench(text)
  if bench then
    return { path = path, kind = "bench", points = {}, tables = bench.tables,
      machine = bench.machine }
  end
  local records = records_of(text, file)
  local first = records[1] or fail(path, "there is no record in it")
  if type(first.id) == "string" and first.status then
    return { path = path, kind = "sweep", points = points_of_sweep(records), tables = {} }
  elseif first.step or first.summary then
    return { path = path, kind = "run", points = { point_of_run(records, file) }, tables = {} }
  end
  fail(path, "neither rows of a sweep, nor steps of a run, nor a trace, nor tables of bench")
end

--- All files as one: points are numbered anew; of equal labels the later ones get their sweep's
--- name in front, or a number behind.
---@param paths string[]
function report_read.all(paths)
  local inputs, points, tables, arenas, used = {}, {}, {}, {}, {}
  for i, path in ipairs(paths) do inputs[i] = report_read.open(path) end
  for _, input in ipairs(inputs) do
    for _, point in ipairs(input.points) do
      local label = tostring(point.label)
      if used[label] and point.sweep then label = ("%s: %s"):format(point.sweep, label) end
      used[label] = (used[label] or 0) + 1
      if used[label] > 1 then label = ("%s (%d)"):format(label, used[label]) end
      points[#points + 1] = point
      point.point, point.label = #points, label
    end
    for _, one in ipairs(input.tables) do tables[#tables + 1] = one end
    for _, one in ipairs(input.arenas or {}) do arenas[#arenas + 1] = one end
  end
  return { inputs = inputs, points = points, tables = tables, arenas = arenas }
end

return report_read
