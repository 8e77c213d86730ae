--- `./tl bench collectives`: the ordered collectives of thread ranks, or of GPUs with --device
--- cuda, in the columns of nccl-tests.
--
--   size      bytes of the larger side of one rank         -b 1K -e 4M -f 4, as nccl-tests has them
--   algbw     size / time                                  busbw   what each link carries: algbw
--   #wrong    elements that are not the exact result               times (n-1)/n, twice for sums
--
-- Sums are those of the contract, in tree order; out of place and in place.

local core = require "tidelock.core"
local rounds = require "tidelock.bench.rounds"

local collectives = {}

local function repeats_of(bytes)
  return bytes <= 1 << 16 and 50 or bytes <= 1 << 20 and 20 or 5
end

--- "4M" as bytes; suffixes are binary.
function collectives.bytes(text)
  local number, unit = tostring(text):upper():match "^(%d+)([KMG]?)I?B?$"
  local scale = ({ [""] = 1, K = 1 << 10, M = 1 << 20, G = 1 << 30 })[unit or "?"]
  return number and math.tointeger(number) * scale
end

--- name, bytes of y over bytes of x for n ranks, bus factor, sum or move
local kinds = {
  { name = "all_reduce", op = "all_reduce", redop = "sum", bus = function(n) return 2 * (n - 1) / n
    end },
  { name = "reduce_scatter", op = "reduce_scatter", redop = "sum", bus = function(n) return (n - 1)
    / n end },
  { name = "all_gather", op = "all_gather", redop = "none", bus = function(n) return (n - 1) / n
    end },
}

