--- `./tl bench matmul`: products of square matrices on one thread, beside OpenBLAS on one thread.
--
-- y = x * weight^T by the operator linear with one leaf: the product that every layer uses. The
-- peer is numpy with the kernel that OpenBLAS chooses itself. bf16 is the tensor core's arithmetic
-- emulated; nothing else computes these bits, so it stands alone.

local core = require "tidelock.core"
local peers = require "tidelock.bench.peer"
local rounds = require "tidelock.bench.rounds"

local matmul = {}

local sizes_f32, sizes_bf16 = { 512, 1024, 2048, 4096 }, { 512, 1024 }
local environment = "-u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE OPENBLAS_NUM_THREADS=1"

local function multiply(dtype, size)
  local x = core.tensor(dtype, { size, size }):fill(0.5)
  local weight = core.tensor(dtype, { size, size }):fill(0.25)
  local y = core.tensor(dtype, { size, size })
  local attrs, options = { parts = 1, biases = 0, leaves = 1 }, { threads = 1 }
  local function work() core.call("linear", { x, weight }, { y }, attrs, options) end
  work()
  return {
    turn = function() return rounds.measure(work) end,
    close = function()
      for _, tensor in ipairs { x, weight, y } do tensor:close() end
    end,
  }
end

--- One row: a product of this size, and the peer's if there is one.
local function row_of(dtype, size, peer, count)
  local ours = multiply(dtype, size)
  local entrants, work = { ours }, 2 * size ^ 3 / 1e9
  local theirs = peer and { turn = function() return peer:ask { size = size } end }
  if theirs then entrants[2] = theirs end
  rounds.run(entrants, count)
  ours.close()
  local best, middle = rounds.rate(ours, work)
  local row = { dtype, size, ("%.1f"):format(best), ("%.1f"):format(middle), "-", "-", "-", "-" }
  if theirs and not theirs.skip then
    local peer_best, peer_middle = rounds.rate(theirs, work)
    row[5], row[6] = ("%.1f"):format(peer_best), ("%.1f"):format(peer_middle)
    row[7] = rounds.ratio(ours, theirs, "seconds")
    row[8] = rounds.ratio(ours, theirs, "cpu")
  end
  return row, theirs and theirs.skip, rounds.measured(ours, ("linear %s %d x %d x %d"):format(dtype,
    size, size, size), "GFLOP/s", work)
end

---@param options table # rounds, size: only this one
function matmul.tables(options)
  local only = options.size and { options.size }
  local peer, reason = nil, "--alone"
  if not options.alone then peer, reason = peers.open("matmul.py", environment) end
  local result = {
    title = "Matrix products, one thread, GFLOP/s",
    columns = { "dtype", "size", "best", "median", "peer best", "peer median", "wall ratio",
      "cpu ratio" },
    rows = {}, measures = {},
    notes = { "ratio: GFLOP/s here / GFLOP/s of the peer, in the same round; above 1 is faster" },
  }
  table.insert(result.notes, peer and "peer: " .. peer.about or "no peer: " .. reason)
  local function add(dtype, size, beside)
    local row, skip, measured = row_of(dtype, size, beside, options.rounds)
    table.insert(result.measures, measured)
    result.rows[#result.rows + 1] = row
    if skip then table.insert(result.notes, ("no peer at %d: %s"):format(size, skip)) end
  end
  for _, size in ipairs(only or sizes_f32) do add("f32", size, peer) end
  for _, size in ipairs(only or sizes_bf16) do add("bf16", size, nil) end
  if peer then peer:close() end
  return { result }
end

return matmul
