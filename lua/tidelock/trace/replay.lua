--- replay.lua - `./tl replay RUN --step N`: one step of a run again, here, with the run's bits.
---
---     replay   runs/llama-81c2, step 412, from checkpoint 400; one thread rank of the host
---     steps    401 to 411 equal to the log
---     step 412 micro-batch 0, instruction 37 rms_norm_grad (llama.lua:4): element [0, 0] of .. NaN
---     input 1  x of layers.1.norm, f32 (256, 128): largest 3.1e+04
---     output 1 dx of layers.1.sum.grad, f32 (256, 128): 256 NaN, the first at [0, 0]
---
--- The recipe comes from the run's folder (origin.lua). Whatever layout and device the run had, one
--- rank of the host gives its bits; overrides choose another layout. Of a run that failed the step
--- is the one after the last in its log. With `--repl` the tensors can be looked at.
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local log = require "tidelock.run.log"
local origin = require "tidelock.language.origin"
local recorder = require "tidelock.run.recorder"
local printed = require "tidelock.text.printed"
local replays = require "tidelock.trace.replays"
local requests = require "tidelock.plan.requests"
local runs = require "tidelock.run.runs"
local screen = require "tidelock.text.screen"

local replay = {}

local function usage(format, ...)
  error({ status = 2, message = "tidelock: replay: " .. format:format(...) }, 0)
end

local function line(label, format, ...)
  print(screen.summary_line(label, format:format(...)))
end

