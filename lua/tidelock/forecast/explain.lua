--- `./tl explain`: any stage of the planner as text, the same bytes every time.
--
--   check          every field of the recipe as it was understood
--   expand         the graph of the model: operators, named dims
--   shard          what one rank computes forward: local shapes, regions, collectives
--   differentiate  its backward pass, and the uses of each weight
--   pipeline       the order of forward and backward passes on the rank
--   place          the arena: peak, what fills it, every buffer
--   emit           the flat program
--
-- A dim of size n is written name=n; numbers that differ between tp ranks are those of --rank.

local experts = require "tidelock.plan.experts"
local forecast = require "tidelock.forecast"
local grid = require "tidelock.plan.layout"
local requests = require "tidelock.plan.requests"
local screen = require "tidelock.text.screen"
local sorted_keys = require "tidelock.text.sorted_keys"
local suggest = require "tidelock.text.suggest"

local explain = {}

explain.stages = { "check", "expand", "shard", "differentiate", "pipeline", "place", "emit" }

-- values ----------------------------------------------------------------------------------------

--- One value on one line, tables with sorted keys, functions by that word.
local function inline(value, open)
  if type(value) == "string" then return ("%q"):format(value) end
  if math.type(value) == "float" then return ("%.9g"):format(value) end
  if type(value) ~= "table" then
    return type(value) == "function" and "function" or tostring(value)
  end
  open = open or {}
  if open[value] then return "(above)" end
  open[value] = true
  local parts = {}
  for _, key in ipairs(sorted_keys(value)) do
    local text = inline(value[key], open)
    parts[#parts + 1] = math.type(key) == "integer" and text or tostring(key) .. " = " .. text
  end
  open[value] = nil
  return #parts == 0 and "{}" or "{ " .. table.concat(parts, ", ") .. " }"
end

--- A table as "path = value" lines; tables that fit on a line stay on one.
local function dump(lines, path, value, open)
  local text = inline(value)
  if type(value) ~= "table" or #text + #path <= 90 then
    lines[#lines + 1] = path .. " = " .. text
    return
  end
  if open[value] then return end
  open[value] = true
  for _, key in ipairs(sorted_keys(value)) do
    local inner = math.type(key) == "integer" and ("%s[%d]"):format(path, key)
      or path .. (path == "" and "" or ".") .. tostring(key)
    dump(lines, inner, value[key], open)
  end
  open[value] = nil
end

--- Numbers that differ between tp ranks, for one of them.
local function resolve(value, tp)
  if type(value) ~= "table" then return value end
  local by_tp = require("tidelock.plan.stages.shard").ByTp
  if getmetatable(value) == by_tp then return value[tp + 1] end
  local list = {}
  for key, item in pairs(value) do list[key] = resolve(item, tp) end
  return list
end

--- Attributes of an operator; a list of dims by its names.
local function attributes(attrs, tp)
  local parts = {}
  for _, key in ipairs(sorted_keys(attrs)) do
    local value = resolve(attrs[key], tp)
    local dims = {}
    for i, dim in ipairs(type(value) == "table" and value or {}) do
      dims[i] = type(dim) == "table" and dim.name or nil
    end
    local text = #dims > 0 and table.concat(dims, ",") or inline(value)
    parts[#parts + 1] = tostring(key) .. "=" .. text
  end
  return table.concat(parts, " ")
end

-- stages ----------------------------------------------------------------------------------------

local writers = {}

function writers.check(plan, lines)
  local spec = {}
  for key, value in pairs(plan.spec) do
    local said = key ~= "widths" -- which is the model's, once more
    if said and (type(value) ~= "function" or key == "loss") then spec[key] = value end
  end
  dump(lines, "", spec, {})
end

local function dims_text(value)
  local parts = {}
  for i, dim in ipairs(value.dims) do
    parts[i] = dim.size and ("%s=%d"):format(dim.name, dim.size) or dim.name
  end
  return ("(%s) %s"):format(table.concat(parts, ", "), value.dtype)
end

local function name_of(value)
  return value.name or value.weight and value.weight.name or value.input or "%" .. value.id
end

local function each(list, fn)
  local parts = {}
  for i = 1, #list do parts[i] = list[i] and fn(list[i]) or "-" end
  return table.concat(parts, ", ")
end

function writers.expand(plan, lines)
  for i, node in ipairs(plan.graph.nodes) do
    local outputs = each(node.outputs, function(y) return name_of(y) .. " " .. dims_text(y) end)
    lines[#lines + 1] = ("%4d  %-6s %-14s %s -> %s  %s  %s"):format(i, tostring(node.layer),
      node.op, each(node.inputs, name_of), outputs,
      attributes(node.attrs or {}, 0), node.site or "")
  end
end

local function local_text(value)
  return ("%s (%d, %d) %s %s"):format(name_of(value), value.rows, value.cols, value.dtype,
    value.region)
end

local function local_nodes(nodes, lines, at)
  for i, node in ipairs(nodes) do
    local outputs = node.use and node.use.value and "gradient of " .. name_of(node.use.value)
      or each(node.outputs, local_text)
    lines[#lines + 1] = ("%4d  %-6s %-18s %s -> %s  %s  %s"):format(i, tostring(node.layer),
      node.op, each(node.inputs, name_of), outputs, attributes(node.attrs or {}, at.tp),
      node.site or "")
  end
end

function writers.shard(plan, lines, at)
  local_nodes(plan["local"].nodes, lines, at)
  lines[#lines + 1] = "weights of this rank: rows, columns, first row, first column"
  for _, param in ipairs(plan["local"].params) do
    lines[#lines + 1] = ("  %-40s %d x %d at (%s, %s)%s"):format(param.name, param.rows, param.cols,
      inline(resolve(param.row_first, at.tp)), inline(resolve(param.col_first, at.tp)),
      param.replicas > 1 and (", the same on %d ranks"):format(param.replicas) or "")
  end
end

function writers.differentiate(plan, lines, at)
  local_nodes(plan.backward.nodes, lines, at)
end

local letters = { forward = "F", backward = "B", input = "I", weight = "W" }

function writers.pipeline(plan, lines, at)
  local counts = {}
  for i, count in ipairs(plan.stages) do counts[i] = tostring(count) end
  lines[#lines + 1] = "layers of each pipeline stage: " .. table.concat(counts, " ")
  local words = {}
  for i, op in ipairs(plan.orders[at.pp + 1]) do
    words[i] = letters[op.phase] .. op.micro .. (op.chunk ~= 0 and "." .. op.chunk or "")
  end
  lines[#lines + 1] = ("pipeline rank %d of %d: %s"):format(at.pp, #plan.orders,
    table.concat(words, " "))
  local rank = plan.ranks[experts.plan_index(plan.spec.layout, at)]
  for _, section in ipairs { "init", "step", "eval" } do
    local range = rank.sections[section]
    if range and range[2] > 0 then
      lines[#lines + 1] = ("section %-5s instructions %d to %d"):format(section, range[1],
        range[1] + range[2] - 1)
    end
  end
end

function writers.place(plan, lines, at)
  local index = experts.plan_index(plan.spec.layout, at)
  local place, rank = plan.places[index], plan.ranks[index]
  lines[#lines + 1] = ("arena %s bytes, lower bound %s, fullest at instruction %d"):format(
    screen.grouped(place.bytes), screen.grouped(place.lower_bound), place.at)
  lines[#lines + 1] = "     offset          bytes    first     last  kind         name"
  for _, buffer in ipairs(rank.buffers) do
    if buffer.first then
      local first = buffer.persistent and 1 or buffer.first
      local last = buffer.persistent and #rank.instructions or buffer.last
      lines[#lines + 1] = ("%11d %14d %8d %8d  %-12s %s"):format(buffer.offset, buffer.bytes,
        first, last, buffer.kind, forecast.buffer_name(rank, buffer))
    end
  end
end

function writers.emit(plan, lines, at)
  local program = plan.programs[experts.program_index(plan.spec.layout, at)]
  local function operand(index)
    if index == 0 then return "-" end
    local tensor, shape = program.tensors[index], {}
    for i, size in ipairs(tensor.shape) do shape[i] = ("%d"):format(size) end
    return ("@%d%s(%s)%s"):format(tensor.offset, tensor.dtype, table.concat(shape, ","),
      program.name_of[index] and ":" .. program.name_of[index] or "")
  end
  lines[#lines + 1] = ("arena %s bytes, %d tensors, %d instructions"):format(
    screen.grouped(program.arena_bytes), #program.tensors, #program.instructions)
  for i, made in ipairs(program.instructions) do
    lines[#lines + 1] = ("%5d  %-9s m%-3d %-18s %s -> %s  %s  %s"):format(i, made.phase,
      made.micro, made.op, each(made.inputs, operand), each(made.outputs, operand),
      attributes(made.attrs, at.tp), program.sites[made.site])
  end
end

--- The text of a stage of a plan that has come at least that far.
---@param plan table
---@param stage string
---@param rank integer? # from 0
function explain.text(plan, stage, rank)
  local lines = {}
  writers[stage](plan, lines, grid.coordinates(plan.spec.layout, rank or 0))
  return table.concat(lines, "\n") .. "\n"
end

-- weights ---------------------------------------------------------------------------------------

local function init_text(init)
  if init.kind == "constant" then return ("constant %g"):format(init.first) end
  if init.kind == "normal" then return ("normal %g"):format(init.second) end
  if init.kind == "uniform" then return ("uniform %g to %g"):format(init.first, init.second) end
  return "function"
end

--- The table of weights: what each is, and which rule said so.
function explain.weights(plan)
  local rows = { { "weight", "shape", "dtype", "init", "decay", "lr x", "by" } }
  for _, weight in ipairs(plan.graph.weights) do
    local own, shape, by = plan.fields[weight.name], {}, {}
    for i, dim in ipairs(weight.dims) do shape[i] = ("%s=%d"):format(dim.name, dim.size) end
    for _, field in ipairs(sorted_keys(own.by)) do
      if own.by[field] ~= "default" then by[#by + 1] = field .. ": " .. own.by[field] end
    end
    rows[#rows + 1] = {
      weight.name, table.concat(shape, " "), own.dtype, own.from and "from " .. own.from
        or own.stored and own.stored.name or init_text(own.init), ("%g"):format(own.decay),
      weight.kind == "state" and "state" or own.frozen and "frozen" or ("%g"):format(own.lr_scale),
      #by > 0 and table.concat(by, ", ") or "defaults",
    }
  end
  local widths = {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, #cell) end
  end
  local lines = {}
  for r, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do cells[i] = ("%-" .. widths[i] .. "s"):format(cell) end
    lines[r] = table.concat(cells, "  "):gsub("%s+$", "")
  end
  return table.concat(lines, "\n") .. "\n"
end

-- command ---------------------------------------------------------------------------------------

local function usage(format, ...)
  error({ status = 2, message = "tidelock: explain: " .. format:format(...) }, 0)
end

local function check_stage(stage)
  for _, name in ipairs(explain.stages) do
    if name == stage then return end
  end
  local near = suggest.nearest(stage, explain.stages)
  usage("--stage %s: no such stage%s; there are %s", stage,
    near and "; did you mean " .. near .. "?" or "", table.concat(explain.stages, ", "))
end

--- The rank whose text is shown for `rank`. A rank beyond the layout is one of more copies of the
--- same model: it runs what its counterpart here runs, and the second result says so.
---@return integer rank
---@return string? note
function explain.shown_rank(layout, rank)
  local world = grid.world(layout)
  if rank < world then return rank end
  local text = "the layout has %s; ranks with the same tp and pp coordinates run the same program: "
    .. "showing rank %d"
  return rank % world, text:format(screen.plural(world, "rank"), rank % world)
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function explain.command(request)
  local options = request.options
  local stage = options.stage or (options.weights and "expand" or "emit")
  check_stage(stage)
  local plan = requests.plan(requests.of(request), stage)
  local rank, note = explain.shown_rank(plan.spec.layout, options.rank or 0)
  if note then io.stderr:write(note, "\n") end
  io.stdout:write(options.weights and explain.weights(plan) or explain.text(plan, stage, rank))
  return 0
end

return explain
