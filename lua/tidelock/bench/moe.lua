--- `./tl bench moe`: mixtures of experts on a GPU, beside PyTorch on the same GPU.
--
--   products   rows of each expert times its weights, in one launch; a peer does the same
--              (torch._grouped_mm), and "one by one": a launch for each expert
--   router     softmax and the best 8 of 128
--   rows       sorted to experts and combined again, against a plain copy of as many bytes
--
-- All sides take turns. Loads are even, or skewed: expert e has a share of about 1 / (e + 8).

local core = require "tidelock.core"
local peers = require "tidelock.bench.peer"
local rounds = require "tidelock.bench.rounds"

local bench = {}

local function even(experts, rows)
  local list = {}
  for e = 0, experts - 1 do list[e + 1] = rows * (e + 1) // experts - rows * e // experts end
  return list
end

local function skewed(experts, rows)
  local all, sum, list, before = 0, 0, {}, 0
  for e = 0, experts - 1 do all = all + 1 / (e + 8) end
  for e = 0, experts - 1 do
    sum = sum + 1 / (e + 8)
    local border = e == experts - 1 and rows or math.floor(rows * sum / all)
    list[e + 1], before = border - before, border
  end
  return list
end

local shapes = {
  { name = "16 experts, 32,768 rows", counts = even(16, 32768), depth = 4096, width = 2048 },
  { name = "128, 65,536 skewed", counts = skewed(128, 65536), depth = 2048, width = 1536 },
  { name = "128, 4,096", counts = even(128, 4096), depth = 2048, width = 1536 },
  { name = "128 small, 1,024", counts = even(128, 1024), depth = 256, width = 128, small = true },
}
local ops = { "grouped_linear", "grouped_linear_grad_input", "grouped_linear_grad_weight" }

local function random(dtype, shape, spread)
  local y, columns = core.tensor(dtype, shape), 1
  for i = 2, #shape do columns = columns * shape[i] end
  core.call("init", {}, { y }, { kind = 1, name_hash = shape[1] * 131 + columns, row_first = 0,
    col_first = 0, cols_full = columns, first = 0, second = spread }, { device = "cuda" })
  return y
end

local function starts(counts)
  local list = { 0 }
  for i, count in ipairs(counts) do list[i + 1] = list[i] + count end
  return list
end

