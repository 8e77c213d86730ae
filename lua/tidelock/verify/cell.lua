--- verify/cell.lua - runs one cell of `./tl verify` and takes down every bit that it promises.
---
---     trail    { { "step 1: loss", "40b06ec5" }, { "step 1: grad norm", .. },
---                { "step 1: layers.0.attention.q.grad", "7836ebab.." }, .., { "weights", .. } }
---
--- Gradients are those before clipping. Two trails agree, or the first entry that differs is named.
local child = require "tidelock.machine.child"
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local log = require "tidelock.run.log"
local order = require "tidelock.verify.order"
local requests = require "tidelock.plan.requests"
local sample = require "tidelock.verify.sample"
local screen = require "tidelock.text.screen"
local sorted_keys = require "tidelock.text.sorted_keys"

local cell = {}

local watch = "log.watch={\"*.grad:hash\"}"
local outside_seconds = 600

--- The recipe of a cell of this request.
function cell.recipe(request, words, one, steps)
  local recipe = requests.of(request, words)
  if one.order then return order.recipe(recipe, one.order, steps) end
  return one.sample and sample.recipe(recipe, one.sample) or recipe
end

local function add_step(trail, step, losses_only)
  local function add(what, bits)
    trail[#trail + 1] = { ("step %d: %s"):format(step.step, what), bits }
  end
  add("loss", screen.bits(step.loss_bits))
  if losses_only then return end
  add("grad norm", screen.bits(step.grad_norm_bits))
  for _, name in ipairs(sorted_keys(step.watch or {})) do
    add(name:gsub(":hash$", ""), step.watch[name])
  end
end

--- The logits of the first sample.
local function logits_of(run, one)
  local all = run:kept "logits"
  return all:narrow(1, 1, all:shape()[1] // one.sample.batch)
end

--- Runs it here. Returns the trail; `run` stays open for keep(run).
local function inside(request, words, one, steps, keep)
  local options = { threads = request.options.threads, keep = one.sample and { "logits" } or nil }
  for name, value in pairs(one.start or {}) do options[name] = value end
  local started = requests.guarded(driver.start, cell.recipe(request, words, one, steps),
    options)
  local run <close> = started
  local trail, forward = { key = run.plan.key }, one.sample and one.sample.forward
  for _ = 1, forward and 1 or steps do
    local step = run:step()
    add_step(trail, step, forward)
    if one.sample then
      trail[#trail + 1] = { ("step %d: its logits"):format(step.step), logits_of(run, one):hash() }
    end
  end
  if not forward then trail[#trail + 1] = { "weights", run:weights_hash() } end
  if keep then keep(run) end
  return trail
end

--- mpirun for `ranks` processes of this machine, or nil and why not.
local function mpirun(ranks)
  local module = core.files.realpath "/proc/self/exe":gsub("[^/]*$", "") .. "lib/tidelock/mpi.so"
  if not core.files.exists(module) then return nil, "this build has no MPI" end
  if not os.execute "command -v mpirun >/dev/null 2>&1" then return nil, "there is no mpirun" end
  return ("mpirun --oversubscribe -np %d"):format(ranks), "OMPI_ALLOW_RUN_AS_ROOT=1 "
    .. "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
end

local function remove_all(folder)
  for _, name in ipairs(core.files.list(folder) or {}) do
    local path = folder .. "/" .. name
    if core.files.is_directory(path) then remove_all(path) else os.remove(path) end
  end
  os.remove(folder)
end

--- Runs it in processes of their own, by `run --jsonl`, and reads the trail from the log.
local function outside(request, words, one, steps)
  local base = os.tmpname()
  local command = { "run", request.recipe, table.unpack(request.overrides) }
  table.move(words, 1, #words, #command + 1, command)
  local rest = { "--stop-at", steps, "--jsonl", base .. ".jsonl", "--runs", base .. ".runs",
    "--quiet" }
  if request.options.point then
    rest[#rest + 1], rest[#rest + 2] = "--point", request.options.point
  end
  table.move(rest, 1, #rest, #command + 1, command)
  local before, variables = nil, one.outside.simd and "TL_SIMD=" .. one.outside.simd
  if one.outside.ranks then
    local why
    before, why = mpirun(one.outside.ranks)
    if not before then
      os.remove(base)
      return nil, why
    end
    variables = why
  end
  local _, ended, complaint = child.run(command, outside_seconds, before, variables)
  local trail = {}
  for _, record in ipairs(log.read(base .. ".jsonl") or {}) do
    if record.step then add_step(trail, record) end
    if record.summary then trail[#trail + 1] = { "weights", record.weights_hash } end
  end
  os.remove(base)
  os.remove(base .. ".jsonl")
  remove_all(base .. ".runs")
  local reason = child.reason(ended)
  if not reason then return trail end
  local text = complaint:match "[^\n]+" or ""
  if ended.status == 2 then return nil, text end
  return nil, ("%s: %s"):format(reason, complaint:match "[^\n]*[%a%d][^\n]*" or text), true
end

--- Runs a cell with these overrides: its trail; or nil, the reason, and whether it had started:
--- then it failed, else it cannot be here.
---@param keep? fun(run: tidelock.Run) # called at the end, where it runs here
---@return table? trail
---@return string? reason
---@return boolean? failed
function cell.trail(request, words, one, steps, keep)
  local all = table.move(words, 1, #words, 1, {})
  all[#all + 1] = watch
  if one.outside then return outside(request, all, one, steps) end
  local ok, trail = pcall(inside, request, all, one, steps, keep)
  if ok then return trail end
  if type(trail) ~= "table" then return nil, trail, true end
  return nil, trail.message
end

--- All gradients of the last step as tensors, and the logits of a sample alone.
function cell.tensors(request, words, one, steps)
  local found = {}
  cell.trail(request, words, one, steps, function(run)
    for _, name in ipairs(require("tidelock.run.kept").names(run, "*.grad")) do
      if not (one.sample and one.sample.forward) then found[name] = run:kept(name) end
    end
    if one.sample then found.logits = logits_of(run, one) end
  end)
  return found
end

--- One hash for a trail.
function cell.hash(trail)
  local words = {}
  for i, item in ipairs(trail) do words[i] = item[2] end
  return core.hash(table.concat(words, " ")):sub(1, 8)
end

--- The first place where two trails differ, in words.
function cell.first_difference(head, trail)
  for i = 1, math.max(#head, #trail) do
    local x, y = head[i], trail[i]
    if not x or not y or x[2] ~= y[2] then
      return ("%s %s | %s"):format((x or y)[1], x and x[2] or "nothing", y and y[2] or "nothing")
    end
  end
end

--- The step of the first difference.
function cell.first_step(head, trail)
  for i, item in ipairs(head) do
    if not trail[i] or trail[i][2] ~= item[2] then
      return math.tointeger(tonumber(item[1]:match "^step (%d+)"))
    end
  end
end

return cell
