--- verify/rows.lua - the rows of `./tl verify`: a label and, for each cell, how it is run.
---
---     { label = "dp 2, 4", { "layout.dp=2", .. }, { "layout.dp=4", .. } }
---
--- A cell is a list of overrides, and may say more by name:
---     start     options of the driver: { poison = 255, delay_us = 300, threads = 1 }
---     outside   run by other processes: { ranks = 2 } by mpirun, { simd = "portable" }, {}
---     sample    one sample alone or among others: see verify/sample.lua
--- A row may have a family: its cells are compared with the first of that family, not of all.
local blocks = require "tidelock.language.blocks"
local core = require "tidelock.core"
local verify_experts = require "tidelock.verify.experts"

local rows = {}

--- The largest divisor of `n` that is at most `limit`.
local function divisor_below(n, limit)
  for d = math.min(n, limit), 1, -1 do
    if n % d == 0 then return d end
  end
end

--- Overrides for a layout of these axes, the others 1, with a micro-batch size that fits.
function rows.layout(spec, axes)
  local dp = axes.dp or 1
  local micro = divisor_below(math.max(1, spec.batch.samples // dp), spec.batch.micro)
  local words = { "batch.micro=" .. micro }
  for _, axis in ipairs { "tp", "pp", "dp" } do
    words[#words + 1] = ("layout.%s=%d"):format(axis, axes[axis] or 1)
  end
  if #spec.experts > 0 then
    words[#words + 1] = "layout.ep=" .. (axes.ep or axes.tp or 1)
  end
  words[#words + 1] = "layout.schedule=" .. (axes.schedule or "1f1b")
  if axes.schedule == "interleaved" then words[#words + 1] = "layout.virtual_stages=2" end
  return words
end

--- Powers of two from 2 to `most` that divide every one of `numbers`.
local function powers(most, numbers)
  local list, p = {}, 2
  while p <= most do
    local divides = true
    for _, n in ipairs(numbers) do divides = divides and n % p == 0 end
    if divides then list[#list + 1] = p end
    p = 2 * p
  end
  return list
end

local function micro_row(spec)
  local per_rank, others = spec.batch.samples // (spec.layout.dp or 1), {}
  for _, micro in ipairs { 1, 2, per_rank // 2, per_rank } do
    local fits = micro > 0 and per_rank % micro == 0 and micro ~= spec.batch.micro
    if fits and micro ~= others[#others] then others[#others + 1] = micro end
  end
  local row = { label = "micro " .. table.concat(others, ", ") }
  for i, micro in ipairs(others) do row[i] = { "batch.micro=" .. micro } end
  return row
end

local function axis_row(spec, axis, sizes)
  local row = { label = axis .. " " .. table.concat(sizes, ", ") }
  for i, size in ipairs(sizes) do row[i] = rows.layout(spec, { [axis] = size }) end
  return row
end

local function pipeline_row(spec)
  local schedules = { "gpipe", "1f1b", "zb-h1" }
  if spec.model.layers >= 4 then table.insert(schedules, 3, "interleaved") end
  local row = { label = "pp 2 " .. table.concat(schedules, ", ") }
  for i, name in ipairs(schedules) do row[i] = rows.layout(spec, { pp = 2, schedule = name }) end
  return row
end

--- Tiles of products, the first of two heights that are compiled, and of attention's queries: speed
--- only.
local function tile_row()
  local row, names, seen = {}, {}, {}
  for _, tile in ipairs(blocks.gemm_tiles) do
    if (tile[1] == 128 or tile[1] == 64) and not seen[tile[1]] then
      seen[tile[1]], names[#names + 1] = true, ("%d x %d"):format(tile[1], tile[2])
      row[#row + 1] = { "blocks.gemm.m=" .. tile[1], "blocks.gemm.n=" .. tile[2],
        "blocks.gemm.k=" .. tile[3] }
    end
  end
  row.label = "tiles " .. table.concat(names, ", ") .. "; queries 64, 128"
  row[#row + 1], row[#row + 2] = { "blocks.attention.q=64" }, { "blocks.attention.q=128" }
  return row
end

--- Ranks as processes of mpirun.
local function process_row(spec)
  local row = { label = "processes dp 2, tp 2" }
  for _, axis in ipairs { "dp", "tp" } do
    local words = rows.layout(spec, { [axis] = 2 })
    words.outside = { ranks = 2 }
    row[#row + 1] = words
  end
  return row
end

--- What a row of several axes is called: "tp 2 dp 4".
local function name_of(axes)
  local words = {}
  for _, axis in ipairs { "tp", "dp", "pp", "ep" } do
    if (axes[axis] or 1) > 1 then words[#words + 1] = axis .. " " .. axes[axis] end
  end
  if axes.schedule then words[#words + 1] = axes.schedule end
  return #words > 0 and table.concat(words, " ") or "one rank"
end

--- Every layout of `ranks` ranks that the leaves, the samples and the layers allow; schedules go
--- round among those with a pipeline. What else may forbid one is its cell's reason.
---@param turn integer # counts layouts with a pipeline
local function layouts_of(spec, ranks, turn)
  local list, leaves, samples = {}, spec.policy.leaves, spec.batch.samples
  local schedules = { "gpipe", "1f1b", "zb-h1" }
  for tp = 1, ranks do
    for dp = 1, ranks // tp do
      local pp = ranks // (tp * dp)
      local fits = tp * dp * pp == ranks and leaves.tp % tp == 0 and leaves.dp % dp == 0
        and samples % dp == 0 and pp <= spec.model.layers
      if fits then
        turn = turn + (pp > 1 and 1 or 0)
        list[#list + 1] = { tp = tp, dp = dp, pp = pp, ep = #spec.experts > 0 and tp or nil,
          schedule = pp > 1 and schedules[turn % 3 + 1] or nil }
      end
    end
  end
  return list, turn
end

--- `--ranks N`: all layouts of up to N ranks, a row for each number. The leaves and layers end it.
function rows.up_to(spec, most)
  local list, turn, leaves = {}, 0, spec.policy.leaves
  for ranks = 2, math.min(most, leaves.tp * leaves.dp * spec.model.layers) do
    local layouts
    layouts, turn = layouts_of(spec, ranks, turn)
    for first = 1, #layouts, 8 do
      local row, last = { names = {} }, math.min(#layouts, first + 7)
      for i = first, last do
        row[#row + 1], row.names[#row.names + 1] = rows.layout(spec, layouts[i]),
          name_of(layouts[i])
      end
      row.label = ("%d ranks, layouts %d to %d"):format(ranks, first, last)
      if #layouts == 1 then row.label = ("%d ranks: %s"):format(ranks, row.names[1]) end
      list[#list + 1] = row
    end
  end
  return list
end

local axes_known = { tp = true, dp = true, pp = true, ep = true, schedule = true }

--- What keeps a layout that was asked for from running, or nil.
local function misfit(spec, axes)
  local leaves, tp, dp, pp = spec.policy.leaves, axes.tp or 1, axes.dp or 1, axes.pp or 1
  if leaves.tp % tp ~= 0 then
    return ("tp %d does not divide the %d leaves of tp"):format(tp, leaves.tp)
  elseif leaves.dp % dp ~= 0 then
    return ("dp %d does not divide the %d leaves of dp"):format(dp, leaves.dp)
  elseif spec.batch.samples % dp ~= 0 then
    return ("dp %d does not divide the %d samples of a step"):format(dp, spec.batch.samples)
  elseif pp > spec.model.layers then
    return ("pp %d is more than the %d layers"):format(pp, spec.model.layers)
  end
end

--- `--layouts "tp=2,dp=2;pp=2,schedule=zb-h1"`: a row for each. Those that cannot run are told
--- before anything runs, all at once.
function rows.listed(spec, text)
  local list, wrong = {}, {}
  for part in text:gmatch "[^;]+" do
    local axes = {}
    for word in part:gmatch "[^,%s]+" do
      local key, value = word:match "^(%a+)=(.+)$"
      local number = math.tointeger(tonumber(value))
      if not axes_known[key] or key ~= "schedule" and (not number or number < 1) then
        error({ status = 2, message = ("tidelock: verify: --layouts: %q is no axis of a layout; "
          .. "they are written tp=2,dp=2;pp=2,schedule=zb-h1"):format(word) }, 0)
      end
      axes[key] = number or value
    end
    local why = misfit(spec, axes)
    if why then wrong[#wrong + 1] = ("tidelock: verify: --layouts: %s: %s"):format(part, why) end
    list[#list + 1] = { label = name_of(axes), rows.layout(spec, axes) }
  end
  if #wrong > 0 then error({ status = 2, message = table.concat(wrong, "\n") }, 0) end
  return list
end

--- Rows that make a run harder, not other: `--stress`.
local function stress_rows(spec, list)
  local function add(label, ...)
    local row = { label = label }
    for i, start in ipairs { ... } do row[i] = { start = start } end
    list[#list + 1] = row
    return row
  end
  add("poison NaN, zeros", { poison = 255 }, { poison = 0 })
  add("threads 1, 3, 7", { threads = 1 }, { threads = 3 }, { threads = 7 })
  add("tasks of threads shuffled, also of 3", { shuffle = 1 }, { shuffle = 2, threads = 3 })
  local row = add("delays 50, 700 us", { delay_us = 50 }, { delay_us = 700 })
  local leaves = spec.policy.leaves
  if leaves.tp % 2 == 0 and leaves.dp % 2 == 0 and spec.batch.samples % 2 == 0 then
    row.label = "delays 50, 700 us, also tp 2 dp 2"
    for i, delay in ipairs { 50, 700 } do
      row[2 + i] = rows.layout(spec, { tp = 2, dp = 2 })
      row[2 + i].start = { delay_us = delay, poison = 255 }
    end
  end
  local levels, simd = { label = "processor portable, avx2" }, core.build().simd
  for i, level in ipairs { "portable", "avx2" } do
    if simd ~= "portable" then levels[i] = { outside = { simd = level } } end
  end
  list[#list + 1] = levels
end

local function add_all(list, more) table.move(more, 1, #more, #list + 1, list) end

--- The rows of the matrix.
---@param spec table # plan.spec of the recipe as written
---@param options? table # all, ranks, layouts, stress, repeats: as the command has them
---@param sample_rows? table[] # of verify/sample.lua
function rows.of(spec, options, sample_rows)
  options = options or {}
  local leaves, samples = spec.policy.leaves, spec.batch.samples
  local list = { { label = "as written", {} }, { label = "again" }, micro_row(spec), tile_row() }
  for i = 1, options["repeat"] or 1 do list[2][i] = {} end
  if options["repeat"] then list[2].label = ("again, %d times"):format(options["repeat"]) end
  table.insert(list, 3, { label = "another process", { outside = {} } })
  if options.layouts then
    add_all(list, rows.listed(spec, options.layouts))
  elseif options.ranks then
    add_all(list, rows.up_to(spec, options.ranks))
  else
    list[#list + 1] = axis_row(spec, "dp", powers(8, { leaves.dp, samples }))
    list[#list + 1] = axis_row(spec, "tp", powers(8, { leaves.tp }))
    if spec.model.layers >= 2 then
      list[#list + 1] = pipeline_row(spec)
      if leaves.tp % 2 == 0 and leaves.dp % 2 == 0 and samples % 2 == 0 then
        list[#list + 1] = {
          label = "tp 2 pp 2 dp 2", rows.layout(spec, { tp = 2, pp = 2, dp = 2 }),
        }
      end
    end
    add_all(list, verify_experts.rows(spec, options.all))
  end
  if leaves.tp % 2 == 0 and leaves.dp % 2 == 0 and samples % 2 == 0 then
    list[#list + 1] = process_row(spec)
  end
  if options.stress then stress_rows(spec, list) end
  add_all(list, sample_rows or {})
  local filled = {}
  for _, row in ipairs(list) do
    if #row > 0 then filled[#filled + 1] = row end
  end
  return filled
end

return rows
