--- paper.lua - rough times of instructions, for who orders them before anything has run.
---
---     kernel    a launch, and the longer of its bytes and its products
---     message   a meeting, and its bytes over a link
---
--- Rows of experts are counted as if every expert had as many: buffers are as long as the worst
--- routing needs, and mostly empty.
local work = require "tidelock.plan.work"

local paper = {}

-- FLOP/s: of products; beside experts, whose models are narrow, of those with less than 512 columns
-- or so short chains, and of weight gradients, which fill few multiprocessors; of products of
-- experts; bytes/s of memory, of a link, and of one that rows of experts take; seconds of a launch,
-- of a message and of one with such rows
paper.speed = { flop = 7e14, narrow = 3.6e14, weight = 1.6e14, grouped = 4.5e14, bytes = 3.9e12,
  link = 3.6e11, rows = 2.8e11, launch = 2.5e-6, message = 1e-5, exchange = 2e-5 }

local grouped = { grouped_linear = true, grouped_linear_grad_input = true,
  grouped_linear_grad_weight = true }

local function count_of(shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return count
end

--- Rows of a wave on a rank, and the rows that its buffers have room for; nil without experts.
---@param l table # plan.local
function paper.experts(l)
  for _, node in ipairs(l.nodes) do
    local f = node.moe
    if f then
      return { even = f.tokens * f.top_k / f.waves, home = f.rows.home, owner = f.rows.owner,
        ep = f.ep }
    end
  end
end

--- Operands as work.lua takes them.
local function tensors(list, experts, op)
  local out = {}
  for i = 1, #list do
    local v = list[i]
    out[i] = v and { v.dtype, v.shape } or false
    local value = v and v.buffer.value
    local rows = value and value.region == "moe" and experts and v.shape[1]
    if rows and op ~= "combine" and (rows == experts.home or rows == experts.owner) then
      local shape = table.move(v.shape, 1, #v.shape, 1, {})
      shape[1] = math.min(rows, experts.even)
      out[i] = { v.dtype, shape }
    end
  end
  return out
end

--- Products of experts with the rows of a wave.
local function grouped_flop(made, experts)
  local flop = 0
  if made.op == "grouped_linear_grad_weight" then
    local y = made.outputs[1].shape
    local part = made.attrs.samples / (made.inputs[3].shape[2] - 1)
    return 2 * experts.even * part * count_of(y) / y[1]
  end
  for _, v in ipairs(made.inputs) do
    if v.buffer.kind == "weights" then
      flop = flop + 2 * experts.even * count_of(v.shape) / v.shape[1]
    end
  end
  return flop
end

--- Seconds of a message.
local function message(made, ins, outs, ranks, experts)
  local speed = paper.speed
  if made.op ~= "exchange" then
    return speed.message + (work.moved(made.op, ins, outs, ranks) or 0) / speed.link
  end
  local row = work.bytes_of(ins[1]) / ins[1][2][1]
  return speed.exchange + row * experts.even * (experts.ep - 1) / experts.ep / speed.rows
end

--- FLOP/s of a product.
local function rate_of(made, experts)
  local speed, op = paper.speed, made.op
  if not experts then return speed.flop end
  if op:find "grad_weight" then return speed.weight end
  if grouped[op] then return speed.grouped end
  local x, y = made.inputs[1] and made.inputs[1].shape, made.outputs[1] and made.outputs[1].shape
  local narrow = op:find "^linear" and math.min(x[2], y[2]) < 512
  return narrow and speed.narrow or speed.flop
end

--- Seconds of an instruction, and whether they are a message's.
---@param made table # of lower.lua
---@param length integer # tokens of a sample
---@param ranks integer # of a group that talks
---@param experts table? # of paper.experts
function paper.seconds(made, length, ranks, experts)
  local ins, outs = tensors(made.inputs, experts, made.op), tensors(made.outputs, experts, made.op)
  if made.attrs.group then return message(made, ins, outs, ranks, experts), true end
  local flop = grouped[made.op] and grouped_flop(made, experts)
    or work.flop(made.op, ins, made.attrs, length)
  return paper.speed.launch + math.max(work.bytes(ins, outs, made.op) / paper.speed.bytes,
    flop / rate_of(made, experts)), false
end

return paper