--- A program of `repeats` calls on x and y; their numbers.
local function program_of(kind, count, n, in_place, repeats)
  local given = kind.op == "all_gather" and count // n or count
  local made = kind.op == "reduce_scatter" and count // n or count
  local x = { offset = 0, dtype = "f32", shape = { given } }
  local tensors = { x }
  local y = 1
  if not in_place then
    tensors[2] = { offset = (given * 4 + 63) // 64 * 64, dtype = "f32", shape = { made } }
    y = 2
  end
  local attrs = { group = 0, outer = kind.op ~= "all_reduce" and 1 or nil }
  local list = {}
  for i = 1, repeats do
    list[i] = { op = kind.op, inputs = { 1 }, outputs = { y }, attrs = attrs, site = 1 }
  end
  local bytes = (given * 4 + 63) // 64 * 64 + (made * 4 + 63) // 64 * 64
  return core.program { arena_bytes = bytes, groups = { "all" }, tensors = tensors,
    sites = { "bench" }, instructions = list, sections = { step = { 1, repeats } }, results = {},
    name_of = {}, persistent = { 1 } }, y, given
end

local function open_ranks(program, n, options)
  local all, list = {}, {}
  for rank = 0, n - 1 do all[rank + 1] = rank end
  for rank = 1, n do list[rank] = { groups = { all = all } } end
  return core.ranks { programs = { program }, ranks = list, threads = options.threads,
    gpu_first = options.device == "cuda" and 0 or -1 }
end

--- Elements that are wrong on any rank after one call on ranks that hold rank + 1 everywhere.
local function wrong_of(kind, ranks, y, n)
  local wrong = 0
  for rank = 0, n - 1 do
    local values = ranks:read(rank, y):flat()
    local piece = #values // n
    for i, value in ipairs(values) do
      local wanted = kind.op == "all_gather" and (i - 1) // piece + 1 or n * (n + 1) / 2
      if value ~= wanted then wrong = wrong + 1 end
    end
  end
  return wrong
end

local function fill(ranks, n, given)
  for rank = 0, n - 1 do
    ranks:write(rank, 1, core.tensor("f32", { given }):fill(rank + 1))
  end
end

--- us of a call, and how many elements one call gets wrong.
local function measure(kind, count, n, in_place, options)
  local once, y, given = program_of(kind, count, n, in_place, 1)
  local first <close> = open_ranks(once, n, options)
  fill(first, n, given)
  first:run("step", { step = 0 })
  local wrong = wrong_of(kind, first, y, n)
  first:close()
  local repeats = repeats_of(count * 4)
  local program = program_of(kind, count, n, in_place, repeats)
  local ranks <close> = open_ranks(program, n, options)
  for rank = 0, n - 1 do ranks:write(rank, 1, core.tensor("f32", { given })) end -- zeros stay zeros
  local times = {}
  for step = 0, options.rounds + 2 do
    local ms = ranks:run("step", { step = step }).ms
    if step > 2 then times[#times + 1] = ms * 1000 / repeats end
  end
  return times, wrong
end

local function cells(times, size, factor, wrong)
  local us = rounds.spread(times)
  local algbw = size / us / 1e3
  return { ("%.1f"):format(us), ("%.2f"):format(algbw), ("%.2f"):format(algbw * factor),
    ("%d"):format(wrong) }, algbw * factor, us
end

local function sizes_of(options)
  local first = collectives.bytes(options.from or "4K")
  local last = collectives.bytes(options.to or (options.device == "cuda" and "256M" or "4M"))
  if not first or not last or first < 64 or last < first then
    error({ status = 2, message = "tidelock: bench: -b and -e are sizes of 64 or more, as 8K and "
      .. "128M" }, 0)
  end
  local list, size = {}, first
  while size <= last do
    list[#list + 1] = size
    size = size * math.max(2, options.factor or 4)
  end
  return list
end

--- Ranks: a power of two, as sums need; on GPUs one each.
local function count_of(options)
  if options.device ~= "cuda" then return options.ranks or 4 end
  local gpus, why = core.cuda_count()
  local n = 1
  while 2 * n <= gpus do n = 2 * n end
  return n, gpus < 2 and (why or "it needs two GPUs") or nil
end

---@param options table # rounds, threads, ranks, device, from, to, factor
function collectives.tables(options)
  local n, why = count_of(options)
  local result = {
    title = ("Ordered collectives of %d %s"):format(n, options.device == "cuda" and "GPUs"
      or "thread ranks"),
    columns = { "collective", "size", "count", "type", "redop", "time us", "algbw GB/s",
      "busbw GB/s", "#wrong", "in place us", "algbw", "busbw", "#wrong" },
    rows = {}, notes = {}, measures = {},
  }
  if why then
    result.notes[1] = "not measured: " .. why
    return { result }
  end
  local total, rows, wrong_all = 0, 0, 0
  for _, kind in ipairs(kinds) do
    for _, size in ipairs(sizes_of(options)) do
      local count = size // 4 // n * n
      if core.interrupted() or count == 0 then break end
      local times, wrong = measure(kind, count, n, false, options)
      local row = { kind.name, ("%d"):format(count * 4), ("%d"):format(count), "float", kind.redop }
      local shown, bus, us = cells(times, count * 4, kind.bus(n), wrong)
      table.move(shown, 1, 4, #row + 1, row)
      total, rows, wrong_all = total + bus, rows + 1, wrong_all + wrong
      local _, low, high = rounds.spread(times)
      table.insert(result.measures, { name = ("%s %d bytes"):format(kind.name, count * 4),
        unit = "us", value = us, low = low, high = high, smaller = true })
      if kind.op == "all_reduce" then
        times, wrong = measure(kind, count, n, true, options)
        shown = cells(times, count * 4, kind.bus(n), wrong)
        wrong_all = wrong_all + wrong
      else
        shown = { "-", "-", "-", "-" } -- x and y have other sizes
      end
      table.move(shown, 1, 4, #row + 1, row)
      result.rows[#result.rows + 1] = row
    end
  end
  table.insert(result.notes, ("out of bounds values: %d %s"):format(wrong_all, wrong_all == 0 and
    "OK" or "FAILED"))
  table.insert(result.notes, ("average bus bandwidth: %.3f GB/s"):format(total / math.max(1, rows)))
  result.differs = wrong_all > 0
  return { result }
end

return collectives
