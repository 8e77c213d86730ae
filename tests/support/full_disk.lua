--- Saves three steps and keeps one, the second on a full disk:
--- ./tl lua tests/support/full_disk.lua FOLDER. Prints what was told, and after each step which
--- ones are there.
package.path = "tests/?.lua;tests/?/init.lua;" .. package.path

local folder = arg[1]
if not arg[2] then -- once more, where a mount is seen by nobody else
  local program = require("tidelock.core").files.realpath "/proc/self/exe"
  local line = "unshare -m sh -c 'mount -t tmpfs -o size=2m none %s && %s lua %s %s inside'"
  os.exit(os.execute(line:format(folder, program, arg[0], folder)))
end

local checkpoint = require "tidelock.run.checkpoint"
local models = require "support.models"
local saves = require "tidelock.run.saves"

local show = { note = function(_, text) print(text) end }
local run <close> = models.start {}
run.spec.train.save = { every = 1, dir = folder, keep = 1 }
local list = saves.open(run.spec, folder, run.plan.key, show)
for step = 1, 3 do
  run:step()
  local fill = folder .. "/fill"
  if step == 2 then os.execute(("dd if=/dev/zero of=%s bs=64k 2>/dev/null"):format(fill)) end
  list:save(run)
  list:settle(true)
  if step == 2 then print(table.concat(saves.notes(list, run.plan, 3, 3, folder), "\n")) end
  os.remove(fill)
  print(("after %d: %s"):format(step, table.concat((checkpoint.list(folder)), " ")))
end
list:close()
