--- Floating-point work of a step, and what this machine could do at best.
--
--   work of a step = 6 * (elements of matrices that multiply a token) * tokens
--                  + 6 * heads * (width of q + width of v) * pairs of an attention
--
-- Forward 2, backward 4: a multiplication and an addition, once forward and twice backward. A pair
-- is a query and a key that it may see: half of length^2 for a causal sample, fewer in a window. A
-- sample counts as one segment, so documents that are packed together make the number high.
-- Of experts those count that a token chooses. Look-ups (embeddings) and elementwise work do not
-- count; a tied head does.
--
-- mfu = work / time / peak, where the peak is a matrix product measured at start, on the device
-- that the recipe names.

local core = require "tidelock.core"

local flops = {}

local function elements(dims)
  local n = 1
  for _, dim in ipairs(dims) do n = n * dim.size end
  return n
end

--- Queries times keys of a sample: key <= query, and fewer than `window` keys back if it is > 0.
-- The convention of half the square, without the diagonal's other half.
local function pairs_of(length, window)
  if not window or window <= 0 or window >= length then return length * length / 2 end
  return length * window - window * window / 2
end

--- Work of one step of the global batch, forward and backward.
---@param graph table # plan.graph: nodes with op, inputs, attrs
---@param batch table # samples, length
function flops.of_step(graph, batch)
  local tokens = batch.samples * batch.length
  local total = 0
  for _, node in ipairs(graph.nodes) do
    if node.op == "linear" and not node.step then
      for part = 1, node.attrs.parts do
        total = total + 6 * elements(node.inputs[1 + part].dims) * tokens
      end
    elseif node.op == "moe" then
      local a = node.attrs
      total = total + 6 * a.top_k * 3 * a.hidden * node.outputs[1].dims[2].size * tokens
    elseif node.op == "attention" then
      local q, v = node.inputs[1].dims, node.inputs[3].dims
      local seen = batch.samples * pairs_of(batch.length, node.attrs.window)
      total = total + 6 * q[2].size * (q[3].size + v[3].size) * seen
    end
  end
  return total
end

local least_products = 8 -- however long they take: a busy machine may stop any one of them

--- FLOP/s of matrix products on this machine, the best of those that fit into `seconds`, and of
-- eight at least.
---@param dtype "f32"|"bf16"
---@param seconds number
---@param threads integer?
---@param device "host"|"cuda"|nil
function flops.measure_peak(dtype, seconds, threads, device)
  if device == "cuda" then return flops.measure_gpu(dtype) end
  local size = dtype == "f32" and 512 or 256
  local x <close> = core.tensor(dtype, { size, size }):fill(0.5)
  local weight <close> = core.tensor(dtype, { size, size }):fill(0.25)
  local y <close> = core.tensor(dtype, { size, size })
  local attrs, options = { parts = 1, biases = 0, leaves = 1 }, { threads = threads }
  local begin, best, count = core.files.seconds(), math.huge, 0
  repeat
    local start = core.files.seconds()
    core.call("linear", { x, weight }, { y }, attrs, options)
    local now = core.files.seconds()
    best, count = math.min(best, now - start), count + 1
  until now - begin > seconds and count >= least_products
  return 2 * size ^ 3 / best
end

--- FLOP/s of matrix products on GPU 0, a few in a row, timed on the device. The numbers are random:
-- a GPU runs zeros faster than anything else.
---@param dtype "f32"|"bf16"
function flops.measure_gpu(dtype)
  local size = dtype == "f32" and 2048 or 4096
  local x <close> = core.tensor(dtype, { size, size })
  local y <close> = core.tensor(dtype, { size, size })
  core.call("init", {}, { x }, { kind = 1, name_hash = 1, row_first = 0, col_first = 0,
    cols_full = size, first = 0, second = 1 })
  local ms = core.call("linear", { x, x }, { y }, { parts = 1, biases = 0, leaves = 1 },
    { device = "cuda", repeats = 10 })
  return 2 * size ^ 3 / (ms / 1000)
end

return flops
