--- `./tl bench gemm`: the products of a 1.1 B model on a GPU, beside PyTorch on the same GPU.
--
-- Both sides replay graphs of as many products as take some milliseconds, in turns, on random
-- numbers. The peer has the free choice of cuBLASLt; Tidelock's bits are those of the contract, and
-- who multiplies is what a recipe gets unasked (blocks.gemm.provider). Leaves: the same product
-- with its sum over k cut into that many runs.

local blocks = require "tidelock.language.blocks"
local core = require "tidelock.core"
local peers = require "tidelock.bench.peer"
local rounds = require "tidelock.bench.rounds"

local gemm = {}

--- Features of the parts, and what they read: dim 2048, 32 heads, 4 KV heads, hidden 5632.
local layers = {
  { name = "q k v", widths = { 2048, 256, 256 }, depth = 2048 },
  { name = "out", widths = { 2048 }, depth = 2048, cut = true },
  { name = "gate up", widths = { 5632, 5632 }, depth = 2048 },
  { name = "down", widths = { 2048 }, depth = 5632, cut = true },
  { name = "logits", widths = { 32000 }, depth = 2048 },
}

local function total(widths)
  local sum = 0
  for _, width in ipairs(widths) do sum = sum + width end
  return sum
end

--- Every product that is measured: { op, layer, rows, leaves, mode }.
local function list()
  local all = {}
  local function add(op, layer, rows, leaves, mode)
    all[#all + 1] = { op = op, layer = layer, rows = rows, leaves = leaves, mode = mode }
  end
  for _, layer in ipairs(layers) do
    for _, rows in ipairs { 1, 16, 64, 128, 512, 2048, 8192 } do add("linear", layer, rows, 1) end
    for _, rows in ipairs { 2048, 8192 } do
      add("linear_grad_input", layer, rows, 1)
      add("linear_grad_weight", layer, rows, 1, 0)
      add("linear_grad_weight", layer, rows, 1, 1)
    end
    for _, leaves in ipairs { 2, 4, 8 } do
      add(layer.cut and "linear" or "linear_grad_input", layer, 8192, leaves)
    end
  end
  return all
end

local function random(dtype, rows, columns, spread)
  local y = core.tensor(dtype, { rows, columns })
  core.call("init", {}, { y }, { kind = 1, name_hash = rows * 131 + columns, row_first = 0,
    col_first = 0, cols_full = columns, first = 0, second = spread }, { device = "cuda" })
  return y
end

--- Operands of core.call.
local function operands(product)
  local layer, rows, op = product.layer, product.rows, product.op
  local inputs, outputs = {}, {}
  if op == "linear_grad_weight" then
    inputs = { random("bf16", rows, layer.widths[1], 1), random("bf16", rows, layer.depth, 1) }
    outputs[1] = core.tensor("f32", { layer.widths[1], layer.depth })
    local length = math.min(rows, 2048)
    return inputs, outputs, { first = 0, samples = rows // length, length = length,
      stride = length, mode = product.mode, leaves = product.leaves }
  end
  local parts, ranges = #layer.widths, {}
  for i, width in ipairs(layer.widths) do
    local weight = random("bf16", width, layer.depth, 0.02)
    ranges[2 * i - 1], ranges[2 * i] = 0, width
    if op == "linear" then
      inputs[1], inputs[1 + i] = inputs[1] or random("bf16", rows, layer.depth, 1), weight
      outputs[i] = core.tensor("bf16", { rows, width })
    else
      inputs[i], inputs[parts + i] = random("bf16", rows, width, 1), weight
      outputs[1] = outputs[1] or core.tensor("bf16", { rows, layer.depth })
    end
  end
  if op == "linear" then return inputs, outputs, { parts = parts, biases = 0,
    leaves = product.leaves } end
  return inputs, outputs, { parts = parts, leaves = product.leaves, ranges = ranges }
end

local function close(lists)
  for _, tensors in ipairs(lists) do
    for _, tensor in ipairs(tensors) do tensor:close() end
  end
end

--- A row of the table; adds log(ratio) to sums[kind].
local function measure(product, peer, count, sums)
  local layer, op = product.layer, product.op
  local width = op == "linear_grad_weight" and layer.widths[1] or total(layer.widths)
  local work = 2.0 * product.rows * width * layer.depth
  local repeats = math.max(2, math.min(100, math.floor(2e12 / work)))
  local inputs, outputs, attrs = operands(product)
  local options = { device = "cuda", repeats = repeats,
    gemm_provider = blocks.gemm_providers.auto }
  local ours = {
    turn = function()
      local ms = core.call(op, inputs, outputs, attrs, options)
      return { seconds = ms / 1e3, cpu = ms / 1e3 }
    end,
  }
  local request = { op = op, rows = product.rows, width = width, depth = layer.depth,
    repeats = repeats, resume = product.mode == 1 or nil }
  local theirs = peer and { turn = function() return peer:ask(request) end }
  rounds.run(theirs and { ours, theirs } or { ours }, count)
  close { inputs, outputs }
  local kind = product.mode == 1 and "resumed" or op .. " " .. product.leaves
  local row = { op, layer.name, product.rows, product.mode == 1 and "resumed" or product.leaves,
    ("%.1f"):format(rounds.middle(ours, "seconds") * 1e6),
    ("%.0f"):format(work / rounds.middle(ours, "seconds") / 1e12), "-", "-" }
  if theirs and not theirs.skip then
    local text, ratio = rounds.ratio(ours, theirs, "seconds")
    row[7], row[8] = ("%.0f"):format(work / rounds.middle(theirs, "seconds") / 1e12), text
    local sum = sums[kind] or { log = 0, count = 0 }
    sum.log, sum.count = sum.log + math.log(ratio), sum.count + 1
    if not sums[kind] then sums[kind], sums[#sums + 1] = sum, kind end
  end
  return row, theirs and theirs.skip
end

---@param options table # rounds, alone
function gemm.tables(options)
  local result = {
    title = "Matrix products on a GPU, bf16",
    columns = { "operator", "layer", "rows", "leaves", "us", "TFLOP/s", "peer", "ratio" },
    rows = {}, notes = { "ratio: TFLOP/s here / TFLOP/s of the peer in the same round" },
  }
  local gpus, why = core.cuda_count()
  if gpus == 0 then
    table.insert(result.notes, "not measured: " .. why)
    return { result }
  end
  local peer, reason = nil, "--alone"
  if not options.alone then peer, reason = peers.open "gemm.py" end
  table.insert(result.notes, peer and "peer: " .. peer.about or "no peer: " .. reason)
  local sums = {}
  for _, product in ipairs(list()) do
    if core.interrupted() then break end
    local row, skip = measure(product, peer, options.rounds, sums)
    result.rows[#result.rows + 1] = row
    if skip then table.insert(result.notes, ("no peer of %s: %s"):format(row[1], skip)) end
  end
  for _, kind in ipairs(sums) do
    table.insert(result.notes, ("geometric mean of %s: %.3f over %d"):format(kind,
      math.exp(sums[kind].log / sums[kind].count), sums[kind].count))
  end
  if peer then peer:close() end
  return { result }
end

return gemm
