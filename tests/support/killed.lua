--- Kills a saving run again and again, at random moments, and resumes it: ./tl lua
--- tests/support/killed.lua FOLDER. The bits at the end are those of a run that nobody killed.
package.path = "tests/?.lua;tests/?/init.lua;" .. package.path

local core = require "tidelock.core"
local folder, rounds, last = arg[1], 6, 40

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

local command = "./tl lua tests/support/killed.lua %s/k child >/dev/null 2>&1 & echo $!"
core.files.mkdirs(folder .. "/k")
core.files.mkdirs(folder .. "/straight")
for round = 1, rounds do
  local pipe = assert(io.popen(command:format(folder)))
  local pid = pipe:read "n"
  pipe:close()
  local moment = 0.12 + 0.5 * math.random()
  core.files.sleep(moment)
  os.execute(("pkill -9 -P %d 2>/dev/null; kill -9 %d 2>/dev/null"):format(pid, pid))
  local steps = checkpoint.list(folder .. "/k")
  for _, step in ipairs(steps) do
    local state, message = checkpoint.read(("%s/k/step-%08d"):format(folder, step))
    assert(state and state.step == step, message)
  end
  print(("round %d, after %.3f s: newest step %s"):format(round, moment, steps[#steps] or "none"))
end
local resumed, straight = train(folder .. "/k"), train(folder .. "/straight")
assert(resumed == straight, resumed .. " against " .. straight)
print "equal after every kill"
