--- few.lua - steps of up to 8 rows, which one kernel of a GPU does (kernels/fused/pass.h), give the
--- tokens and log-probabilities of the host: contexts of several rounds of keys and several parts,
--- windows, groups of many heads, pages of all sizes, prompts in chunks of a few rows. So do steps
--- of more rows, whose attention and whose gate and up have kernels of their own.
---
---     build/tidelock lua tests/gpu/few.lua [cuda|host]
---
--- "host" is a check of this script. Needs no Lua packages.
local core = require "tidelock.core"
local engine = require "tidelock.serve.engine"
local tl = require "tidelock"
local nn = tl.nn

local folder = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = folder .. "/?.lua;" .. package.path
local read = require "initial" (10) -- ten times as large as usual: logits that differ

---@class few.Case
---@field name string
---@field dim integer
---@field heads integer
---@field kv_heads integer
---@field window? integer
---@field hidden? integer # features of gate and up, 192 where it is not said
---@field more? integer # tokens that each request makes, 14 where it is not said
---@field vocab? integer # 333 where it is not said
---@field draws? boolean # every other request draws its tokens, and tells of its prompt's
---@field settings table<string, any>
---@field options table<string, any> # of the engine
---@field prompts integer[] # lengths

--- Lengths of `count` prompts: most of them short, every seventh up to 400 tokens.
local function lengths(count)
  local list = {}
  for i = 1, count do list[i] = 1 + i * 37 % (i % 7 == 0 and 400 or 70) end
  return list
end

--- Lengths of `count` prompts of one to three tokens.
local function few_tokens(count)
  local list = {}
  for i = 1, count do list[i] = 1 + i % 3 end
  return list
end

---@type few.Case[]
local cases = {
  { name = "one row, three rounds of keys, parts of 256", dim = 128, heads = 8, kv_heads = 2,
    settings = { ["blocks.attention.split"] = 256 }, options = {}, prompts = { 900 } },
  { name = "eight rows of all lengths", dim = 512, heads = 8, kv_heads = 1, settings = {},
    options = {}, prompts = { 1, 500, 127, 128, 129, 383, 384, 385 } },
  { name = "groups of 16, pages of 8", dim = 512, heads = 32, kv_heads = 2,
    settings = { ["serve.page"] = 8 }, options = {}, prompts = { 410, 31, 32 } },
  { name = "groups of 12, pages of 64, a window", dim = 384, heads = 24, kv_heads = 2,
    window = 150, settings = { ["serve.page"] = 64 }, options = {}, prompts = { 600, 149, 150 } },
  { name = "chunks of 7, memory full of NaN", dim = 128, heads = 4, kv_heads = 4, settings = {},
    options = { chunk = 7, poison = 255 }, prompts = { 520, 3, 70 } },
  { name = "chunks of 3, no prefixes", dim = 256, heads = 4, kv_heads = 2,
    settings = { ["blocks.attention.split"] = 128 }, options = { chunk = 3, prefix = false },
    prompts = { 300, 299 } },
  { name = "rows longer than a span of the row rule", dim = 2304, heads = 36, kv_heads = 4,
    settings = {}, options = {}, prompts = { 6, 2 } },
  { name = "24 rows: a unit a block, boxes asked for early", dim = 512, heads = 8, kv_heads = 2,
    settings = { ["serve.page"] = 64, ["serve.requests"] = 24 }, options = {},
    prompts = lengths(24) },
  { name = "70 rows: several units a block, pages of 128", dim = 512, heads = 8, kv_heads = 8,
    settings = { ["serve.page"] = 128, ["serve.requests"] = 70, ["serve.rows"] = 128 },
    options = {}, prompts = lengths(70) },
  { name = "70 rows, chunks of 20, memory full of NaN", dim = 512, heads = 8, kv_heads = 8,
    settings = { ["serve.page"] = 64, ["serve.requests"] = 70, ["serve.rows"] = 160 },
    options = { chunk = 20, poison = 255 }, prompts = lengths(70) },
  { name = "70 rows, gate and up in tiles of 128 x 48", dim = 256, heads = 4, kv_heads = 2,
    hidden = 4808, more = 4, settings = { ["serve.page"] = 64, ["serve.requests"] = 70,
      ["serve.rows"] = 128 }, options = {}, prompts = few_tokens(70) },
  { name = "140 rows, gate and up in tiles of 128 x 96", dim = 256, heads = 4, kv_heads = 2,
    hidden = 4808, more = 4, settings = { ["serve.page"] = 64, ["serve.requests"] = 140,
      ["serve.rows"] = 256 }, options = {}, prompts = few_tokens(140) },
  { name = "30 rows, a choice of 4,300 by draws and of the largest", dim = 256, heads = 4,
    kv_heads = 2, vocab = 4300, draws = true, more = 6, settings = { ["serve.page"] = 64,
      ["serve.requests"] = 30 }, options = {}, prompts = few_tokens(30) },
}