--- Operands of core.call, of which the caller closes all.
local function operands(shape, op)
  local list = starts(shape.counts)
  local rows, experts = list[#list], #shape.counts
  local size = shape.depth * shape.width
  local offsets = core.tensor("i32", { #list }, list)
  if op == "grouped_linear_grad_weight" then
    local segments = {}
    for e = 1, experts do segments[2 * e - 1], segments[2 * e] = list[e], list[e + 1] end
    return { random("bf16", { rows, shape.width }, 1), random("bf16", { rows, shape.depth }, 1),
      core.tensor("i32", { experts, 2 }, segments) }, { core.tensor("f32", { experts, size }) },
      { first = 0, samples = 1, mode = 0, leaves = 1 }
  end
  local back = op == "grouped_linear_grad_input"
  local weights = random("bf16", { experts, size }, 0.02)
  local from, to = shape.depth, shape.width
  if back then from, to = to, from end
  return { random("bf16", { rows, from }, 1), offsets, weights },
    { core.tensor("bf16", { rows, to }) }, { parts = 1 }
end

local function close(...)
  for _, tensors in ipairs { ... } do
    for _, tensor in ipairs(tensors) do
      if tensor then tensor:close() end
    end
  end
end

local function ours(op, inputs, outputs, attrs, repeats)
  local options = { device = "cuda", repeats = repeats }
  return { turn = function()
    local ms = core.call(op, inputs, outputs, attrs, options)
    return { seconds = ms / 1e3, cpu = ms / 1e3 }
  end }
end

local function theirs(peer, request)
  return peer and { turn = function() return peer:ask(request) end } or nil
end

local function us(e) return ("%.1f"):format(rounds.middle(e, "seconds") * 1e6) end

--- Cells of a peer: what it reached (work / its time), and the ratio.
local function beside(first, e, work, result)
  if not e then return "-", "-" end
  if e.skip then
    table.insert(result.notes, "no peer: " .. e.skip)
    return "-", "-"
  end
  return ("%.0f"):format(work / rounds.middle(e, "seconds") / 1e12),
    (rounds.ratio(first, e, "seconds"))
end

local function products(peer, count)
  local result = {
    title = "Rows of experts times their weights on a GPU, bf16",
    columns = { "experts, rows", "operator", "us", "TFLOP/s", "peer", "ratio" }, rows = {},
    notes = { "ratio: TFLOP/s here / TFLOP/s of the peer in the same round" },
  }
  for _, shape in ipairs(shapes) do
    for _, op in ipairs(ops) do
      if core.interrupted() then return result end
      local list = starts(shape.counts)
      local work = 2.0 * list[#list] * shape.depth * shape.width
      local repeats = math.max(5, math.min(100, math.floor(4e12 / work)))
      local inputs, outputs, attrs = operands(shape, op)
      local entrants = { ours(op, inputs, outputs, attrs, repeats), theirs(peer, { op = op,
        counts = shape.counts, depth = shape.depth, width = shape.width, repeats = repeats }) }
      rounds.run(entrants, count)
      close(inputs, outputs)
      local row = { shape.name, op, us(entrants[1]), ("%.0f"):format(work
        / rounds.middle(entrants[1], "seconds") / 1e12) }
      row[5], row[6] = beside(entrants[1], entrants[2], work, result)
      result.rows[#result.rows + 1] = row
    end
  end
  return result
end

--- One launch for all experts against one for each, ours and the peer's.
local function singles(peer, count)
  local result = {
    title = "One launch for all experts against one for each, 128 experts of 8 rows, 256 to 128",
    columns = { "launches", "us", "ratio" }, rows = {}, notes = {},
  }
  local shape = shapes[4]
  local inputs, outputs, attrs = operands(shape, "grouped_linear")
  local x, w = random("bf16", { 8, shape.depth }, 1), random("bf16", { shape.width, shape.depth },
    0.02)
  local y = core.tensor("bf16", { 8, shape.width })
  local one = ours("linear", { x, w }, { y }, { parts = 1, biases = 0, leaves = 1 }, 100)
  local all = { turn = function()
    local turn = one.turn()
    return { seconds = turn.seconds * #shape.counts, cpu = turn.cpu * #shape.counts }
  end }
  local entrants = { ours("grouped_linear", inputs, outputs, attrs, 100), all, theirs(peer, {
    op = "singles", counts = shape.counts, depth = shape.depth, width = shape.width,
    repeats = 20 }) }
  rounds.run(entrants, count)
  close(inputs, outputs, { x, w, y })
  for i, e in ipairs(entrants) do
    local label = ({ "one", "one by one, in a graph", "PyTorch, one by one" })[i]
    if e.skip then
      table.insert(result.notes, label .. ": " .. e.skip)
    else
      result.rows[#result.rows + 1] = { label, us(e), i == 1 and "-" or (rounds.ratio(entrants[1],
        e, "seconds")) }
    end
  end
  return result
end

--- A routing of `tokens` by the host's order, so that rows go where they would.
local function routed(tokens, experts, slots)
  local z = random("f32", { tokens, experts }, 1)
  local weight = core.tensor("f32", { tokens, slots })
  local expert = core.tensor("i32", { tokens, slots })
  core.call("route", { z, false }, { weight, expert }, { layer = 0, kind = 0, groups = 1,
    top_groups = 1, normalize = 1, scale = 1 }, { device = "cuda" })
  local list = {}
  for e = 1, experts do list[e] = e - 1 end
  local place, order = core.tensor("i32", { tokens, slots }), core.tensor("i32", { tokens * slots })
  local offsets = core.tensor("i32", { experts + 1 })
  core.call("expert_order", { expert }, { place, order, offsets }, { experts = list },
    { device = "cuda" })
  return { z, weight, expert, place, order, offsets }, list
end

local function router(peer, count)
  local result = {
    title = "Router on a GPU: 65,536 tokens, the best 8 of 128",
    columns = { "operator", "us", "peer us", "ratio" }, rows = {}, notes = {},
  }
  local all, list = routed(65536, 128, 8)
  local z, weight, expert, place, order, offsets = table.unpack(all)
  local entrants = { ours("route", { z, false }, { weight, expert }, { layer = 0, kind = 0,
    groups = 1, top_groups = 1, normalize = 1, scale = 1 }, 50), theirs(peer, { op = "route",
    rows = 65536, experts = 128, slots = 8, repeats = 50 }) }
  rounds.run(entrants, count)
  local row = { "route", us(entrants[1]), "-", "-" }
  if entrants[2] and not entrants[2].skip then
    row[3], row[4] = us(entrants[2]), (rounds.ratio(entrants[1], entrants[2], "seconds"))
  end
  result.rows[1] = row
  local sort = ours("expert_order", { expert }, { place, order, offsets }, { experts = list }, 50)
  rounds.run({ sort }, count)
  result.rows[2] = { "expert_order", us(sort), "-", "-" }
  close(all)
  return result
end

local function rows(peer, count)
  local tokens, slots, width = 8192, 8, 4096
  local result = {
    title = "Rows to experts and home: 8,192 tokens of 4,096 bf16, 8 slots",
    columns = { "operator", "us", "TB/s", "peer us", "ratio" }, rows = {},
    notes = { "TB/s: bytes read and written; ratio: time of the peer / time here" },
  }
  local all = routed(tokens, 128, slots)
  local _, weight, _, place, order, offsets = table.unpack(all)
  local x, wide = random("bf16", { tokens, width }, 1), core.tensor("bf16", { tokens * slots,
    width })
  local y = core.tensor("bf16", { tokens, width })
  local row_bytes = 2.0 * tokens * width
  for _, case in ipairs {
    { "take_rows", "permute", { x, order, offsets }, { wide }, { per = slots, first = 0,
      last = 128 }, 2 * slots * row_bytes },
    { "combine", "combine", { wide, place, weight, false }, { y }, {}, (slots + 1) * row_bytes },
    { "copy", "copy", nil, nil, nil, 2 * slots * row_bytes },
  } do
    local op, way, inputs, outputs, attrs, bytes = table.unpack(case, 1, 6)
    local entrants = { theirs(peer, { op = "rows", way = way, tokens = tokens, slots = slots,
      width = width, repeats = 20 }) }
    if inputs then table.insert(entrants, 1, ours(op, inputs, outputs, attrs, 20)) end
    rounds.run(entrants, count)
    local first, other = entrants[1], inputs and entrants[2] or nil
    if first and not first.skip then
      result.rows[#result.rows + 1] = { inputs and op or "copy (PyTorch)", us(first),
        ("%.2f"):format(bytes / rounds.middle(first, "seconds") / 1e12), other and not other.skip
          and us(other) or "-", other and not other.skip and (rounds.ratio(first, other,
          "seconds")) or "-" }
    end
  end
  close(all, { x, wide, y })
  return result
end

---@param options table # rounds, alone
function bench.tables(options)
  local gpus, why = core.cuda_count()
  if gpus == 0 then
    return { { title = "Mixtures of experts on a GPU", columns = { "operator" }, rows = {},
      notes = { "not measured: " .. why } } }
  end
  local peer, reason = nil, "--alone"
  if not options.alone then peer, reason = peers.open "moe.py" end
  local tables = {}
  for _, kind in ipairs { products, singles, router, rows } do
    if not core.interrupted() then tables[#tables + 1] = kind(peer, options.rounds) end
  end
  table.insert(tables[1].notes, peer and "peer: " .. peer.about or "no peer: " .. reason)
  if peer then peer:close() end
  return tables
end

return bench
