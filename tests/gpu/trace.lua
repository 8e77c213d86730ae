--- trace.lua - a trace of a run on a GPU beside one of the host, and what a trace costs there.
---
---     build/tidelock lua tests/gpu/trace.lua [cost]
---
--- Hashes of every output of every instruction that ran, sampled and full, must be the host's, step
--- after step: the first step is queued kernel by kernel, later ones are replayed. With two GPUs
--- tp 2 is compared, too. `cost` takes turns between steps with a trace and without. Needs no Lua
--- packages.
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local recorder = require "tidelock.run.recorder"
local tl = require "tidelock"
local traces, compare = require "tidelock.trace.traces", require "tidelock.trace.compare"
local nn = tl.nn

local text = os.tmpname()
do
  local file = assert(io.open(text, "w"))
  for i = 1, 60000 do file:write(string.char(32 + i * i % 89)) end
  file:close()
end

local function recipe(o)
  return tl.recipe {
    model = nn.decoder { vocab = 256, dim = o.dim, layers = o.layers, layer = function()
      return {
        nn.residual { nn.rms_norm {}, nn.attention { heads = o.heads, kv_heads = o.heads // 2 } },
        nn.residual { nn.rms_norm {}, nn.swiglu { hidden = o.hidden } },
      }
    end },
    dtype = o.dtype, device = o.device, layout = { tp = o.tp or 1 }, data = tl.data.text { text },
    batch = { samples = o.samples, micro = o.micro, length = o.length },
    train = { steps = 40, lr = 1e-3, clip = 1.0 },
  }
end

local folders = {}

local function folder()
  local path = os.tmpname()
  os.remove(path)
  core.files.mkdirs(path)
  folders[#folders + 1] = path
  return path
end

local function trace(o, full)
  local path = folder()
  local recording = recorder.new { dir = path, full = full }
  local run <close> = driver.start(recipe(o), { recorder = recording })
  for _ = 1, 4 do run:step() end
  run:close()
  return traces.open(path)
end

local failed = 0

--- Hashes of a rank's outputs in a step, by what an output is; those of one name in the order of
--- their numbers: a program for GPUs has lanes and runs, say, fills of one layer in another order.
local function hashes_by_name(recorded, rank, step)
  local names, of = {}, {}
  for i, o in ipairs(recorded.outputs[recorded:program_of(rank)]) do
    if recorded:ran(rank, step, o) then
      local name = ("%s %s %s %s %dx%d"):format(o.key, o.phase, o.micro, o.position, o.rows,
        o.cols)
      if not of[name] then
        of[name], names[#names + 1] = {}, name
      end
      table.insert(of[name], recorded:hash(rank, step, i))
    end
  end
  for _, name in ipairs(names) do table.sort(of[name], math.ult) end
  return names, of
end

--- Outputs of a rank that differ in a step, or that only one of the traces has.
local function outputs_differ(host, gpu, rank, step)
  local names, ours = hashes_by_name(host, rank, step)
  local others, theirs = hashes_by_name(gpu, rank, step)
  table.move(others, 1, #others, #names + 1, names)
  local bad, first = 0, nil
  for _, name in ipairs(names) do
    local a, b = ours[name] or {}, theirs[name] or {}
    for i = 1, math.max(#a, #b) do
      if a[i] ~= b[i] then
        bad, first = bad + 1, first or name
      end
    end
    ours[name], theirs[name] = nil, nil -- once
  end
  return bad, first
end

--- Outputs, and logical tensors, that differ between two traces in a step.
local function differences(host, gpu, step)
  local groups, keys = compare.groups(host, step)
  local other, bad, first = compare.groups(gpu, step), 0, nil
  for _, key in ipairs(keys) do
    if not other[key] or compare.sum_of(groups[key]) ~= compare.sum_of(other[key]) then
      bad, first = bad + 1, first or key
    end
  end
  for rank = 0, host:ranks() - 1 do
    local count, name = outputs_differ(host, gpu, rank, step)
    bad, first = bad + count, first or name
  end
  return bad, #keys, first
end

--- An instruction ends after it begins.
local function backwards(gpu, step)
  local count, first, last = 0, gpu:section(0, step)
  for i = first, last do
    local times = gpu:times(0, step, i)
    if times and times.end_ns < times.start_ns then count = count + 1 end
  end
  return count
end

local function check(dtype, full, tp)
  local o = { dim = 128, layers = 2, heads = 4, hidden = 192, dtype = dtype, samples = 4, micro = 2,
    length = 128, tp = tp }
  local host = trace(o, full)
  o.device = "cuda"
  local gpu = trace(o, full)
  for step = 0, 4 do
    local bad, keys, first = differences(host, gpu, step)
    local wrong = backwards(gpu, step)
    if bad + wrong > 0 then failed = failed + 1 end
    print(("tp %d, %s, %s, step %d: %d tensors, %d differ%s; %d times run backwards"):format(tp,
      dtype, full and "full" or "sampled", step, keys, bad, first and " from " .. first or "",
      wrong))
  end
end

local function cost(o)
  o.dtype, o.device = "bf16", "cuda"
  local runs = { driver.start(recipe(o), {}),
    driver.start(recipe(o), { recorder = recorder.new { dir = folder() } }) }
  local ratios, plain, sum = {}, {}, 0
  for i = -2, 11 do
    local ms = {}
    for k, run in ipairs(runs) do ms[k] = run:step().ms end
    if i > 0 then
      ratios[i], plain[i], sum = ms[2] / ms[1], ms[1], sum + ms[2] - ms[1]
    end
  end
  table.sort(ratios)
  table.sort(plain)
  local count = #runs[1].plan.programs[1].instructions
  print(("dim %d, %d layers: %.2f ms, %d instructions; traced %.3f (%.3f to %.3f), %.2f us each")
    :format(o.dim, o.layers, plain[6], count, ratios[6], ratios[1], ratios[#ratios],
      sum / #ratios * 1e3 / count))
  for _, run in ipairs(runs) do run:close() end
end

if arg[1] == "cost" then
  cost { dim = 2048, layers = 6, heads = 32, hidden = 5632, samples = 16, micro = 8, length = 2048 }
  cost { dim = 2048, layers = 6, heads = 16, hidden = 5632, samples = 16, micro = 8, length = 1024 }
  cost { dim = 512, layers = 8, heads = 8, hidden = 1408, samples = 16, micro = 8, length = 512 }
else
  for _, dtype in ipairs { "f32", "bf16" } do
    for tp = 1, math.max(1, math.min((core.cuda_count()), 2)) do
      check(dtype, true, tp)
      check(dtype, false, tp)
    end
  end
  print(failed == 0 and "all equal" or failed .. " steps differ")
end
os.remove(text)
for _, path in ipairs(folders) do
  for _, name in ipairs { "steps.jsonl", "trace.json", "rank-0000.bin" } do
    os.remove(path .. "/" .. name)
  end
  os.remove(path)
end
os.exit(failed == 0)
