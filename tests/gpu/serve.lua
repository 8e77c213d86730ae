--- serve.lua - a request gives the same tokens and log-probabilities on a GPU as on the host:
--- alone, in a crowd, with any chunks, pages, pools and prefixes, on one GPU and cut over two by tp
--- or pp.
---
---     build/tidelock lua tests/gpu/serve.lua [cuda|host]
---
--- "host" is a check of this script. An engine stays open throughout, so that the device does.
---
--- Sections run kernel by kernel at first, then as graphs: requests are long enough for both. Needs
--- no Lua packages.
local engine = require "tidelock.serve.engine"

local folder = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = folder .. "/../?.lua;" .. folder .. "/?.lua;" .. package.path
local beside = require "support.beside"
local read = require "initial" (10) -- ten times as large as usual: logits that differ

local function recipe(dtype, more)
  local all = { ["serve.context"] = 160, ["serve.page"] = 16, ["serve.rows"] = 48,
    ["serve.requests"] = 6, ["blocks.attention.kv"] = 64 }
  for key, value in pairs(more) do all[key] = value end
  return beside.recipe({ dim = 128, heads = 8, kv_heads = 2 }, dtype, all)
end

--- Prompts short and long, some with a prefix in common, with all controls.
local function requests()
  local list = {}
  for i = 1, 9 do
    local tokens = {}
    for k = 1, i % 3 == 0 and 33 or i % 3 == 1 and 5 * i or 1 do
      tokens[k] = ((i % 3 == 0 and 0 or i * 31) + k * k * 7) % beside.vocab
    end
    list[i] = { tokens = tokens, max_tokens = 12 + i, temperature = ({ 0, 0.8, 1.2 })[i % 3 + 1],
      top_p = ({ 1, 0.9, 0.6, 1 })[i % 4 + 1], top_k = i % 5 == 0 and 9 or 0, seed = i,
      request = i % 2, echo = i == 4 or nil }
  end
  return list
end

--- `settings` of serve and layout, options of the engine, steps between two requests.
local ways = {
  { "a crowd that comes late", { ["blocks.attention.q"] = 64 }, {}, 2 },
  { "chunks of 3, pages of 4", { ["serve.page"] = 4 }, { chunk = 3 } },
  { "chunks of 1, no prefixes, pages of 5", { ["serve.page"] = 5 }, { chunk = 1, prefix = false } },
  { "7 rows for 2 requests", { ["serve.rows"] = 7, ["serve.requests"] = 2 } },
  { "a small pool, memory full of NaN", { ["serve.pages"] = 11 }, { poison = 255 }, 1 },
}

--- The comparisons of one dtype with up to `most` ranks.
local function compare_all(dtype, device, most)
  local function outcomes(more, given, options, late)
    return beside.outcomes(recipe(dtype, more), read, given, options, late)
  end
  local given, expected, alone = requests(), {}, {}
  for i, request in ipairs(given) do
    expected[i] = outcomes({}, { request })[1]
    if i <= 2 then alone[i] = outcomes({ device = device }, { request })[1] end
  end
  beside.compare(dtype .. ", alone", table.move(expected, 1, 2, 1, {}), alone)
  for _, cut in ipairs { { tp = 1, pp = 1 }, { tp = 2, pp = 1 }, { tp = 1, pp = 2 } } do
    local whole = cut.tp * cut.pp == 1
    for _, way in ipairs(cut.tp * cut.pp <= most and (whole and ways or { ways[1] }) or {}) do
      local more = { device = device, ["layout.tp"] = cut.tp, ["layout.pp"] = cut.pp }
      for key, value in pairs(way[2]) do more[key] = value end
      beside.compare(("%s, tp %d pp %d, %s"):format(dtype, cut.tp, cut.pp, way[1]), expected,
        outcomes(more, given, way[3], way[4]))
    end
  end
  print(("%s: %d passed so far, %d failed"):format(dtype, beside.passed, beside.failed))
end

local device, gpus = beside.device(arg[1])
do
  local _ <close> = engine.open { recipe = recipe("f32", { device = device }), read = read }
  for _, dtype in ipairs { "f32", "bf16" } do
    compare_all(dtype, device, device == "cuda" and math.min(2, gpus) or 2)
  end
end
beside.finish()
