--- `./tl sweep`: every point of a file, measured, whatever becomes of some of them.
--
--   points -> hash each -> known already? --yes--> its row
--                              |no
--                              v
--               a process of its own, under a time limit -> row -> appended, on the disk
--
-- A crash, a point that takes too long, a layout that cannot be: each is a row with its reason. A
-- row belongs to its recipe hash and to how it was measured (steps, repeats), so a sweep that was
-- killed goes on where it was, and a longer list runs only what is new.

local child = require "tidelock.machine.child"
local core = require "tidelock.core"
local data = require "tidelock.language.data"
local planner = require "tidelock.plan"
local requests = require "tidelock.plan.requests"
local rows = require "tidelock.sweep.rows"
local screen = require "tidelock.text.screen"
local summary = require "tidelock.plan.summary"
local sweep_point = require "tidelock.sweep.point"
local sweep_table = require "tidelock.sweep.table"

local sweep = {}

local steps_default, timeout_default = 6, 600
local version = 1 -- of the rows

--- What data holds, opened once for all points that read it in the same way.
local function fingerprint(spec, known)
  local name = table.concat({ spec.batch.length, spec.model.vocab, spec.policy.seed }, " ")
  known[spec.data] = known[spec.data] or {}
  local of = known[spec.data]
  if not of[name] then
    local source = data.open(spec.data, {
      length = spec.batch.length, vocab = spec.model.vocab, seed = spec.policy.seed,
      vocab_site = spec.site "model.vocab",
    })
    of[name] = source:fingerprint()
  end
  return of[name]
end

--- The points with their hashes: { number, label, id, key?, key_parts?, reason?, told? }.
local function prepare(points, options)
  local list, known = {}, {}
  for i, recipe in ipairs(points) do
    local entry = { number = i, label = recipe.label or recipe.name }
    local good, problem = pcall(function()
      local plan = planner(recipe, "expand")
      local text = options.steps > 0 and fingerprint(plan.spec, known) or nil
      entry.key, entry.hash, entry.key_parts = summary.keys(plan, text)
    end)
    if not good then
      entry.status, entry.reason = sweep_point.refusal(problem)
      entry.told = type(problem) == "table" and problem.message -- a mistake on each line
    end
    local words = { entry.hash or entry.label .. "\n" .. entry.reason, options.steps,
      options.repeats }
    entry.id = core.hash(table.concat(words, "\n"))
    list[i] = entry
  end
  return list
end

