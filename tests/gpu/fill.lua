--- fill.lua - a run that fills 98 % of a GPU's memory by plan, and finishes.
---
---     build/tidelock lua tests/gpu/fill.lua [share] [device]
---
--- The batch of one micro-batch grows until the plan's arena is the given share of the memory, then
--- the vocabulary; three steps run, the last ones as a replay. What is printed: share, steps, and
--- "as planned" when the allocators counted what was planned. `device` "host" plans for 6 GiB and
--- runs nothing, as a check of this script.
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local planner = require "tidelock.plan"
local summaries = require "tidelock.plan.summary"
local tl = require "tidelock"
local nn = tl.nn

local share, device = tonumber(arg[1]) or 0.981, arg[2] or "cuda"
local MIB = 1024 * 1024

local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 8 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 2816 } },
  }
end

--- The recipe with a table of `vocab` rows, which takes what the batch leaves over.
local function recipe(samples, vocab)
  return tl.recipe {
    model  = nn.decoder { vocab = vocab, dim = 1024, layers = 4, layer = layer, tied = true },
    dtype  = "bf16",
    data   = tl.data.text { "tests/golden/text.txt" },
    batch  = { samples = samples, micro = samples, length = 1024 },
    policy = { "layout", leaves = { tp = 1, dp = 1 } },
    device = device,
    train  = { steps = 10, lr = 1e-3 },
  }
end

local function bytes_of(samples, vocab)
  return summaries.of(planner(recipe(samples, vocab))).planned_bytes
end

--- The largest n for which fits(n), by doubling, then halving.
local function largest(fits)
  local low, high = 1, 2
  while fits(high) do low, high = high, high * 2 end
  while high - low > 1 do
    local middle = (low + high) // 2
    if fits(middle) then low = middle else high = middle end
  end
  return low
end

local count, why = core.cuda_count()
if device == "cuda" and count == 0 then
  print("skipped: " .. why)
  os.exit(0)
end
local memory = device == "cuda" and core.cuda_device(0).memory or 6144 * MIB
local wanted = math.floor(memory * share)
local vocab = device == "cuda" and 32000 or 2048
local samples = largest(function(n) return bytes_of(n, vocab) <= wanted end)
vocab = 16 * largest(function(n) return bytes_of(samples, 16 * n) <= wanted end)
local planned = bytes_of(samples, vocab)
print(("%.1f MiB of %.1f planned: %.2f %%; %d samples of 1024 tokens, vocab %d"):format(
  planned / MIB, memory / MIB, 100 * planned / memory, samples, vocab))
if device == "host" then os.exit(0) end
local run <close> = driver.start(recipe(samples, vocab))
for _ = 1, 3 do
  local step = run:step()
  print(("step %d: loss %.4f (%s), %.0f ms"):format(step.step, step.loss, step.loss_bits, step.ms))
end
local counted = run:memory()
print(("%.1f MiB counted, %s"):format(counted.peak_bytes / MIB,
  counted.peak_bytes == counted.planned_bytes and "as planned" or "not as planned"))
