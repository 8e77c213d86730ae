--- serve.lua - a request gives the same tokens and log-probabilities on a GPU as on the host:
--- alone, in a crowd, with any chunks, pages, pools and prefixes, on one GPU and cut over two.
---
---     build/tidelock lua tests/gpu/serve.lua
---
--- An engine stays open throughout, so that the device does.
---
--- Sections run kernel by kernel at first, then as graphs: requests are long enough for both. Needs
--- no Lua packages.
local core = require "tidelock.core"
local engine = require "tidelock.serve.engine"
local tl = require "tidelock"
local nn = tl.nn

local folder = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = folder .. "/?.lua;" .. package.path
local read = require "initial" (10) -- ten times as large as usual: logits that differ

local function recipe(dtype, more)
  local function layer()
    return {
      nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 2 } },
      nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 192 } },
    }
  end
  local fields = {
    model = nn.decoder { vocab = 333, dim = 128, layers = 3, layer = layer }, dtype = dtype,
    data = tl.data.given { { tokens = { 0 } } }, batch = { samples = 1, length = 64 },
    policy = { "layout", leaves = { tp = 4, dp = 1 } }, train = { steps = 1, lr = 0 },
  }
  local all = { ["serve.context"] = 160, ["serve.page"] = 16, ["serve.rows"] = 48,
    ["serve.requests"] = 6, ["blocks.attention.kv"] = 64 }
  for key, value in pairs(more) do all[key] = value end
  return tl.recipe(fields):with(all)
end

--- Prompts short and long, some with a prefix in common, with all controls.
local function requests()
  local list = {}
  for i = 1, 9 do
    local tokens = {}
    for k = 1, i % 3 == 0 and 33 or i % 3 == 1 and 5 * i or 1 do
      tokens[k] = ((i % 3 == 0 and 0 or i * 31) + k * k * 7) % 333
    end
    list[i] = { tokens = tokens, max_tokens = 12 + i, temperature = ({ 0, 0.8, 1.2 })[i % 3 + 1],
      top_p = ({ 1, 0.9, 0.6, 1 })[i % 4 + 1], top_k = i % 5 == 0 and 9 or 0, seed = i,
      request = i % 2, echo = i == 4 or nil }
  end
  return list
end

--- What each request gave, as text.
local function outcomes(dtype, more, given, how, late)
  local e <close> = engine.open({ recipe = recipe(dtype, more), read = read }, how)
  local owner, text, next_one, steps = {}, {}, 1, 0
  for i = 1, #given do text[i] = {} end
  while next_one <= #given or not e:idle() do
    while next_one <= #given and steps >= (late or 0) * (next_one - 1) do
      owner[assert(e:submit(given[next_one]))] = next_one
      next_one = next_one + 1
    end
    for _, event in ipairs(e:step()) do
      table.insert(text[owner[event.id]], ("%d:%d %08x"):format(event.position, event.token,
        event.logprob_bits))
    end
    steps = steps + 1
  end
  for i, list in ipairs(text) do text[i] = table.concat(list, " ") end
  return text
end

--- `settings` of serve and layout, options of the engine, steps between two requests.
local ways = {
  { "a crowd that comes late", { ["blocks.attention.q"] = 64 }, {}, 2 },
  { "chunks of 3, pages of 4", { ["serve.page"] = 4 }, { chunk = 3 } },
  { "chunks of 1, no prefixes, pages of 5", { ["serve.page"] = 5 }, { chunk = 1, prefix = false } },
  { "7 rows for 2 requests", { ["serve.rows"] = 7, ["serve.requests"] = 2 } },
  { "a small pool, memory full of NaN", { ["serve.pages"] = 11 }, { poison = 255 }, 1 },
}

local function run(device, gpus)
  local _ <close> = engine.open { recipe = recipe("f32", { device = device }), read = read }
  local passed, failed = 0, 0
  local function check(name, expected, got)
    for i = 1, #expected do
      if expected[i] ~= got[i] then
        failed = failed + 1
        print(("%s: request %d differs\n  host %s\n  here %s"):format(name, i,
          expected[i]:sub(1, 70), got[i]:sub(1, 70)))
        return
      end
    end
    passed = passed + 1
  end
  for _, dtype in ipairs { "f32", "bf16" } do
    local given, expected, alone = requests(), {}, {}
    for i, request in ipairs(given) do
      expected[i] = outcomes(dtype, {}, { request })[1]
      if i <= 2 then alone[i] = outcomes(dtype, { device = device }, { request })[1] end
    end
    check(dtype .. ", alone", table.move(expected, 1, 2, 1, {}), alone)
    for tp = 1, math.min(2, gpus) do
      for i, way in ipairs(ways) do
        if tp == 1 or i == 1 then
          local more = { device = device, ["layout.tp"] = tp }
          for key, value in pairs(way[2]) do more[key] = value end
          check(("%s, tp %d, %s"):format(dtype, tp, way[1]), expected, outcomes(dtype, more, given,
            way[3], way[4]))
        end
      end
    end
    print(("%s: %d passed so far, %d failed"):format(dtype, passed, failed))
  end
  print(string.format("%d passed, %d failed", passed, failed))
  return failed == 0
end

local device = arg[1] or "cuda" -- "host": a check of this script, without a GPU
local count, why = core.cuda_count()
if device == "cuda" and count == 0 then
  print("skipped: " .. why)
  print "0 passed, 0 failed"
  os.exit(0)
end
os.exit(run(device, device == "cuda" and count or 2) and 0 or 1)
