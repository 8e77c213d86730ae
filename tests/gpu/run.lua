--- run.lua - every operator on the GPU against its host twin, bit for bit.
---
---     build/tidelock lua tests/gpu/run.lua [family ...] [--named TEXT] [--every N]
---
--- `--named`: only cases whose operator and name hold the text; `--every`: only every Nth of those,
--- for tools that make each launch slow:
---
---     compute-sanitizer --tool racecheck --report-api-errors no build/tidelock lua \
---       tests/gpu/run.lua attention --named "q 128"
---
--- Each tests/gpu/<family>_cases.lua returns a list of { op, name, make }, where make() gives
--- inputs, outputs, attrs and options of core.call. Outputs start as NaN (bytes 0xFF) on both
--- sides.
--- A case passes when every byte of every output agrees; one with `refuses`, a pattern, when both
--- sides fail with the same words that match it, or, with `begins`, the host's go on where those of
--- the GPU end. Needs no Lua packages.
local core = require "tidelock.core"

local folder = arg[0]:match "^(.*)/[^/]*$" or "."
local families, named, every = {}, "", 1
do
  local i = 1
  while arg[i] do
    if arg[i] == "--named" then
      named, i = assert(arg[i + 1], "--named takes a text"), i + 1
    elseif arg[i] == "--every" then
      every, i = assert(math.tointeger(tonumber(arg[i + 1])), "--every takes a count"), i + 1
    else
      families[#families + 1] = arg[i]
    end
    i = i + 1
  end
end
if #families == 0 then families = { "rowwise", "gemm", "attention", "serving", "moe" } end

--- A copy of an operand list: fresh tensors with the same bytes.
local function copy_all(list)
  local copies = {}
  for i = 1, #list do
    local t = list[i]
    if t then
      local rows = 1
      for _, size in ipairs(t:shape()) do rows = rows * size end
      copies[i] = core.tensor_from_bits(t:dtype(), t:shape(), t:bits())
    else
      copies[i] = false
    end
  end
  return copies
end

--- The inputs, with those that are also outputs replaced by the outputs' copies.
local function inputs_with(inputs, outputs, copies)
  local list = {}
  for i = 1, #inputs do
    list[i] = inputs[i]
    for k = 1, #outputs do
      if inputs[i] and rawequal(inputs[i], outputs[k]) then list[i] = copies[k] end
    end
  end
  return list
end

--- The payload of a NaN is no part of the contract.
local function is_nan(dtype, bits)
  if dtype == "f32" then return bits & 0x7fffffff > 0x7f800000 end
  return dtype == "bf16" and bits & 0x7fff > 0x7f80
end

--- Both sides must fail alike.
local function compare_refusals(case)
  local texts = {}
  for i, device in ipairs { "host", "cuda" } do
    local inputs, outputs, attrs = case.make()
    local good, text = pcall(core.call, case.op, inputs, outputs, attrs, { device = device })
    texts[i] = good and "accepted" or text
  end
  local alike = texts[1] == texts[2] or case.begins and texts[1]:find(texts[2], 1, true)
  if not alike or not texts[2]:find(case.refuses) then
    return ("host: %s; gpu: %s"):format(texts[1], texts[2])
  end
end

local function compare(case)
  if case.refuses then return compare_refusals(case) end
  local inputs, outputs, attrs, options = case.make()
  local host, gpu = copy_all(outputs), copy_all(outputs)
  local on_gpu = { device = "cuda" }
  for key, value in pairs(options or {}) do on_gpu[key] = value end
  core.call(case.op, inputs_with(inputs, outputs, host), host, attrs, options)
  core.call(case.op, inputs_with(inputs, outputs, gpu), gpu, attrs, on_gpu)
  for i = 1, #host do
    if host[i] and not core.equal(host[i], gpu[i]) then
      local a, b, differ, first = host[i]:bits(), gpu[i]:bits(), 0, nil
      for k = 1, #a do
        local nan = is_nan(host[i]:dtype(), a[k]) and is_nan(host[i]:dtype(), b[k])
        if a[k] ~= b[k] and not nan then
          differ = differ + 1
          first = first or k
        end
      end
      if first then
        return string.format("output %d: %d of %d differ, first at %d: host %08x, gpu %08x", i,
          differ, #a, first - 1, a[first], b[first])
      end
    end
  end
end

local count, why = core.cuda_count()
if count == 0 then
  print("skipped: " .. why)
  print "0 passed, 0 failed"
  os.exit(0)
end
local passed, failed = 0, 0
for _, family in ipairs(families) do
  local all, cases, bad = dofile(folder .. "/" .. family .. "_cases.lua"), {}, 0
  local wanted = 0
  for _, case in ipairs(all) do
    if (case.op .. ", " .. case.name):find(named, 1, true) then
      wanted = wanted + 1
      if wanted % every == 0 then cases[#cases + 1] = case end
    end
  end
  for _, case in ipairs(cases) do
    local good, problem = pcall(compare, case)
    if good and not problem then
      passed = passed + 1
    else
      failed, bad = failed + 1, bad + 1
      if bad <= 20 then print(string.format("%s, %s: %s", case.op, case.name, problem)) end
    end
  end
  print(string.format("%s: %d cases, %d differ", family, #cases, bad))
end
print(string.format("%d passed, %d failed", passed, failed))
os.exit(failed == 0 and 0 or 1)
