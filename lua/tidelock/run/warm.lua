--- warm.lua - weights that do not start from random numbers: functions of the index, earlier runs.
local beside = require "tidelock.text.beside"
local core = require "tidelock.core"
local earlier = require "tidelock.model.earlier"
local experts = require "tidelock.plan.experts"
local stored = require "tidelock.run.stored"
local suggest = require "tidelock.text.suggest"
local weights = require "tidelock.model.weights"

local warm = {}

--- The part of a whole (rows, cols) tensor that a rank holds, padded rows as zeros.
local function shard(param, whole, row_first, col_first)
  local rows, cols = param.rows, param.cols
  local true_rows = math.max(0, math.min(rows, param.weight.rows - row_first))
  local pieces = {}
  if col_first == 0 and cols == param.weight.cols then
    pieces[1] = { tensor = whole, rows = true_rows, cols = cols, source_row = row_first }
  else
    local flat = core.assemble("f32", { param.weight.rows * param.weight.cols },
      { { tensor = whole, rows = param.weight.rows * param.weight.cols, cols = 1 } })
    for r = 0, true_rows - 1 do
      for c = 0, cols - 1 do
        pieces[#pieces + 1] = {
          tensor = flat, rows = 1, cols = 1, source_row = (row_first + r) * param.weight.cols
            + col_first + c,
          row_first = r, col_first = c,
        }
      end
    end
  end
  return core.assemble("f32", { rows, cols }, pieces)
end

--- Writes a whole f32 tensor (rows, cols) into the shards of all ranks that hold the weight.
function warm.set(run, param, whole)
  local emit = require "tidelock.plan.stages.emit"
  for index, entry in ipairs(run.table) do
    local at = entry.coordinates
    local persistent = run.plan.ranks[experts.plan_index(run.spec.layout, at)].persistent
    local weight, master = persistent["weight " .. param.name], persistent["master " .. param.name]
    if weight and weight.tensor then
      local part = shard(param, whole, emit.resolve(param.row_first, at.tp),
        emit.resolve(param.col_first, at.tp))
      if master and master.tensor then run.ranks:write(index - 1, master.tensor, part) end
      if param.fields.dtype ~= "f32" then
        local rounded = core.tensor(param.fields.dtype, part:shape())
        core.call("cast", { part }, { rounded }, {})
        part = rounded
      end
      run.ranks:write(index - 1, weight.tensor, part)
    end
  end
end

local function from_function(param)
  local rows, cols = param.weight.rows, param.weight.cols
  local numbers = weights.tabulate(param.weight, param.fields.init)
  return core.tensor("f32", { rows, cols }, numbers)
end

--- Raises what is wrong with `from` of a weight, at the line that says it: a rule, or the weight's.
local function fail(run, param, text, ...)
  local rule = param.fields.by.from:match "^rule (%d+)$"
  local path = rule and "weights[" .. rule .. "]" or param.name
  local site = rule and run.spec.site(path) or param.weight.site
  error(("%s: %s.from: "):format(site, path) .. text:format(...), 0)
end

--- The weights of an earlier run: { names, of = name -> file }.
local function open(run, param, folder)
  local paths, missing = earlier.files(folder)
  if not core.files.is_directory(folder) then
    fail(run, param, "there is no folder %s: run the recipe that makes it first%s", folder,
      beside.hint(folder, true))
  elseif missing then
    fail(run, param, "%s holds no %s, which belongs to the weights there", folder, missing)
  elseif #paths == 0 then
    fail(run, param, "%s holds no weights.safetensors: that run did not come to its end", folder)
  end
  local names, of = {}, {}
  for _, path in ipairs(paths) do
    local file, message = core.weights.open(path)
    if not file then fail(run, param, "%s", message) end
    for _, name in ipairs(file:names()) do names[#names + 1], of[name] = name, file end
  end
  return { names = names, of = of }
end

local function from_run(run, param, files)
  local folder, name = param.fields.from, param.name
  files[folder] = files[folder] or open(run, param, folder)
  local file = files[folder].of[name]
  if not file then
    fail(run, param, "%s has no weight %s; nearest: %s", folder, name,
      suggest.nearest(name, files[folder].names, 3))
  end
  local t = file:read(name)
  local shape, count = t:shape(), 1
  for _, size in ipairs(shape) do count = count * size end
  if count ~= param.weight.rows * param.weight.cols or shape[1] ~= param.weight.rows then
    fail(run, param, "%s is (%s) in %s and (%d, %d) here", name, table.concat(shape, ", "), folder,
      param.weight.rows, param.weight.cols)
  end
  if t:dtype() == "f32" then return t end
  local wide = core.tensor("f32", shape)
  core.call("cast", { t }, { wide }, {})
  return wide
end

--- Called once, after random initial values are there. Returns the bytes and seconds of reading the
--- model's own files; nothing where it has none.
---@return integer? bytes
---@return number? seconds
function warm.start(run)
  local files, bytes, clock = {}, 0, core.files.seconds()
  for _, param in ipairs(run.plan["local"].params) do
    if param.fields.stored then bytes = bytes + stored.load(run, param)
    elseif param.fields.from then warm.set(run, param, from_run(run, param, files))
    elseif param.fields.init.kind == "function" then warm.set(run, param, from_function(param)) end
  end
  if bytes > 0 then return bytes, core.files.seconds() - clock end
end

return warm
