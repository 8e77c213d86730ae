--- Kills a saving run again and again, at random moments, and resumes it: ./tl lua
--- tests/support/killed.lua FOLDER. The bits at the end are those of a run that nobody killed.
--- A round kills only what has finished a checkpoint of its own, however long the start takes.
package.path = "tests/?.lua;tests/?/init.lua;" .. package.path

local core = require "tidelock.core"
local folder, rounds, last = arg[1], 6, 80

local checkpoint = require "tidelock.run.checkpoint"
local models = require "support.models"
local saves = require "tidelock.run.saves"

local show = { note = function(_, text) print(text) end }

--- Trains to the end, saving every step.
local function train(dir)
  local steps = checkpoint.list(dir)
  local run <close> = models.start({}, { resume = #steps > 0 and checkpoint.find(dir) or nil })
  run.spec.train.save = { every = 1, dir = dir, keep = 3 }
  local list = saves.open(run.spec, dir, run.plan.key, show)
  while run.done < last do
    run:step()
    list:save(run)
    list:settle()
  end
  list:close()
  return run:weights_hash() .. " " .. run:optimizer_hash()
end

if arg[2] then
  train(folder)
  return
end

--- Waits until the child has finished a checkpoint that was not there before.
local function saved_more(dir, before)
  local patience = core.files.seconds() + 120
  repeat
    core.files.sleep(0.005)
    local steps = checkpoint.list(dir)
    if (steps[#steps] or 0) > before then return end
  until core.files.seconds() > patience
  error(("no checkpoint after step %d within 120 s"):format(before))
end

local command = core.files.realpath "/proc/self/exe"
  .. " lua tests/support/killed.lua %s/k child >/dev/null 2>&1 & echo $!"
core.files.mkdirs(folder .. "/k")
core.files.mkdirs(folder .. "/straight")
local newest = 0
for round = 1, rounds do
  local pipe = assert(io.popen(command:format(folder)))
  local pid = pipe:read "n"
  pipe:close()
  saved_more(folder .. "/k", newest)
  local moment = 0.02 * math.random() -- a step with its checkpoint takes some 10 ms
  core.files.sleep(moment)
  os.execute(("pkill -9 -P %d 2>/dev/null; kill -9 %d 2>/dev/null"):format(pid, pid))
  local steps = checkpoint.list(folder .. "/k")
  for _, step in ipairs(steps) do
    local state, message = checkpoint.read(("%s/k/step-%08d"):format(folder, step))
    assert(state and state.step == step, message)
  end
  newest = assert(steps[#steps], "a kill took the finished checkpoints with it")
  print(("round %d, %.3f s after a checkpoint: newest step %d"):format(round, moment, newest))
end
assert(newest < last, "no kill came in time: the run has more speed than steps")
local resumed, straight = train(folder .. "/k"), train(folder .. "/straight")
assert(resumed == straight, resumed .. " against " .. straight)
print "equal after every kill"
