--- decode.lua - where a step of generation spends its time on a GPU: a llama of 1.1 B parameters
--- with random weights, prompts and decoding, beside the time of the bytes that a step must read.
---
---     build/tidelock lua tests/gpu/decode.lua [operators] [device] [layers]
---     build/tidelock lua tests/gpu/decode.lua peers [device] [layers] [way ..]
---
--- "operators" adds the time of each operator from a trace, whose kernels run one by one. Each rate
--- stands beside that of the captured section alone: the difference is the host's part. "peers"
--- takes turns with PyTorch (tests/peers/gpu_decode.py), in all of its ways unless some are named.
--- `device` "host" with 1 layer is a check of this script.
local core = require "tidelock.core"
local engine = require "tidelock.serve.engine"
local serving = require "tidelock.plan.serving"
local tl = require "tidelock"
local nn = tl.nn

local peers, operators, device, layers = arg[1] == "peers",
  arg[1] == "operators", arg[2] or "cuda", tonumber(arg[3] or 22)
local small = device == "host"
local copy_bytes = 4.24e12 -- a second

local folder = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = folder .. "/?.lua;" .. package.path
local read = require "initial" (1, device)

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 32, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 5632 } },
  }
end

local recipe = tl.recipe({
  model   = nn.decoder { vocab = 32000, dim = 2048, layers = layers, layer = layer },
  dtype   = "bf16",
  weights = { { "*.gain", dtype = "f32" } },
  data    = tl.data.given { { tokens = { 0 } } },
  batch   = { samples = 1, length = 64 },
  policy  = { "layout", leaves = { tp = 4, dp = 1 } },
  train   = { steps = 1, lr = 0 },
}):with { device = device, ["serve.context"] = 1024, ["serve.rows"] = small and 16 or 2048,
  ["serve.requests"] = 256, ["serve.pages"] = small and 256 or 256 * 40 }

local weights = layers * (2048 * (2048 + 512) + 2048 * 2048 + 3 * 2048 * 5632) + 32000 * 2048

local function prompt(index, count)
  local tokens = {}
  for i = 1, count do tokens[i] = (index * 7919 + i * 104729) % 32000 end
  return tokens
end

--- Microseconds of each operator in a section, the longest first.
local function show_operators(e, class)
  local program, spans = serving.plan(recipe).programs[1], e.ranks:spans(0)
  local range = program.sections["serve" .. class - 1]
  local sum, times, list = {}, {}, {}
  for i = range[1], range[1] + range[2] - 1 do
    local made = program.instructions[i]
    local op = made.op
    if op == "linear" then
      op = op .. " " .. table.concat(program.tensors[made.outputs[1]].shape, "x")
    end
    if not sum[op] then
      list[#list + 1] = op
      sum[op], times[op] = 0, 0
    end
    sum[op], times[op] = sum[op] + spans[i][2] - spans[i][1], times[op] + 1
  end
  table.sort(list, function(a, b) return sum[a] > sum[b] end)
  for i, op in ipairs(list) do
    list[i] = ("%s x%d %.0f us"):format(op, times[op], sum[op] / 1000)
  end
  print("  " .. table.concat(list, ", "))
end

--- A step of the engine, its section alone, and its operators.
local function report(e, name, seconds, count, bytes)
  local class = 1
  while e.plan.classes[class] < count do class = class + 1 end
  local begin, rounds = core.files.seconds(), small and 1 or 30
  for _ = 1, rounds do e.ranks:run("serve" .. class - 1, { step = 1, scalars = {} }) end
  local alone = (core.files.seconds() - begin) / rounds
  print(("%s: %.3f ms a step, %.0f tokens/s; captured section alone %.3f ms%s"):format(name,
    seconds * 1e3, count / seconds, alone * 1e3, bytes and (", bound %.3f ms: %.2f, %.2f"):format(
      bytes / copy_bytes * 1e3, bytes / copy_bytes / seconds, bytes / copy_bytes / alone)
      or (", %.0f TFLOP/s of products"):format(2 * weights * count / alone / 1e12)))
  if not operators then return end
  e.ranks:trace(true)
  for _ = 1, 2 do e.ranks:run("serve" .. class - 1, { step = 1, scalars = {} }) end
  show_operators(e, class)
  e.ranks:trace(false)
end

local function prefill(e, count, length)
  local seconds
  for _ = 1, 3 do -- the first one is queued kernel by kernel, the second is captured
    for i = 1, count do assert(e:submit { tokens = prompt(i, length), max_tokens = 1 }) end
    local begin = core.files.seconds()
    while not e:idle() do e:step() end
    seconds = core.files.seconds() - begin
  end
  if peers then return seconds end
  report(e, ("prompts, %d of %d tokens"):format(count, length), seconds, count * length)
end

local function decode(e, count, length, steps)
  local most = steps + 20 + count * length // 2000
  for i = 1, count do assert(e:submit { tokens = prompt(i, length), max_tokens = most }) end
  while #e.running < count or #e:step() < count do e:step() end
  for _ = 1, 4 do e:step() end
  local begin, each = core.files.seconds(), {}
  local last = begin
  for i = 1, steps do
    e:step()
    local now = core.files.seconds()
    each[i], last = now - last, now
  end
  local seconds = (last - begin) / steps
  local bytes = 2 * weights + count * (length + steps // 2) * layers * 4 * 64 * 2 * 2
  if not peers then
    report(e, ("decoding, %d requests at %d tokens"):format(count, length), seconds, count, bytes)
  end
  for _, request in ipairs(table.move(e.running, 1, #e.running, 1, {})) do e:cancel(request.id) end
  e:step()
  table.sort(each)
  return each[(steps + 1) // 2], bytes / copy_bytes, seconds
end

local gpus, why = core.cuda_count()
if device == "cuda" and gpus == 0 then
  print("skipped: " .. why)
  os.exit(0)
end
local e <close> = engine.open({ recipe = recipe, read = read }, { prefix = false })
collectgarbage "generational" -- as ./tl serve
if peers then
  local requests, prompts = small and { 4 } or { 1, 8, 64, 256 }, small and { 2, 8 } or { 8, 256 }
  local work = {}
  for i, count in ipairs(requests) do
    work[i] = { rows = count, length = 1, run = function()
      return decode(e, count, small and 8 or 256, small and 2 or 30)
    end }
  end
  work[#work + 1] = { rows = prompts[1], length = prompts[2], run = function()
    return prefill(e, prompts[1], prompts[2])
  end }
  require "decode_peers" ({ vocab = 32000, dim = 2048, layers = layers, heads = 32, kv_heads = 4,
    hidden = 5632, positions = 272, device = small and "cpu" or "cuda" }, work,
    { table.unpack(arg, 4) })
elseif small then
  prefill(e, 2, 8)
  decode(e, 4, 8, 2)
else
  prefill(e, 2, 1023)
  prefill(e, 8, 256)
  for _, count in ipairs { 1, 8, 64, 256 } do decode(e, count, 256, 30) end
end
