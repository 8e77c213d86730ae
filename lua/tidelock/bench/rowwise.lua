--- `./tl bench rowwise`: the kernels of a 1.1 B model that move bytes rather than multiply, on a
-- GPU, beside copies of the driver in the same rounds.
--
-- Sizes are those of a micro-batch of 8 samples of 2,048 tokens: dim 2048, hidden 5632, 32 heads
-- and 4 KV heads of 64; of swiglu 8,192 of those tokens, of the loss 2,048 and 32,000 columns; of
-- the optimizer the largest weight of a layer, and one of 16 M elements.
--
--   moved     each operand once: what is read and what is written
--   of copy   moved / time against the bytes that a copy of 1 GiB reads and writes a second
--
-- A graph repeats the same call, so operands that fit into the GPU's cache measure the cache: such
-- a row says "cached".

local core = require "tidelock.core"
local rounds = require "tidelock.bench.rounds"

local rowwise = {}

local tokens, length, dim, hidden, heads, width = 16384, 2048, 2048, 5632, 32, 64
local swiglu_tokens, loss_tokens, vocab = 8192, 2048, 32000
local cache = 50 << 20 -- bytes, of an H200

local function random(dtype, ...)
  local shape = { ... }
  local y = core.tensor(dtype, shape)
  local columns = shape[#shape]
  if #shape == 3 then columns = shape[2] * shape[3] end
  core.call("init", {}, { y }, { kind = 1, name_hash = #shape * 977 + shape[1] * 131 + columns,
    row_first = 0, col_first = 0, cols_full = columns, first = 0, second = 1 },
    { device = "cuda" })
  return y
end

local function positive(...)
  local y = core.tensor("f32", { ... })
  core.call("init", {}, { y }, { kind = 2, name_hash = 5, row_first = 0, col_first = 0,
    cols_full = 1, first = 1, second = 2 }, { device = "cuda" })
  return y
end

local function ids(count)
  local list = {}
  for i = 1, count do list[i] = i * 7919 % vocab end
  return core.tensor("i32", { count }, list)
end

local function segments()
  local starts = {}
  for i = 0, tokens // length do starts[i + 1] = i * length end
  return core.tensor("i32", { #starts }, starts)
end

--- Bytes of an element: gradient, m and v twice, the weight and, of a bf16 weight, its f32 master.
local function adamw(name, count, master)
  return { op = "adamw", name = name, moved = (master and 30 or 28) * count, make = function()
    return { random("f32", count), core.tensor("f32", { 2 }, { 1, 0 }) },
      { random(master and "bf16" or "f32", count), random("f32", count), positive(count),
        master and random("f32", count) },
      { scalar_first = 0, beta1 = core.f32(0.9), beta2 = core.f32(0.95), eps = core.f32(1e-8),
        decay = core.f32(0.1), lr_scale = 1 }, { scalars = { core.f32(1e-4), 1, 1 } }
  end }
end

local function rope(name, count)
  return { op = "rope", name = name, moved = 4 * tokens * count * width, make = function()
    return { random("bf16", tokens, count, width), segments(),
      random("f32", length, width // 2, 2) },
      { core.tensor("bf16", { tokens, count, width }) }, { inverse = 0, interleaved = 0 }
  end }
end

local function logits() return random("bf16", loss_tokens, vocab) end

local function row_sum_exp(name, leaves)
  return { op = "row_sum_exp", name = name, moved = 2 * loss_tokens * vocab, make = function()
    local outputs = {}
    for i = 1, 3 do outputs[i] = core.tensor("f32", { loss_tokens }) end
    return { logits(), positive(loss_tokens), ids(loss_tokens) }, outputs,
      { columns = vocab, first = 0, leaves = leaves }
  end }
end

--- `ins` and `outs` bf16 operands of one shape.
local function elements(op, rows, columns, ins, outs, attrs)
  return { op = op, name = op == "binary" and "residual" or op,
    moved = 2 * rows * columns * (ins + outs), make = function()
    local inputs, outputs = {}, {}
    for i = 1, ins do inputs[i] = random("bf16", rows, columns) end
    for i = 1, outs do outputs[i] = core.tensor("bf16", { rows, columns }) end
    return inputs, outputs, attrs
  end }
end

--- make() gives what core.call takes.
local cases = {
  { op = "rms_norm", name = "rms_norm", moved = 4 * tokens * dim, make = function()
    return { random("bf16", tokens, dim), random("f32", dim) },
      { core.tensor("bf16", { tokens, dim }), core.tensor("f32", { tokens }) },
      { eps = core.f32(1e-5) }
  end },
  { op = "rms_norm_grad", name = "rms_norm_grad", moved = 6 * tokens * dim, make = function()
    return { random("bf16", tokens, dim), random("bf16", tokens, dim), random("f32", dim),
      positive(tokens) }, { core.tensor("bf16", { tokens, dim }) }, {}
  end },
  { op = "sum_tokens", name = "sum_tokens: a gain", moved = 4 * tokens * dim, make = function()
    return { random("bf16", tokens, dim), random("bf16", tokens, dim), positive(tokens) },
      { core.tensor("f32", { 1, dim }) }, { kind = 2, first = 0, samples = tokens // length,
      length = length, runs = 1, mode = 0 }
  end },
  elements("swiglu", swiglu_tokens, hidden, 2, 1, {}),
  elements("swiglu_grad", swiglu_tokens, hidden, 3, 2, {}),
  rope("rope, 32 heads", heads),
  rope("rope, 4 KV heads", 4),
  elements("binary", tokens, dim, 2, 1, { kind = 0, broadcast = 0 }),
  { op = "embedding", name = "embedding", moved = 4 * tokens * dim, make = function()
    return { ids(tokens), random("bf16", vocab, dim) }, { core.tensor("bf16", { tokens, dim }) },
      { first = 0 }
  end },
  { op = "row_max", name = "loss: row_max", moved = 2 * loss_tokens * vocab, make = function()
    return { logits() }, { core.tensor("f32", { loss_tokens }) }, { columns = vocab }
  end },
  row_sum_exp("loss: row_sum_exp", 1),
  row_sum_exp("loss: row_sum_exp, 8 leaves", 8),
  { op = "cross_entropy_grad", name = "loss: gradient", moved = 4 * loss_tokens * vocab,
    make = function()
    return { logits(), positive(loss_tokens), positive(loss_tokens), ids(loss_tokens),
      positive(loss_tokens) }, { core.tensor("bf16", { loss_tokens, vocab }) },
      { columns = vocab, first = 0, vocab = vocab, smoothing = 0, z = core.f32(1e-4) }
  end },
  { op = "square_sum", name = "square_sum", moved = 4 * vocab * dim, make = function()
    return { random("f32", vocab, dim) }, { core.tensor("f32", { 1 }) },
      { axis = 0, begin = 0, extent = vocab, parts = 1, slot_first = 0 }
  end },
  adamw("adamw, a layer's largest", dim * hidden, true),
  adamw("adamw, 16 M", 1 << 24, true),
  adamw("adamw, 16 M, f32", 1 << 24, false),
}

local function measure(case, copies, count)
  local inputs, outputs, attrs, options = case.make()
  local on = { device = "cuda", repeats = math.max(3, 20000000000 // case.moved) }
  for key, value in pairs(options or {}) do on[key] = value end -- a set: order does not show
  local entrant = { turn = function()
    local ms = core.call(case.op, inputs, outputs, attrs, on)
    return { seconds = ms / 1e3, cpu = ms / 1e3 }
  end }
  rounds.run({ entrant, copies }, count)
  for _, list in ipairs { inputs, outputs } do
    for i = 1, 5 do
      if list[i] then list[i]:close() end
    end
  end
  local seconds = rounds.middle(entrant, "seconds")
  local speed, copy = case.moved / seconds, rounds.middle(copies, "speed")
  return { case.name, ("%.1f"):format(case.moved / 1e6), ("%.1f"):format(seconds * 1e6),
    ("%.0f"):format(speed / 1e9), ("%.0f %%%s"):format(100 * speed / copy,
      case.moved < cache and ", cached" or "") }
end

---@param options table # rounds
function rowwise.tables(options)
  local result = {
    title = "Kernels that move bytes, on a GPU: a micro-batch of a 1.1 B model, bf16",
    columns = { "kernel", "moved, MB", "us", "GB/s", "of copy" }, rows = {},
    notes = {},
  }
  local gpus, why = core.cuda_count()
  if gpus == 0 then
    table.insert(result.notes, "not measured: " .. why)
    return { result }
  end
  local speed = 0
  local copies = { turn = function()
    speed = core.doctor.copy_speed(0)
    return { seconds = 2 * (1 << 30) / speed, cpu = 0, speed = speed }
  end }
  for _, case in ipairs(cases) do
    if core.interrupted() then break end
    result.rows[#result.rows + 1] = measure(case, copies, options.rounds)
  end
  table.insert(result.notes, ("copy: 1 GiB inside the GPU, %.0f GB/s read and written"):format(
    speed / 1e9))
  return { result }
end

return rowwise
