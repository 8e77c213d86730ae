--- few.lua - steps of up to 8 rows, which one kernel of a GPU does (kernels/fused/pass.h), give the
--- tokens and log-probabilities of the host: contexts of several rounds of keys and several parts,
--- windows, groups of many heads, pages of all sizes, prompts in chunks of a few rows. So do steps
--- of more rows, whose attention and whose gate and up have kernels of their own.
---
---     build/tidelock lua tests/gpu/few.lua [cuda|host] [PART OF A CASE'S NAME]
---
--- "host" is a check of this script. Needs no Lua packages.
local folder = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = folder .. "/../?.lua;" .. folder .. "/?.lua;" .. package.path
local beside = require "support.beside"
local initial = require "initial"

---@class few.Case: beside.Shape
---@field name string
---@field factor? number # of weights, 10 where it is not said: logits that differ
---@field more? integer # tokens that each request makes, 14 where it is not said
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
  { name = "140 rows, gate and up in tiles of 128 x 88", dim = 256, heads = 4, kv_heads = 2,
    hidden = 4808, more = 4, settings = { ["serve.page"] = 64, ["serve.requests"] = 140,
      ["serve.rows"] = 256 }, options = {}, prompts = few_tokens(140) },
  { name = "30 rows, a choice of 4,300 by draws and of the largest", dim = 256, heads = 4,
    kv_heads = 2, vocab = 4300, draws = true, more = 6, settings = { ["serve.page"] = 64,
      ["serve.requests"] = 30 }, options = {}, prompts = few_tokens(30) },
  { name = "24 rows of two leaves, longer than a span of the row rule", dim = 2304, heads = 36,
    kv_heads = 4, leaves = 2, more = 4, settings = { ["serve.page"] = 64,
      ["serve.requests"] = 24 }, options = {}, prompts = few_tokens(24) },
  { name = "140 rows of eight leaves", dim = 512, heads = 8, kv_heads = 8, leaves = 8, more = 4,
    settings = { ["serve.page"] = 64, ["serve.requests"] = 140, ["serve.rows"] = 256 },
    options = {}, prompts = few_tokens(140) },
  { name = "30 rows, gates whose sigmoids are no ordinary numbers", dim = 512, heads = 8,
    kv_heads = 2, factor = 300, more = 6, settings = { ["serve.page"] = 64,
      ["serve.requests"] = 30 }, options = {}, prompts = few_tokens(30) },
  { name = "1,120 rows of prompts, memory full of NaN", dim = 1536, heads = 24, kv_heads = 3,
    more = 2, settings = { ["serve.page"] = 64, ["serve.rows"] = 1200 },
    options = { poison = 255 }, prompts = { 500, 300, 257, 63 } },
  { name = "1,100 rows of prompts, and the rest of one", dim = 512, heads = 8, kv_heads = 2,
    more = 2, settings = { ["serve.page"] = 128, ["serve.rows"] = 1100 },
    options = {}, prompts = { 1000, 411 } },
}

--- Which token request `index` takes.
local function choice_of(index)
  if index % 2 == 0 then return {} end
  return { temperature = 0.5 + index % 5 / 4, top_k = index % 3 * 7, seed = index, echo = true,
    top_p = index % 4 == 1 and 0.9 or 1 }
end

local function recipe(case, device)
  local all = { device = device, ["serve.context"] = 1024, ["serve.page"] = 16,
    ["serve.rows"] = 64, ["serve.requests"] = 8, ["blocks.attention.kv"] = 128 }
  for key, value in pairs(case.settings) do all[key] = value end
  return beside.recipe(case, "bf16", all)
end

local function requests(case)
  local list = {}
  for i, length in ipairs(case.prompts) do
    local tokens = {}
    for k = 1, length do tokens[k] = (i * 31 + k * k * 7) % beside.vocab end
    list[i] = case.draws and choice_of(i) or {}
    list[i].tokens, list[i].max_tokens = tokens, case.more or 14
  end
  return list
end

local device = beside.device(arg[1])
for _, case in ipairs(cases) do
  if case.name:find(arg[2] or "", 1, true) then
    local given, read = requests(case), initial(case.factor or 10)
    local expected = beside.outcomes(recipe(case, "host"), read, given, case.options)
    local got = beside.outcomes(recipe(case, device), read, given, case.options)
    print(("%s: %s"):format(case.name,
      beside.compare(case.name, expected, got) and "equal" or "DIFFERS"))
  end
end
beside.finish()
