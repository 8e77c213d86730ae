--- cluster.lua - machine facts from a YAML file; predict.lua makes a step's time of them.
---
---     name: 8 x H200      memory: 139.8 GiB a rank      bandwidth: 3.9 TB/s
---     matrix: { bf16: 740, f32: 50 } TFLOP/s            link: 367 GB/s
---     attention: 500 TFLOP/s                            latency: 10 us a message
---     launch: 2.5 us an instruction                     device: cuda
---     sustained: 0.92, the share of `matrix` that a whole step keeps
---     attention_64: 425, with heads of up to 64 channels
---     leaves: [0.98, 0.94, 0.88], shares of `matrix` for sums in 2, 4, 8 leaves
local beside = require "tidelock.text.beside"
local core = require "tidelock.core"
local suggest = require "tidelock.text.suggest"

local cluster = {}

-- Of ranks in several hosts: ranks of an island with fast links, and GB/s of a rank to the others;
-- us that an instruction takes however little it does; ranks that share the speeds above.
local optional = { "island", "network", "launch", "shared", "sustained", "attention_64" }
local wanted = { "name", "ranks", "memory", "matrix", "attention", "bandwidth", "link", "latency" }

local function positive(value) return type(value) == "number" and value > 0 end

local function shares(list)
  local good = type(list) == "table" and #list > 0
  for _, share in ipairs(good and list or {}) do good = good and positive(share) and share <= 1 end
  return good
end

--- FLOP/s of products in a whole step; `leaves` that their sums are cut into, 1 unless given. More
--- leaves than the file has shares for: the last of them.
function cluster.products(facts, dtype, leaves)
  local log, share = 0, 1
  while 1 << log < (leaves or 1) do log = log + 1 end
  if log > 0 and facts.leaves then share = facts.leaves[math.min(log, #facts.leaves)] end
  return facts.matrix[dtype] * 1e12 * (facts.sustained or 1) * share
end

--- FLOP/s of attention with heads of `width` channels.
function cluster.attention(facts, width)
  return (width <= 64 and facts.attention_64 or facts.attention) * 1e12
end

--- Facts of a file; every mistake at once.
---@param path string
---@return table
function cluster.read(path)
  if not core.files.exists(path) then
    error({ status = 2, message = path .. ": there is no such file" .. beside.hint(path) }, 0)
  end
  local text, why = core.files.read_all(path)
  if not text then error({ status = 2, message = why }, 0) end
  local good, facts = pcall(core.yaml.decode, text)
  if not good then error({ status = 2, message = path .. ": " .. tostring(facts) }, 0) end
  local problems, known = {}, {}
  for _, list in ipairs { wanted, optional } do
    for _, key in ipairs(list) do known[key] = true end
  end
  known.device, known.leaves = true, true
  facts = type(facts) == "table" and facts or {}
  local keys = {}
  for key in pairs(facts) do keys[#keys + 1] = tostring(key) end
  table.sort(keys)
  for _, key in ipairs(keys) do
    if not known[key] then
      local near = suggest.nearest(key, wanted)
      problems[#problems + 1] = ("%s: no such fact%s"):format(key,
        near and "; did you mean " .. near .. "?" or "")
    end
  end
  for _, key in ipairs(wanted) do
    local value = facts[key]
    local good_value = key == "name" and type(value) == "string" or positive(value)
    if key == "matrix" then
      good_value = type(value) == "table" and positive(value.bf16) and positive(value.f32)
    end
    if not good_value then
      problems[#problems + 1] = ("%s: expected %s"):format(key, key == "name" and "a text"
        or key == "matrix" and "{ bf16: TFLOP/s, f32: TFLOP/s }" or "a positive number")
    end
  end
  for _, key in ipairs(optional) do
    if facts[key] ~= nil and not positive(facts[key]) then
      problems[#problems + 1] = key .. ": expected a positive number"
    end
  end
  if facts.device ~= nil and facts.device ~= "host" and facts.device ~= "cuda" then
    problems[#problems + 1] = "device: expected host or cuda"
  end
  if facts.leaves ~= nil and not shares(facts.leaves) then
    problems[#problems + 1] = "leaves: expected shares with 2, 4, 8, .. leaves, as [0.98, 0.94]"
  end
  if facts.sustained and positive(facts.sustained) and facts.sustained > 1 then
    problems[#problems + 1] = "sustained: expected a share, at most 1"
  end
  if #problems == 0 and facts.island and (facts.ranks % facts.island ~= 0 or not facts.network) then
    problems[#problems + 1] = "island: it divides ranks, and network says how fast the others are"
  end
  if #problems > 0 then
    error({ status = 2, message = path .. ": " .. table.concat(problems, "\n" .. path .. ": ") }, 0)
  end
  return facts
end

return cluster
