--- Saves three steps, the second on a full disk: ./tl lua tests/support/full_disk.lua FOLDER.
--- Prints what was told and the steps that were finished.
package.path = "tests/?.lua;tests/?/init.lua;" .. package.path

local folder = arg[1]
if not arg[2] then -- once more, where a mount is seen by nobody else
  local line = ("unshare -m sh -c 'mount -t tmpfs -o size=2m none %s && ./tl lua %s %s inside'")
  os.exit(os.execute(line:format(folder, arg[0], folder)))
end

local checkpoint = require "tidelock.run.checkpoint"
local models = require "support.models"
local saves = require "tidelock.run.saves"

local show = { note = function(_, text) print(text) end }
local run <close> = models.start {}
run.spec.train.save = { every = 1, dir = folder }
local list = saves.open(run.spec, folder, run.plan.key, show)
for step = 1, 3 do
  run:step()
  local fill = folder .. "/fill"
  if step == 2 then os.execute(("dd if=/dev/zero of=%s bs=64k 2>/dev/null"):format(fill)) end
  list:save(run)
  list:settle(true)
  os.remove(fill)
end
list:close()
print("finished " .. table.concat((checkpoint.list(folder)), " "))