--- The run's recipe on one rank of the host, with the leaves that the run's layout gave it.
local function recipe_of(folder, words)
  local spec = requests.plan(requests.recipe(folder, {}), "check").spec
  local leaves, all = spec.policy.leaves, { "device=host" }
  local asked = false
  for _, word in ipairs(words) do asked = asked or word:find "^layout[.=]" ~= nil end
  if not asked then all[2] = "layout={ dp = 1 }" end
  all[#all + 1] = ("policy.leaves={ tp = %d, dp = %d, cp = %d }"):format(leaves.tp, leaves.dp,
    leaves.cp or 1)
  return requests.recipe(folder, table.move(words, 1, #words, #all + 1, all))
end

--- The records of the run's log by step, and the last step in it.
local function logged(folder)
  local records, last = {}, 0
  for _, record in ipairs(log.read(folder .. "/log.jsonl") or {}) do
    if record.step then records[record.step], last = record, math.max(last, record.step) end
  end
  return records, last
end

--- Which step: --step, else of a run that failed the one after its log, else the last one.
local function step_of(folder, options, last)
  if options.step then return options.step end
  if runs.summary(folder) then return last end
  return last + 1
end

--- "all 32 finite, largest 1.5"; of a tensor that is not: how many, and the first.
---@param t tidelock.Tensor
---@return string
function replay.describe(t)
  local dtype, shape = t:dtype(), t:shape()
  local text = ("%s (%s)"):format(dtype, table.concat(shape, ", "))
  if dtype ~= "f32" and dtype ~= "bf16" then return text end
  local bad, first, largest = 0, nil, 0
  for i, value in ipairs(t:flat()) do
    if value ~= value or math.abs(value) == math.huge then
      bad, first = bad + 1, first or i - 1
    else
      largest = math.max(largest, math.abs(value))
    end
  end
  if bad == 0 then return ("%s: all finite, largest %.4g"):format(text, largest) end
  local cols = shape[#shape]
  return ("%s: %d not finite, the first at [%d, %d]"):format(text, bad, first // cols,
    first % cols)
end

--- Operands of an instruction of a rank, as they are after it: { inputs, outputs }.
local function operands(run, rank, index)
  local program = run.plan.programs[run.table[rank + 1].program]
  local made = program.instructions[index]
  local row
  for _, one in ipairs(core.ops()) do
    if one.name == made.op then row = one end
  end
  local found = {}
  for _, side in ipairs { "inputs", "outputs" } do
    local names, list = {}, {}
    for name in row[side]:gmatch "[%w_]+" do names[#names + 1] = name end
    for i, tensor in ipairs(made[side]) do
      if tensor > 0 then
        local t = run.ranks:read(rank, tensor)
        list[i] = t
        line(("%s %d"):format(side:sub(1, -2), i), "%s of %s, %s", names[i] or names[#names] or "?",
          (program.name_of or {})[tensor] or "tensor " .. tensor - 1, replay.describe(t))
      end
    end
    found[side] = list
  end
  return found
end

--- Reads lines from the standard input: expressions are printed, statements run.
local function console(values)
  local env = setmetatable(values, { __index = _G })
  values.tl = require "tidelock"
  local shown = core.files.isatty(0)
  print(values.inputs and "run, inputs and outputs are there: inputs[1]:to_table()"
    or values.step and "run and step are there: step.loss, run:weight \"NAME\""
    or "run is there: run:weight \"NAME\"")
  while true do
    if shown then io.stdout:write "> " io.stdout:flush() end
    local text = io.read "l"
    if not text then return end
    local chunk, message = load("return " .. text, "=stdin", "t", env)
    if not chunk then chunk, message = load(text, "=stdin", "t", env) end
    local results = table.pack(pcall(chunk or error, message))
    local words = {}
    for i = 2, results.n do words[#words + 1] = printed(results[i]) end
    if #words > 0 then print(table.concat(words, "\t")) end
  end
end

local function bits_of(step)
  return screen.bits(step.loss_bits), screen.bits(step.grad_norm_bits)
end

--- Runs the steps before `last`; those that the log has must have its bits.
local function catch_up(run, records, last)
  local first, equal = run.done + 1, 0
  for number = first, last - 1 do
    local step, known = run:step(), records[number]
    if known then
      local loss, norm = bits_of(step)
      if loss ~= known.loss_bits or norm ~= known.grad_norm_bits then
        line("steps", "%d gives loss %s, gradient norm %s; the log has %s, %s", number, loss, norm,
          known.loss_bits, known.grad_norm_bits)
        return false
      end
      equal = equal + 1
    end
  end
  if equal > 0 then
    line("steps", "%s before it equal to the log", screen.plural(equal, "step"))
  end
  return true
end

--- What the step came to: its bits, beside the log's.
local function told(step, known)
  local loss, norm = bits_of(step)
  line("step " .. step.step, "loss %s (%s), gradient norm %s (%s)", screen.loss(step.loss), loss,
    screen.loss(step.grad_norm), norm)
  if not known then
    line("bits", "the log has no step %d; nothing to compare", step.step)
    return true
  end
  local equal = loss == known.loss_bits and norm == known.grad_norm_bits
  line("bits", equal and "equal to the log" or "the log has loss %s, gradient norm %s",
    known.loss_bits, known.grad_norm_bits)
  return equal
end

--- The step that fails: what was raised, and the operands of the instruction that it names.
local function failed(run, step, message)
  local text = type(message) == "table" and message.message or tostring(message)
  line("step " .. step, "%s", text)
  local rank, index = text:match "rank (%d+) of %d+: .-instruction (%d+) "
  if not rank then return {} end
  return operands(run, math.tointeger(tonumber(rank)), math.tointeger(tonumber(index)) + 1)
end

local function start(folder, known, request, step)
  local found = replays.nearest(folder, step - 1)
  local trace = request.options.trace and recorder.new {
    dir = request.options.trace, first = step, last = step, full = true, values = true,
    recipe = folder, overrides = request.overrides,
  }
  local recipe = recipe_of(folder, request.overrides)
  local run = requests.guarded(driver.start, recipe, {
    resume = found, recorder = trace, threads = request.options.threads,
  })
  local good, problem = pcall(origin.check, known, run.plan, false)
  if not good then
    run:close()
    error(problem, 0)
  end
  line("replay", "%s, step %d, from %s; %s", folder, step,
    found and ("the checkpoint of step %d"):format(found.state.step) or "the start",
    #run.table == 1 and "one thread rank of the host"
      or screen.plural(#run.table, "thread rank") .. " of the host")
  return run
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function replay.command(request)
  local folder = request.words[1]:gsub("(.)/+$", "%1")
  local known = origin.read(folder)
  if not known then
    usage("%s: no folder of a run with origin.json; e.g. ./tl %s", folder, request.command.example)
  end
  local records, last = logged(folder)
  local step = step_of(folder, request.options, last)
  if step < 1 then usage("--step %d: steps count from 1", step) end
  local run <close> = start(folder, known, request, step)
  if not catch_up(run, records, step) then return 1 end
  run.check = true
  local good, result = pcall(run.step, run)
  local values, status = { run = run, step = good and result or nil }, 1
  if good then
    status = told(result, records[step]) and 0 or 1
  else
    local found = failed(run, step, result)
    values.inputs, values.outputs = found.inputs, found.outputs
  end
  if request.options.repl then console(values) end
  return status
end

return replay