--- What is wrong with a point's words of the command line, a line each.
local function complaints(entry)
  local lines = {}
  for text in (entry.told or ""):gmatch "[^\n]+" do
    if text:sub(1, 13) == "command line:" then lines[#lines + 1], lines[text] = text, true end
  end
  return lines
end

--- A word of the command line that every point refuses is a mistake there, and no row, whatever
--- else is wrong with one of them.
local function check_words(list)
  local common = list[1] and complaints(list[1]) or {}
  for _, entry in ipairs(list) do
    local own, both = entry.status == "refused" and complaints(entry) or {}, {}
    for _, text in ipairs(common) do both[#both + 1] = own[text] and text end
    common = both
  end
  if #common == 0 then return end
  error({ status = 2, message = table.concat(common, "\n")
    .. "\nno point takes this; nothing was started" }, 0)
end

--- Points that must agree have one key; else says which part of the key splits the first two.
local function check_keys(list)
  local first
  for _, entry in ipairs(list) do
    if entry.key then first = first or entry end
    if entry.key and entry.key ~= first.key then
      local parts = {}
      for name, hash in pairs(entry.key_parts) do
        if hash ~= first.key_parts[name] then parts[#parts + 1] = name end
      end
      table.sort(parts)
      error({ status = 2, message = ("tidelock: the points are to have the same bits, and point %d "
        .. "(%s) has another key than point %d (%s): %s; nothing was started"):format(
        entry.number, entry.label, first.number, first.label, table.concat(parts, ", ")) }, 0)
    end
  end
end

--- The words of the process that measures a point.
local function words_of(request, entry, options)
  local words = { "sweep", request.recipe, table.unpack(request.overrides) }
  local rest = { "--row", entry.number, "--steps", options.steps, "--repeat", options.repeats }
  if options.threads then table.move({ "--threads", options.threads }, 1, 2, #rest + 1, rest) end
  return table.move(rest, 1, #rest, #words + 1, words)
end

--- The row of a point, from its process or from how that ended.
local function measure(request, entry, options)
  local row = { status = entry.status, reason = entry.reason, seconds = 0 }
  if entry.hash then
    local begin = core.files.seconds()
    local text, ended, complaint = child.run(words_of(request, entry, options), options.timeout)
    local good, found = pcall(core.json.decode, text:match "([^\n]*)\n$" or "")
    local reason = child.reason(ended)
    if good and type(found) == "table" and not reason then
      row = found
    else
      local last = complaint:match "([^\n]+)%s*$"
      row.status = ended.timeout and "timeout" or "failed"
      row.reason = (reason or "no row came back") .. (last and ": " .. last or "")
      row.seconds = core.files.seconds() - begin
    end
  end
  row.version, row.id, row.point, row.label = version, entry.id, entry.number, entry.label
  row.sweep, row.key, row.recipe_hash = options.name, entry.key, entry.hash
  row.wanted_steps, row.repeats = options.steps, options.repeats
  return row
end

--- Whether the row that is there stands for the point.
local function stands(row, options)
  if not row then return false end
  return not options.retry or row.status ~= "failed" and row.status ~= "timeout"
end

--- Runs what is not there yet. Returns the rows in order of points, and what ended it early.
local function run_all(list, file, request, options)
  local begin, shown, done, early = core.files.seconds(), {}, {}, nil
  for i, entry in ipairs(list) do
    local row = file:find(entry.id)
    local fresh = not done[entry.id] and not stands(row, options)
    if fresh and not early then
      early = core.interrupted() or options.budget
        and core.files.seconds() - begin >= 60 * options.budget and "the budget"
    end
    if fresh and not early then
      row = measure(request, entry, options)
      file:add(row)
      io.stderr:write(sweep_table.line(row, ("%d/%d  "):format(i, #list)), "\n")
    end
    if row and not (fresh and early) then
      done[entry.id] = true
      shown[#shown + 1] = setmetatable({ point = i, label = entry.label }, { __index = row })
    end
  end
  return shown, early
end

--- The first row whose bits are not those of the first that has bits, and that one.
function sweep.first_difference(list)
  local first
  for _, row in ipairs(list) do
    if row.status == "ok" then
      first = first or row
      if row.bits ~= first.bits then return row, first end
    end
  end
end

--- The options of a request, with their defaults.
local function options_of(request)
  local given = request.options
  local name = request.recipe:match "([^/]*)$":gsub("%.lua$", "")
  return {
    name = name, path = given.jsonl or ("runs/sweep-%s.jsonl"):format(name),
    steps = given.steps or steps_default, repeats = given["repeat"] or 1,
    timeout = given.timeout or timeout_default, budget = given.budget, retry = given.retry,
    threads = given.threads, same_bits = given.assert_same_bits,
  }
end

--- `--row N`: one point, here.
local function print_row(points, request, options)
  local number = request.options.row
  if not points[number] then
    error({ status = 2, message = ("tidelock: --row %d: %s has %s"):format(number, request.recipe,
      screen.plural(#points, "point")) }, 0)
  end
  io.stdout:write(require("tidelock.run.log").line(sweep_point.row(points[number], options)), "\n")
  return 0
end

--- What is said below the table about bits. Returns the text and whether all is well.
local function verdict(list, wanted)
  local ok = 0
  for _, row in ipairs(list) do ok = ok + (row.status == "ok" and 1 or 0) end
  local other, first = sweep.first_difference(list)
  if not wanted or ok == 0 then return "", true end
  if other then
    return ("bits differ: point %d (%s) has %s, point %d (%s) has %s"):format(other.point,
      other.label, other.bits, first.point, first.label, first.bits), false
  end
  return ("same bits: %d of %d (losses, gradient norms, weights)"):format(ok, ok), true
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function sweep.command(request)
  local options, begin = options_of(request), core.files.seconds()
  local points, same = requests.points(request.recipe, request.overrides,
    request.options.row)
  if request.options.row then return print_row(points, request, options) end
  core.catch_interrupts()
  local list = prepare(points, options)
  options.same_bits = options.same_bits or same
  check_words(list)
  if options.same_bits then check_keys(list) end
  local file = rows.open(options.path)
  if file.cut then
    io.stderr:write(("%s: %d bytes of a row that was not finished are gone\n"):format(options.path,
      file.cut))
  end
  local shown, early = run_all(list, file, request, options)
  file:close()
  local text, good = verdict(shown, options.same_bits)
  io.stdout:write(sweep_table.text(shown), sweep_table.counts(shown, #list), "; ",
    ("%.0f s; %s\n"):format(core.files.seconds() - begin, options.path))
  if text ~= "" then io.stdout:write(text, "\n") end
  if early then
    io.stdout:write(("ended by %s; the same command goes on\n"):format(early))
  elseif not sweep_table.none(shown) then
    io.stdout:write(("next  %s report %s\n"):format(screen.program(), options.path))
  end
  if not good then return 1 end
  if early then return requests.stopped end
  local none = sweep_table.none(shown)
  io.stdout:flush()
  if none then io.stderr:write(none, "\n") end
  return none and 1 or 0
end

return sweep
