--- `./tl plan`: what a recipe needs in its layout. Nothing runs, no data is opened, no device used.
--
--   quickstart.lua   1,024 ranks, planned in 0.4 s; no device used
--     model      853,120 weights in 39 tensors: 4 layers, ..
--     layout     tp 4, dp 128, pp 2 (1f1b, 1 micro-batch, bubble 50%)
--     memory     of a rank of pipeline stage 0, in MiB: the fullest stage
--       weights      1.1
--       ..
--     peak       instruction 412 linear (recipes/quickstart.lua:7); the largest tensors there: ..
--     messages   all_reduce over tp: 12 a step, 3.1 MiB in their operands
--     work       1.2 TFLOP a step, 1.2 GFLOP a rank
--     serving    16 requests of 256 tokens: 64 pages of 64 positions; where the recipe has serve
--
-- Ranks that are alike are planned once: one for each pipeline and tensor-parallel coordinate.

local cluster = require "tidelock.forecast.cluster"
local core = require "tidelock.core"
local experts_plan = require "tidelock.forecast.experts_plan"
local experts = require "tidelock.plan.experts"
local flops = require "tidelock.forecast.flops"
local grid = require "tidelock.plan.layout"
local requests = require "tidelock.plan.requests"
local screen = require "tidelock.text.screen"
local serving = require "tidelock.plan.serving"
local serving_memory = require "tidelock.plan.serving_memory"
local summaries = require "tidelock.plan.summary"

local forecast = {}

local kind_order = { "weights", "gradients", "optimizer", "activations" }