--- Which token request `index` takes.
local function choice_of(index)
  if index % 2 == 0 then return {} end
  return { temperature = 0.5 + index % 5 / 4, top_k = index % 3 * 7, seed = index, echo = true,
    top_p = index % 4 == 1 and 0.9 or 1 }
end

local function recipe(case, device)
  local function layer()
    return {
      nn.residual { nn.rms_norm {}, nn.attention { heads = case.heads, kv_heads = case.kv_heads,
        window = case.window } },
      nn.residual { nn.rms_norm {}, nn.swiglu { hidden = case.hidden or 192 } },
    }
  end
  local all = { device = device, ["serve.context"] = 1024, ["serve.page"] = 16,
    ["serve.rows"] = 64, ["serve.requests"] = 8, ["blocks.attention.kv"] = 128 }
  for key, value in pairs(case.settings) do all[key] = value end
  return tl.recipe({
    model  = nn.decoder { vocab = case.vocab or 333, dim = case.dim, layers = 3, layer = layer },
    dtype  = "bf16",
    data   = tl.data.given { { tokens = { 0 } } },
    batch  = { samples = 1, length = 64 },
    policy = { "layout", leaves = { tp = 4, dp = 1 } },
    train  = { steps = 1, lr = 0 },
  }):with(all)
end

--- What each request gave, as text.
local function outcomes(case, device)
  local e <close> = engine.open({ recipe = recipe(case, device), read = read }, case.options)
  local owner, text = {}, {}
  for i, length in ipairs(case.prompts) do
    local tokens = {}
    for k = 1, length do tokens[k] = (i * 31 + k * k * 7) % 333 end
    local asked = case.draws and choice_of(i) or {}
    asked.tokens, asked.max_tokens = tokens, case.more or 14
    owner[assert(e:submit(asked))] = i
    text[i] = {}
  end
  while not e:idle() do
    for _, event in ipairs(e:step()) do
      table.insert(text[owner[event.id]], ("%d:%d %08x"):format(event.position, event.token,
        event.logprob_bits))
    end
  end
  for i, list in ipairs(text) do text[i] = table.concat(list, " ") end
  return text
end

local device = arg[1] or "cuda"
local count, why = core.cuda_count()
if device == "cuda" and count == 0 then
  print("skipped: " .. why)
  print "0 passed, 0 failed"
  os.exit(0)
end
local passed, failed = 0, 0
for _, case in ipairs(cases) do
  local expected, got, same = outcomes(case, "host"), outcomes(case, device), true
  for i = 1, #expected do
    if expected[i] ~= got[i] then
      same = false
      print(("%s: request %d differs\n  host %s\n  here %s"):format(case.name, i,
        expected[i]:sub(1, 70), got[i]:sub(1, 70)))
    end
  end
  print(("%s: %s"):format(case.name, same and "equal" or "DIFFERS"))
  passed, failed = passed + (same and 1 or 0), failed + (same and 0 or 1)
end
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0)
