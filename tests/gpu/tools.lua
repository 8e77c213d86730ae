--- tools.lua - the tools around the core where the ranks are GPUs: what they print there is true.
---
---     build-cuda/tidelock lua tests/gpu/tools.lua              all but the last of these
---     build-cuda/tidelock lua tests/gpu/tools.lua fault trace  these
---     build-cuda/tidelock lua tests/gpu/tools.lua predict      llama_1b: steps as planned and as
---                                                              measured, what they lack and why
---
--- Run it from the root of the tree. `gpus=1` leaves out what needs two, as a machine with one
--- does; `device=host` runs all on the host, as a check of this script; `seconds=60`: after these
--- `predict` begins with no other layout. Needs no Lua packages; `profile` needs cc, or the library
--- in NVTX_TOOL.
local child = require "tidelock.machine.child"
local core = require "tidelock.core"

local folder = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = folder .. "/../?.lua;" .. folder .. "/?.lua;" .. package.path
local new_folder = require "support.folder"

local device, most, seconds, wanted = "cuda", 2, math.huge, {}
for _, word in ipairs(arg) do
  local name, value = word:match "^(%l+)=(%w+)$"
  if name == "device" then
    device = value
  elseif name == "gpus" then
    most = assert(math.tointeger(tonumber(value)), "gpus=1")
  elseif name == "seconds" then
    seconds = assert(tonumber(value), "seconds=60")
  else
    wanted[#wanted + 1] = word
  end
end
local gpus, why = core.cuda_count()
gpus = math.min(most, device == "host" and 2 or gpus)
if gpus == 0 then
  print("skipped: " .. why)
  print "0 passed, 0 failed"
  os.exit(0)
end

local room = new_folder()
local small = room:write("small.lua", [[
local tl = require "tidelock"
local nn = tl.nn
return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 128, layers = 2, layer = function()
    return { nn.residual { nn.rms_norm {}, nn.attention { heads = 4, kv_heads = 2 } },
      nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 384 } } }
  end },
  data = tl.data.text { "tests/golden/text.txt" },
  batch = { samples = 8, micro = 4, length = 128 },
  train = { steps = 8, lr = 1e-2 },
}]])

local tools = { device = device, gpus = gpus, room = room, small = small, seconds = seconds }

--- Runs this program; its text, and that it ended with `status` (0 unless given).
function tools.run(words, status, variables)
  local list = {}
  for word in words:gmatch "%S+" do list[#list + 1] = word end
  local text, ended, complaint = child.run(list, 60, nil, variables)
  if ended.status ~= (status or 0) then
    error(("%s: %s: %s"):format(words, child.reason(ended) or "status 0",
      (text .. complaint):sub(-400)), 0)
  end
  return text, complaint
end

--- What a pattern finds in a text, or an error with the text's end.
function tools.find(text, pattern)
  local found = table.pack(text:match(pattern))
  if found[1] == nil then error(("no %q in: %s"):format(pattern, text:sub(-600)), 0) end
  return table.unpack(found)
end

function tools.check(good, format, ...)
  if not good then error(format:format(...), 0) end
end

local cases, last = {}, {}
for _, part in ipairs { "tools_traces", "tools_speed" } do
  for _, case in ipairs(require(part)(tools)) do
    local list = case.gpus and last or cases
    list[#list + 1] = case
  end
end
table.move(last, 1, #last, #cases + 1, cases)

local passed, failed = 0, 0
for _, case in ipairs(cases) do
  local asked = #wanted == 0 and not case.long
  for _, name in ipairs(wanted) do asked = asked or name == case.name end
  if asked and (case.gpus or 1) > gpus then
    print(("%-9s left out: it needs %d GPUs, %d here"):format(case.name, case.gpus, gpus))
  elseif asked then
    local begin = core.files.seconds()
    local good, found = pcall(case.run)
    if good then passed = passed + 1 else failed = failed + 1 end
    print(("%-9s %4.1f s  %s%s"):format(case.name, core.files.seconds() - begin,
      good and "" or "FAILED: ", type(found) == "table" and found.message or tostring(found)))
    io.stdout:flush()
  end
end
room:remove()
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0)
