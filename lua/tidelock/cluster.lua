--- cluster.lua - machine facts from a YAML file, and the step that they predict for a plan.
---
---     name: 8 x H200      memory: 139.8 GiB a rank      bandwidth: 3.9 TB/s
---     matrix: { bf16: 740, f32: 50 } TFLOP/s            link: 367 GB/s
---     attention: 500 TFLOP/s                            latency: 10 us a message
---
--- time = matrix products + attention + other bytes + messages, of the slowest pipeline rank,
--- stretched by the pipeline's bubble. Nothing is overlapped: an upper guess, and said so.
local core = require "tidelock.core"
local experts_plan = require "tidelock.experts_plan"
local suggest = require "tidelock.suggest"

local cluster = {}

-- Of ranks in several hosts: ranks of an island with fast links, and GB/s of a rank to the others.
local optional = { "island", "network" }
local wanted = { "name", "ranks", "memory", "matrix", "attention", "bandwidth", "link", "latency" }

local function positive(value) return type(value) == "number" and value > 0 end

--- Facts of a file; every mistake at once.
---@param path string
---@return table
function cluster.read(path)
  if not core.files.exists(path) then
    error({ status = 2, message = path .. ": there is no such file" }, 0)
  end
  local good, facts = pcall(core.yaml.decode, core.files.read_all(path))
  if not good then error({ status = 2, message = path .. ": " .. tostring(facts) }, 0) end
  local problems, known = {}, {}
  for _, list in ipairs { wanted, optional } do
    for _, key in ipairs(list) do known[key] = true end
  end
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
  if #problems == 0 and facts.island and (facts.ranks % facts.island ~= 0 or not facts.network) then
    problems[#problems + 1] = "island: it divides ranks, and network says how fast the others are"
  end
  if #problems > 0 then
    error({ status = 2, message = path .. ": " .. table.concat(problems, "\n" .. path .. ": ") }, 0)
  end
  return facts
end

local grouped = { grouped_linear = true, grouped_linear_grad_input = true,
  grouped_linear_grad_weight = true }
local products = { linear = true, linear_grad_input = true, linear_grad_weight = true }

local function elements(v)
  local count = 1
  for _, size in ipairs(v.shape) do count = count * size end
  return count
end

--- Floating-point operations of a product from its operands.
local function product_flops(made)
  if made.op == "linear_grad_weight" then
    return 2 * made.attrs.samples * made.attrs.length * elements(made.outputs[1])
  end
  local flops, parts = 0, made.attrs.parts
  for i = 1, parts do
    local weight = made.inputs[made.op == "linear" and 1 + i or parts + i]
    local rows = made.inputs[1].shape[1]
    flops = flops + 2 * rows * elements(weight)
  end
  return flops
end

--- Products of experts, if every expert had as many rows: share of the rows that there is room for.
local function grouped_flops(made, share)
  local rows, flops = made.inputs[1].shape[1] * share, 0
  local experts = made.op == "grouped_linear_grad_weight" and made.outputs[1].shape[1]
  if experts then return 2 * rows * elements(made.outputs[1]) / experts end
  for _, v in ipairs(made.inputs) do
    if v.buffer.kind == "weights" then flops = flops + 2 * rows * elements(v) / v.shape[1] end
  end
  return flops
end

--- Causal attention over whole samples: 2 products forward, 5 backward, half of the square.
local function attention_flops(made, length)
  local q = made.inputs[1].shape
  return (made.op == "attention" and 4 or 10) * q[1] * q[2] * q[3] * length / 2
end

local function bytes_of(made)
  local bytes = 0
  for i = 1, #made.inputs do
    bytes = bytes + (made.inputs[i] and made.inputs[i].buffer.bytes or 0)
  end
  for i = 1, #made.outputs do
    bytes = bytes + (made.outputs[i] and made.outputs[i].buffer.bytes or 0)
  end
  return bytes
end

--- Seconds of a step on one pipeline rank, by what they are spent on.
local function spend(plan, rank, facts)
  local range, dtype, share = rank.sections.step, plan.spec.dtype, experts_plan.share(plan)
  local time = { matrix = 0, attention = 0, bandwidth = 0, messages = 0 }
  for i = range[1], range[1] + range[2] - 1 do
    local made = rank.instructions[i]
    if made.attrs.group then
      local view = made.inputs[1] or made.outputs[1]
      local bytes = view.buffer.bytes * (made.op == "exchange" and share or 1)
      time.messages = time.messages + facts.latency * 1e-6 + bytes / (facts.link * 1e9)
    elseif grouped[made.op] then
      time.matrix = time.matrix + grouped_flops(made, share) / (facts.matrix[dtype] * 1e12)
    elseif products[made.op] then
      time.matrix = time.matrix + product_flops(made) / (facts.matrix[dtype] * 1e12)
    elseif made.op == "attention" or made.op == "attention_grad" then
      time.attention = time.attention + attention_flops(made, plan.spec.batch.length)
        / (facts.attention * 1e12)
    else
      time.bandwidth = time.bandwidth + bytes_of(made) / (facts.bandwidth * 1e12)
    end
  end
  time.total = time.matrix + time.attention + time.bandwidth + time.messages
  return time
end

--- The prediction: seconds of a step by cause (of the slowest rank, without the bubble), step
--- seconds with it, tokens per second, and whether a rank's memory is enough.
---@param plan table # after the stage place
---@param facts table # of cluster.read
---@param bubble number # share of a pipeline's time that is idle
function cluster.predict(plan, facts, bubble)
  local slowest, most = nil, 0
  for _, rank in ipairs(plan.ranks) do
    local time = spend(plan, rank, facts)
    if not slowest or time.total > slowest.total then slowest = time end
  end
  for _, place in ipairs(plan.places) do most = math.max(most, place.bytes) end
  local step = slowest.total / (1 - bubble)
  local names, bound = { "matrix", "attention", "bandwidth", "messages" }, "matrix"
  for _, name in ipairs(names) do
    if slowest[name] > slowest[bound] then bound = name end
  end
  return {
    time = slowest, step_s = step, bound = bound,
    tokens_per_s = plan.spec.batch.samples * plan.spec.batch.length / step,
    fits = most <= facts.memory * 2 ^ 30, bytes = most,
  }
end

return cluster
