--- refusals.lua - what the host twin of a row-wise operator refuses, its launcher refuses with the
--- same words.
---
---     build/tidelock lua tests/gpu/refusals.lua
---
--- The first case of every operator of rowwise_cases.lua, with one operand after the other of
--- another dtype, and of another size. Borders of segments that do not fit are left out: they are
--- numbers in memory, which the host alone looks at.
local core = require "tidelock.core"

local folder = arg[0]:match "^(.*)/[^/]*$" or "."

local function other_dtype(t)
  return core.tensor(t:dtype() == "i64" and "f32" or "i64", t:shape())
end

local function other_size(t)
  local shape = t:shape()
  shape[1] = shape[1] + 1
  return core.tensor(t:dtype(), shape)
end

local function call(op, inputs, outputs, attrs, options, device)
  local all = { device = device }
  for key, value in pairs(options or {}) do all[key] = value end
  local good, message = pcall(core.call, op, inputs, outputs, attrs, all)
  return good and "accepted" or message
end

local count, why = core.cuda_count()
if count == 0 then
  print("skipped: " .. why)
  print "0 passed, 0 failed"
  os.exit(0)
end

local seen, passed, failed = {}, 0, 0

--- Sizes that the host accepts are not tried: there the call would run.
local function try(case, side, i, wrong)
  local inputs, outputs, attrs, options = case.make()
  local list = side == 1 and inputs or outputs
  if not list[i] then return end
  list[i] = wrong(list[i])
  local host = call(case.op, inputs, outputs, attrs, options, "host")
  if host == "accepted" or host:find("cu_seqlens: ", 1, true) then return end
  local gpu = call(case.op, inputs, outputs, attrs, options, "cuda")
  if host == gpu then
    passed = passed + 1
  else
    failed = failed + 1
    print(("%s: host: %s; GPU: %s"):format(case.op, host, gpu))
  end
end

for _, case in ipairs(dofile(folder .. "/rowwise_cases.lua")) do
  if not seen[case.op] then
    seen[case.op] = true
    local inputs, outputs = case.make()
    for _, wrong in ipairs { other_dtype, other_size } do
      for i = 1, #inputs do try(case, 1, i, wrong) end
      for i = 1, #outputs do try(case, 2, i, wrong) end
    end
  end
end
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
