--- step.lua - the step of recipes/llama_1b.lua on GPUs, taken apart; tokens are made here.
---
---     build-cuda/tidelock lua tests/gpu/step.lua providers       own kernels, auto, cublaslt
---     build-cuda/tidelock lua tests/gpu/step.lua providers policy=batch    changes to the recipe
---     build-cuda/tidelock lua tests/gpu/step.lua saves           two checkpoints, timed
---     build-cuda/tidelock lua tests/gpu/step.lua recipe DIR      writes it, for ./tl bench step
---
--- Run it from the root of the tree; `device=host` takes the quickstart on the host instead, as a
--- check of this script. `providers` opens a run for each provider (`only=own,auto`
--- names them), lets them take turns of `steps` steps for `rounds` rounds on the same samples, says
--- that their losses have the same bits, and which operators and shapes the time differs in.
local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local records = require "tidelock.bench.records"
local requests = require "tidelock.plan.requests"
local rounds = require "tidelock.bench.rounds"
local vitals = require "tidelock.machine.vitals"

local folder = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = folder .. "/../?.lua;" .. folder .. "/?.lua;" .. package.path
local new_folder = require "support.folder"
local write_llama = require "llama"

local what, changes, only, device = arg[1], {}, nil, "cuda"
local counts = { rounds = 6, steps = 2, traced = 2, shown = 14 }
for i = 2, #arg do
  local name, value = arg[i]:match "^([%w_.]+)=(.*)$"
  if name == "only" then
    only = value
  elseif name == "device" then
    device = value
  elseif counts[name] then
    counts[name] = assert(math.tointeger(tonumber(value)), name .. "=4")
  else
    changes[#changes + 1] = arg[i]
  end
end

local gpus, why = core.cuda_count()
if gpus == 0 and device == "cuda" and what ~= "recipe" then
  print("skipped: " .. why)
  os.exit(0)
end

local room, recipe = new_folder(), nil

local function open(more)
  local words = { "device=" .. device }
  if device == "cuda" then words = { words[1], "eval=nil", "batch.samples=16", "layout.dp=1" } end
  table.move(changes, 1, #changes, #words + 1, words)
  table.move(more, 1, #more, #words + 1, words)
  recipe = recipe or device == "host" and "recipes/quickstart.lua" or write_llama(room)
  return driver.start(requests.recipe(recipe, words))
end

--- Tokens a second and milliseconds of each provider, and the middle of its ratios to the first.
local function say(list, tokens)
  for _, e in ipairs(list) do
    local turns = {}
    for i, turn in ipairs(e.turns) do turns[i] = turn.seconds / counts.steps * 1e3 end
    local ms, least, most = rounds.spread(turns)
    local ratio = rounds.ratio(e, list[1], "seconds")
    print(("  %-10s %6.1f ms (%.1f to %.1f) %6.1fk tokens/s  %s of the speed of %s; %s"):format(
      e.name, ms, least, most, tokens / ms, ratio, list[1].name,
      table.concat({ vitals.words(e.seen) }, ", ")))
  end
end

--- Where the time of a run's traced steps goes: what each operator and shape reaches.
local function list_records(e)
  print(("  traced, %s: ms a step, calls, us, TFLOP/s, GB/s"):format(e.name))
  for i = 1, math.min(#e.records, 2 * counts.shown) do
    local one = e.records[i]
    print(("    %8.3f %4d %9.1f %6.0f %6.0f  %s %s"):format(one.own * 1e3, one.calls,
      one.own / one.calls * 1e6, one.flop / one.own / 1e12, one.bytes / one.own / 1e9, one.op,
      one.shape))
  end
end

--- Milliseconds of a step by operator and shape, where two runs differ most.
local function differences(one, other)
  local by, order = {}, {}
  for side, e in ipairs { one, other } do
    for _, record in ipairs(e.records) do
      local id = record.op .. " " .. record.shape
      if not by[id] then by[id], order[#order + 1] = { 0, 0, record.calls }, id end
      by[id][side] = by[id][side] + record.own * 1e3
    end
  end
  table.sort(order, function(a, b)
    local x, y = math.abs(by[a][2] - by[a][1]), math.abs(by[b][2] - by[b][1])
    if x ~= y then return x > y end
    return a < b
  end)
  print(("  traced, ms a step: %s, %s"):format(one.name, other.name))
  for i = 1, math.min(#order, counts.shown) do
    local row = by[order[i]]
    print(("    %8.3f %8.3f %+8.3f  %4d x %s"):format(row[1], row[2], row[2] - row[1], row[3],
      order[i]))
  end
end

local cases = {}

function cases.providers()
  local list, bits = {}, {}
  for name in (only or "own,auto,cublaslt"):gmatch "[^,]+" do
    local run = open { "blocks.gemm.provider=" .. name:match "^%l+" }
    for _ = 1, 3 do run:step() end
    local e = { name = name, run = run }
    function e.turn()
      local took = rounds.measure(function()
        for _ = 1, counts.steps do bits[name] = run:step().loss_bits end
      end)
      e.seen = vitals.read(device)
      return took
    end
    list[#list + 1] = e
  end
  rounds.run(list, counts.rounds)
  local spec = list[1].run.spec
  say(list, spec.batch.samples * spec.batch.length)
  for _, e in ipairs(list) do
    assert(bits[e.name] == bits[list[1].name], e.name .. ": other bits of the loss")
  end
  print(("  losses after %d steps: %s in all"):format(3 + counts.rounds * counts.steps,
    bits[list[1].name]))
  for i = 1, counts.traced > 0 and #list or 0 do
    local wall, inside
    list[i].records, wall, inside = records.of(list[i].run, counts.traced)
    print(("  traced, %s: %.1f ms a step, %.1f in its section"):format(list[i].name, wall * 1e3,
      inside * 1e3))
    if i == 1 then list_records(list[1]) else differences(list[1], list[i]) end
  end
  for _, e in ipairs(list) do e.run:close() end
end

--- Copying is what the run waits for; files are written beside the next steps.
function cases.saves()
  local run <close> = open {}
  run:step()
  for i = 1, 2 do
    local begin = core.files.seconds()
    local one = checkpoint.start(run, room.root, {})
    local copied = core.files.seconds()
    print(("  checkpoint %d: %.0f MiB, copied in %.2f s"):format(i, one.bytes / 2 ^ 20,
      copied - begin))
    io.stdout:flush()
    one.saver:wait()
    print(("    written %.2f s later"):format(core.files.seconds() - copied))
    one.saver:close()
    checkpoint.remove(one.folder)
    run:step()
  end
end

--- The recipe into a folder that is there.
function cases.recipe()
  local to = assert(changes[1], "recipe DIR")
  print(write_llama(setmetatable({ root = to }, { __index = room })))
end

local case = cases[what] or error("providers, saves or recipe DIR", 0)
print(what .. " " .. table.concat(changes, " "))
case()
room:remove()