--- Kinds of memory, the usual ones first, the others by name.
function forecast.kinds(kinds)
  local list, known = {}, {}
  for _, name in ipairs(kind_order) do
    if kinds[name] then list[#list + 1] = { name, kinds[name] } end
    known[name] = true
  end
  local others = {}
  for name in pairs(kinds) do
    if not known[name] then others[#others + 1] = name end
  end
  table.sort(others)
  for _, name in ipairs(others) do list[#list + 1] = { name, kinds[name] } end
  return list
end

--- The pipeline rank whose arena is largest, from 1.
local function fullest(places)
  local best = 1
  for i, place in ipairs(places) do
    if place.bytes > places[best].bytes then best = i end
  end
  return best
end

--- What a buffer holds: its name, or the instruction that makes it.
function forecast.buffer_name(rank, buffer)
  if buffer.name then return buffer.name end
  local made = rank.instructions[buffer.first]
  return ("%s of %s, %s %d"):format(made.op, made.path ~= "" and made.path or made.site or "?",
    "micro-batch", made.micro)
end

--- Where the fullest stage is fullest: { stage, place, at, op, site, largest }, with
--- largest a list of { name, bytes }.
function forecast.peak(plan)
  local stage = fullest(plan.places)
  local place, rank = plan.places[stage], plan.ranks[stage]
  local placed, largest = {}, {}
  for _, buffer in ipairs(rank.buffers) do
    if buffer.first then placed[#placed + 1] = buffer end
  end
  for i, item in ipairs(place.largest) do
    largest[i] = { name = forecast.buffer_name(rank, placed[item.index]), bytes = item.size }
  end
  local made = rank.instructions[place.at]
  return { stage = stage, place = place, at = place.at, op = made.op, site = made.site or "?",
    largest = largest }
end

local function memory_lines(plan, lines)
  local peak = forecast.peak(plan)
  lines[#lines + 1] = ("  memory     of a rank of pipeline stage %d, in MiB"):format(
    (peak.stage - 1) // plan.spec.layout.ep)
  for _, kind in ipairs(forecast.kinds(peak.place.kinds)) do
    lines[#lines + 1] = ("    %-12s %10s"):format(kind[1], screen.mib(kind[2]))
  end
  lines[#lines + 1] = ("    %-12s %10s   lower bound %s"):format("arena",
    screen.mib(peak.place.bytes), screen.mib(peak.place.lower_bound))
  lines[#lines + 1] = ("  peak       instruction %d %s (%s); the largest tensors there:"):format(
    peak.at, peak.op, peak.site)
  for _, item in ipairs(peak.largest) do
    lines[#lines + 1] = ("    %10s   %s"):format(screen.mib(item.bytes), item.name)
  end
end

--- Bytes that each rank of a stage sends in a step, by collective.
local function traffic_lines(plan, lines)
  local range = plan.ranks[1].sections.step
  local bytes, names = {}, {}
  for i = range[1], range[1] + range[2] - 1 do
    local made = plan.ranks[1].instructions[i]
    local group = made.attrs.group
    if group then
      local name = made.op .. " over " .. group
      local view = made.inputs[1] or made.outputs[1]
      if not bytes[name] then
        bytes[name] = { 0, 0 }
        names[#names + 1] = name
      end
      bytes[name][1] = bytes[name][1] + 1
      bytes[name][2] = bytes[name][2] + (view and view.buffer.bytes or 0)
    end
  end
  table.sort(names)
  for i, name in ipairs(names) do
    lines[#lines + 1] = ("  %-10s %s: %d a step, %s MiB in their operands"):format(
      i == 1 and "messages" or "", name, bytes[name][1], screen.mib(bytes[name][2]))
  end
end

--- The schedule and its bubble, if every pass cost the same: "1f1b, 4 micro-batches, bubble 20%".
--- Nil without a pipeline.
function forecast.pipeline_text(plan)
  local layout = plan.spec.layout
  if layout.pp == 1 then return nil end
  local name = type(layout.schedule) == "string" and layout.schedule or "own schedule"
  return screen.pipeline_text(name, plan.micros, summaries.bubble(plan))
end

--- The text of a whole plan.
---@param plan table
---@param file string
---@param seconds number # that planning took
function forecast.text(plan, file, seconds)
  local spec, summary = plan.spec, summaries.of(plan)
  local layout = screen.layout_text(spec.layout, forecast.pipeline_text(plan))
  local work = flops.of_step(plan.graph, spec.batch)
  local lines = {
    ("%s   %s, planned in %.1f s; no device used"):format(file:match "[^/]+$",
      screen.plural(summary.ranks, "rank"), seconds),
    "  model      " .. screen.model_text(summary),
    ("  batch      %s of %s, %s of %d on a rank"):format(
      screen.plural(spec.batch.samples, "sample"), screen.plural(spec.batch.length, "token"),
      screen.plural(plan.micros, "micro-batch"), spec.batch.micro),
    ("  numbers    %s (%s), %s"):format(spec.dtype, spec.policy.arithmetic,
      screen.policy_text(spec.policy)),
    "  layout     " .. (layout ~= "" and layout or "one rank"),
  }
  memory_lines(plan, lines)
  experts_plan.add(plan, lines)
  traffic_lines(plan, lines)
  lines[#lines + 1] = ("  work       %s a step, %s a rank"):format(screen.flop(work),
    screen.flop(work / summary.ranks))
  for i, line in ipairs(lines) do lines[i] = screen.folded(line) end
  return table.concat(lines, "\n")
end

--- What generation needs on a rank, as lines below the plan.
---@param plan tidelock.ServingPlan
function forecast.serving_text(plan)
  local stage = fullest(plan.places)
  local sizes, place, layout = plan.sizes, plan.places[stage], plan.spec.layout
  local lines = {
    ("  serving    %s of %s: %s of %d positions; steps of at most %s"):format(
      screen.plural(sizes.requests, "request"), screen.plural(sizes.context, "token"),
      screen.plural(sizes.pages, "page"), sizes.page, screen.plural(sizes.rows, "row")),
  }
  for _, kind in ipairs(forecast.kinds(place.kinds)) do
    local each = kind[1] == "cache" and ("   %s bytes a token"):format(
      screen.grouped(kind[2] // (sizes.pages * sizes.page))) or ""
    lines[#lines + 1] = ("    %-12s %10s%s"):format(kind[1], screen.mib(kind[2]), each)
  end
  lines[#lines + 1] = ("    %-12s %10s   of a rank, tp %d%s"):format("arena",
    screen.mib(place.bytes), layout.tp, layout.pp > 1 and ", pp " .. layout.pp or "")
  local memory = serving_memory.of_rank(plan, stage)
  if memory.all > memory.arena then
    lines[#lines + 1] = ("    %-12s %10s   on its GPU: passes of few rows %s, kernels %s"):format(
      "beside it", screen.mib(memory.all - memory.arena), screen.mib(memory.passes),
      screen.mib(memory.kernels))
  end
  lines[#lines + 1] = ("    %-12s %10s   of the host: the list of pages, at most"):format("list",
    screen.mib(serving_memory.of_list(sizes)))
  return table.concat(lines, "\n")
end

--- Refuses a name of no known kind, before anything is planned.
local function memory_kind(path) require("tidelock.forecast.memory_file").kind(path) end

--- `--memory FILE`: the arena of a rank of the fullest pipeline stage, or of `--rank N`.
local function write_memory(plan, request)
  local memory_file = require "tidelock.forecast.memory_file" -- it needs this module
  local options, layout = request.options, plan.spec.layout
  local index, world = fullest(plan.places), grid.world(layout)
  if options.rank then
    if options.rank >= world then
      local text = "tidelock: plan: --rank %d: the layout has ranks 0 to %d"
      error({ status = 2, message = text:format(options.rank, world - 1) }, 0)
    end
    index = experts.plan_index(layout, grid.coordinates(layout, options.rank))
  end
  local title = ("%s, %s"):format(request.recipe:match "[^/]+$", options.rank
    and "rank " .. options.rank or "a rank of the fullest stage")
  memory_file.write(options.memory, memory_file.view_of_plan(plan, index, title))
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function forecast.command(request)
  local begin = core.files.seconds()
  local facts = request.options.cluster and cluster.read(request.options.cluster)
  if request.options.search then
    return require("tidelock.forecast.search").command(request, facts)
  end
  if request.options.ranks then
    error({ status = 2, message = "tidelock: plan: --ranks goes with --search; layout.dp=4 and its "
      .. "kin set the ranks of one layout" }, 0)
  end
  if request.options.rank and not request.options.memory then
    error({ status = 2, message = "tidelock: plan: --rank goes with --memory FILE; what one rank "
      .. "computes is in ./tl explain RECIPE --rank N" }, 0)
  end
  if request.options.memory then memory_kind(request.options.memory) end
  local recipe = requests.of(request)
  if facts and facts.device and recipe:site "device" ~= "command line" then
    recipe = recipe:with { device = facts.device }
  end
  local plan = requests.plan(recipe, nil, facts)
  local text = forecast.text(plan, request.recipe, core.files.seconds() - begin)
  if plan.spec.serve then -- before anything is printed: what is refused has no plan
    text = text .. "\n" .. forecast.serving_text(requests.guarded(serving.plan, recipe))
  end
  io.stdout:write(text, "\n")
  for _, notes in ipairs { plan.spec.notes or {}, plan.doubts } do
    for _, note in ipairs(notes) do io.stderr:write("note: ", note, "\n") end
  end
  if facts then
    local cluster_text = require "tidelock.forecast.cluster_text" -- it needs this module
    io.stdout:write(cluster_text.of(plan, facts), "\n")
  end
  if request.options.memory then write_memory(plan, request) end
  local file = request.options.program
  if file then require("tidelock.forecast.plan_file").write(plan, file) end
  return 0
end

return forecast
