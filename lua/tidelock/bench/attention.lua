--- `./tl bench attention`: causal attention over packed segments on a GPU, beside PyTorch.
--
-- All sides take turns in one run, on random numbers of the same shapes. The peer has no padding
-- either where it can (varlen), deterministic gradients where it has them, and the choice of its
-- kernels is named: flash, cudnn, varlen.
--
--   TFLOP/s   4 h w sum(length^2) / 2 operations forward, 2.5 times as many backward: what a causal
--             mask leaves. Masked halves of tiles that a kernel computes all the same do not count.
--   packed    tokens of ragged segments a second, against the same padded to the longest

local blocks = require "tidelock.language.blocks"
local core = require "tidelock.core"
local peers = require "tidelock.bench.peer"
local rounds = require "tidelock.bench.rounds"

local attention = {}

local function same(count, length)
  local list = {}
  for i = 1, count do list[i] = length end
  return list
end

--- 64 segments of about 500 tokens.
local function ragged()
  local list, lengths = {}, { 384, 640, 448, 576, 512, 448, 576, 416 }
  for i = 1, 64 do list[i] = lengths[(i - 1) % #lengths + 1] end
  return list
end

local cases = {
  { name = "8 x 4096", lengths = same(8, 4096), heads = 32, kv_heads = 32, width = 128,
    peers = { "cudnn", "flash", "varlen" } },
  { name = "8 x 4096, 8 KV heads", lengths = same(8, 4096), heads = 32, kv_heads = 8, width = 128,
    peers = { "cudnn" } },
  { name = "8 x 4096, width 64", lengths = same(8, 4096), heads = 32, kv_heads = 32, width = 64,
    peers = { "cudnn", "flash" } },
  { name = "64 of about 500", lengths = ragged(), heads = 32, kv_heads = 32, width = 128,
    peers = { "varlen" } },
  { name = "4 x 4096, 16 heads, width 192", lengths = same(4, 4096), heads = 16, kv_heads = 16,
    width = 192, peers = { "cudnn" } },
  { name = "4 x 4096, 16 heads, width 256", lengths = same(4, 4096), heads = 16, kv_heads = 16,
    width = 256, peers = { "cudnn" } },
}

local function random(shape)
  local y = core.tensor("bf16", shape)
  core.call("init", {}, { y }, { kind = 1, name_hash = shape[1] * 131 + shape[2], row_first = 0,
    col_first = 0, cols_full = shape[2] * shape[3], first = 0, second = 1 }, { device = "cuda" })
  return y
end

--- Operands of a case, and time(pass): seconds of one run.
local function open(case, repeats)
  local cu, rows = { 0 }, 0
  for i, length in ipairs(case.lengths) do
    rows = rows + length
    cu[i + 1] = rows
  end
  local h, g, w = case.heads, case.kv_heads, case.width
  local scale = core.f32(w ^ -0.5)
  local all = { random { rows, h, w }, random { rows, g, w }, random { rows, g, w },
    core.tensor("i32", { #cu }, cu), core.tensor("bf16", { rows, h, w }),
    core.tensor("f32", { rows, h }), random { rows, h, w }, core.tensor("bf16", { rows, h, w }),
    core.tensor("bf16", { rows, g, w }), core.tensor("bf16", { rows, g, w }) }
  local q, k, v, cus, o, lse, grad, dq, dk, dv = table.unpack(all)
  local kv = blocks.attention_kv(nil, w)
  local attrs = { window = 0, kv_block = kv, split = 8192, scale = scale }
  local back = { window = 0, kv_block = kv, split = 8192, scale = scale, head_leaves = 1,
    dk_scale = scale }
  local options = { device = "cuda", repeats = repeats }
  local function time(pass)
    local ms = core.call("attention", { q, k, v, cus }, { o, lse }, attrs, options)
    if pass == "both" then
      ms = ms + core.call("attention_grad", { q, k, v, o, lse, grad, cus }, { dq, dk, dv }, back,
        options)
    end
    return { seconds = ms / 1e3, cpu = ms / 1e3 }
  end
  return time, function()
    for _, tensor in ipairs(all) do tensor:close() end
  end
end

local function work_of(case, pass)
  local sum = 0
  for _, length in ipairs(case.lengths) do sum = sum + length * length / 2 end
  return 4.0 * case.heads * case.width * sum * (pass == "both" and 3.5 or 1)
end

--- Adds a row for each peer, or one without. Returns why a peer is missing.
local function measure(case, pass, peer, count, rows)
  local work = work_of(case, pass)
  local repeats = math.max(2, math.floor(1e13 / work))
  local time, close = open(case, repeats)
  local ours = { turn = function() return time(pass) end }
  local entrants, skips = { ours }, {}
  for _, way in ipairs(peer and case.peers or {}) do
    entrants[#entrants + 1] = { way = way, turn = function()
      return peer:ask { lengths = case.lengths, heads = case.heads, kv_heads = case.kv_heads,
        width = case.width, way = way, pass = pass, repeats = repeats }
    end }
  end
  rounds.run(entrants, count)
  close()
  local mine = rounds.middle(ours, "seconds")
  local row = { case.name, pass, ("%.3f"):format(mine * 1e3), ("%.0f"):format(work / mine / 1e12) }
  for i = 2, #entrants do
    local e = entrants[i]
    if e.skip then
      skips[#skips + 1] = ("no %s for %s, %s: %s"):format(e.way, case.name, pass, e.skip)
    else
      rows[#rows + 1] = { row[1], row[2], row[3], row[4], e.way,
        ("%.0f"):format(work / rounds.middle(e, "seconds") / 1e12),
        (rounds.ratio(ours, e, "seconds")) }
    end
  end
  if #entrants - 1 == #skips then rows[#rows + 1] = { row[1], row[2], row[3], row[4], "-", "-",
    "-" } end
  return skips
end

--- Ragged segments packed, and each padded to the longest.
local function packing(count)
  local packed = cases[4]
  local longest, tokens = math.max(table.unpack(packed.lengths)), 0
  for _, length in ipairs(packed.lengths) do tokens = tokens + length end
  local padded = { heads = 32, kv_heads = 32, width = 128, lengths = same(64, longest) }
  local entrants, closes = {}, {}
  for i, case in ipairs { packed, padded } do
    local time, close = open(case, 10)
    entrants[i], closes[i] = { turn = function() return time "both" end }, close
  end
  rounds.run(entrants, count)
  for _, close in ipairs(closes) do close() end
  local row = { packed.name }
  for i, e in ipairs(entrants) do
    row[i + 1] = ("%.2f M"):format(tokens / rounds.middle(e, "seconds") / 1e6)
  end
  row[4] = rounds.ratio(entrants[1], entrants[2], "seconds")
  return {
    title = "Packed segments against padded ones, forward and backward, tokens/s",
    columns = { "segments", "packed", "padded", "ratio" }, rows = { row }, notes = {},
  }
end

---@param options table # rounds, alone
function attention.tables(options)
  local result = {
    title = "Causal attention on a GPU, bf16, 32 query heads unless said",
    columns = { "segments", "pass", "ms", "TFLOP/s", "peer", "its TFLOP/s", "ratio" },
    rows = {}, notes = { "ratio: TFLOP/s here / TFLOP/s of the peer in the same round; pass both: "
      .. "forward and backward" },
  }
  local gpus, why = core.cuda_count()
  if gpus == 0 then
    table.insert(result.notes, "not measured: " .. why)
    return { result }
  end
  local peer, reason = nil, "--alone"
  if not options.alone then peer, reason = peers.open "attention.py" end
  table.insert(result.notes, peer and "peer: " .. peer.about or "no peer: " .. reason)
  for _, case in ipairs(cases) do
    for _, pass in ipairs { "forward", "both" } do
      if core.interrupted() then break end
      local skips = measure(case, pass, peer, options.rounds, result.rows)
      table.move(skips, 1, #skips, #result.notes + 1, result.notes)
    end
  end
  if peer then peer:close() end
  return { result, packing(options.rounds) }
end

return attention
