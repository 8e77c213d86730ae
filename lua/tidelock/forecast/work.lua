--- work.lua - what an instruction is planned to do: bytes, floating-point operations, messages.
---
---     bytes   of its operands, each counted once
---     flop    matrix products: 2 m n k; attention: 2 h (c + cv) pairs forward, twice that backward
---             (flops.lua's convention: half of length^2 pairs, fewer in a window); others 0
---     moved   bytes that a rank reads from others or sends to them, as messages are planned:
---             gather    (n - 1) pieces              reduce_scatter   (n - 1) pieces
---             all_reduce of b bytes: (n - 1) b up to 16 KiB, where every rank folds all of it;
---             above, two slices of b / n from each of the n - 1 others
---             exchange: rows are data; at most what the worst routing brings (most_moved)
local work = {}

local sizes = { f32 = 4, bf16 = 2, f16 = 2, i32 = 4, i64 = 8, u8 = 1 }
local whole_bytes = 16 << 10 -- as in runtime/comm_threads.c

local function count_of(shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return count
end

local function bytes_of(tensor) return tensor and count_of(tensor[2]) * sizes[tensor[1]] or 0 end

local function product(a, b) -- rows of a times elements of b
  return 2 * (a[2][1] or 1) * count_of(b[2])
end

local function linear(ins, attrs, first)
  local flop = 0
  for part = 1, attrs.parts do flop = flop + product(ins[1], ins[first + part]) end
  return flop
end

--- Queries times keys of `samples` samples.
local function pairs_of(tokens, length, window)
  local seen = length * length / 2
  if window and window > 0 and window < length then
    seen = length * window - window * window / 2
  end
  return tokens / length * seen
end

local function attention(q, v, attrs, length, factor)
  local s = q[2]
  return factor * s[2] * (s[3] + v[2][3]) * pairs_of(s[1], length, attrs.window)
end

---@param op string
---@param ins table[] # { dtype, shape } of each input; false where there is none
---@param attrs table
---@param length integer # tokens of a sample
---@return number
function work.flop(op, ins, attrs, length)
  if op == "linear" then return linear(ins, attrs, 1) end
  if op == "linear_grad_input" then return linear(ins, attrs, attrs.parts) end
  if op == "linear_grad_weight" then
    return 2 * attrs.samples * attrs.length * ins[1][2][2] * ins[2][2][2]
  end
  if op == "attention" then return attention(ins[1], ins[3], attrs, length, 2) end
  if op == "attention_grad" then return attention(ins[1], ins[3], attrs, length, 4) end
  return 0
end

--- Planned messages of one rank in a group of `n`; nil for an operator that sends none.
function work.moved(op, ins, outs, n)
  if op == "send" then return bytes_of(ins[1]) end
  if op == "recv" then return bytes_of(outs[1]) end
  if op == "all_gather" then return (n - 1) * bytes_of(ins[1]) end
  if op == "reduce_scatter" then return (n - 1) * bytes_of(outs[1]) end
  if not op:find "^all_reduce" then return nil end
  local bytes = bytes_of(ins[1])
  if bytes <= whole_bytes then return (n - 1) * bytes end
  return 2 * (n - 1) * bytes // n
end

--- The most that an instruction may move: of an exchange, rows of others in the worst routing. They
--- are what its output has room for, and no more than others can send: x has room for the rows of
--- all n ranks at an owner, y at home for all slots. Islands pass on what their stages hold; in
--- a ring everything goes round, half a stage at a time.
function work.most_moved(op, ins, outs, n, attrs)
  if op ~= "exchange" then return work.moved(op, ins, outs, n) end
  local x, y, stage = bytes_of(ins[1]), bytes_of(outs[1]), bytes_of(outs[2])
  if attrs.hops == 2 then return (n - 1) * stage // 2 end
  local others = attrs.home == 1 and x or y
  others = math.min(y, others * (n - 1) // n)
  return others + stage
end

--- Slices of an all_reduce end at 16 elements: one rank may move so much more than its share.
function work.slack(op, n) return op:find "^all_reduce" and 2 * n * 16 * 8 or 0 end

function work.bytes(ins, outs)
  local total, seen = 0, {}
  for _, list in ipairs { ins, outs } do
    for _, tensor in ipairs(list) do
      if tensor and not seen[tensor] then total = total + bytes_of(tensor) end
      if tensor then seen[tensor] = true end
    end
  end
  return total
end

work.bytes_of = bytes_of

return work
