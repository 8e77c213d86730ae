--- ranks.lua - ranks on several GPUs against ranks on the host, bit for bit.
---
---     build/tidelock lua tests/gpu/ranks.lua           cases
---     build/tidelock lua tests/gpu/ranks.lua span      memory.span alone
---     build/tidelock lua tests/gpu/ranks.lua delays    500 steps with delays of 0 to 2 ms
---     build/tidelock lua tests/gpu/ranks.lua speed     times of all_reduce, in a captured section
---
---     .. lua tests/gpu/ranks.lua processes    exchanges over NCCL: start one process for each GPU
---
--- As many ranks as GPUs, rounded down to a power of two. Cases of a kind are one program, because
--- opening the GPUs takes longer than all of them; each runs four times: one by one, while it is
--- captured, and twice as a graph. Needs no Lua packages.
local core = require "tidelock.core"

local folder = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = folder .. "/../?.lua;" .. package.path
local launch = require "tidelock.run.launch"
local programs = require "support.programs"

local gpus, why = core.cuda_count()
local n = 1
while 2 * n <= math.min(gpus, 8) do n = 2 * n end
if n == 1 then
  print("skipped: " .. (why or "it needs two GPUs; this machine has " .. gpus))
  print "0 passed, 0 failed"
  os.exit(0)
end

local found = arg[1] == "processes" and assert(launch.open(), "start a process for each GPU")
if found then n = found.world end

local cases, make_filled = require "support.comm_programs" (n)
local known = {}

--- Made once: a million numbers take longer in Lua than everything on a GPU.
local function filled(dtype, count, seed)
  local name = ("%s %d %d"):format(dtype, count, seed)
  known[name] = known[name] or make_filled(dtype, count, seed)
  return known[name]
end

--- What the tensors of a program's cases hold on every rank after each of four steps, by case.
--- cases: { write = { tensor, make(rank) } .., read = tensor, name }
local function run_all(list, b, settings, steps)
  local program <close> = b:program()
  local ranks <close> = programs.ranks(program, n, settings)
  if settings.job and settings.job:rank() > 0 then return ranks:serve() end
  local held = {}
  for i, case in ipairs(list) do
    held[i] = {}
    for rank = 0, n - 1 do
      for _, one in ipairs(case.write) do ranks:write(rank, one[1], one[2](rank)) end
    end
  end
  for step = 0, (steps or 4) - 1 do
    ranks:run("step", { step = step })
    for i, case in ipairs(list) do
      for rank = 0, n - 1 do held[i][#held[i] + 1] = ranks:read(rank, case.read) end
    end
  end
  return held
end

--- Sums and movements, one after the other in one section.
local function collectives(of, settings, steps)
  local b, list = programs.new { "all" }, {}
  for i, case in ipairs(of) do
    local x, y = case.make(b, case.size, case.dtype)
    local function given(rank) return filled(case.dtype, case.size, rank + 1) end
    list[i] = { name = case.name, write = { { x, given } }, read = y }
  end
  return run_all(list, b, settings, steps), list
end

--- Messages of a ring, more than there are slots, in both directions.
local function ring(gpu_first)
  local b = programs.new { "all" }
  local given, taken = {}, {}
  for i = 1, 7 do
    given[i] = b:tensor("bf16", { i * 1001 }, { persistent = true })
    taken[i] = b:tensor("bf16", { i * 1001 })
  end
  local list, made = {}, {}
  for rank = 0, n - 1 do
    local own = programs.new { "all" }
    own.tables.tensors, own.tables.arena_bytes = b.tables.tensors, b.tables.arena_bytes
    own.tables.persistent = b.tables.persistent
    for i = 1, 7 do
      own:add("step", "send", { given[i] }, {}, { group = 0, peer = (rank + 1) % n, channel = 0 })
      own:add("step", "recv", {}, { taken[i] }, { group = 0, peer = (rank - 1) % n, channel = 0 })
    end
    made[rank + 1] = own:program()
    list[rank + 1] = { program = rank + 1, groups = { all = {} } }
  end
  for rank = 1, n do for k = 0, n - 1 do list[rank].groups.all[k + 1] = k end end
  local ranks <close> = core.ranks { programs = made, ranks = list, gpu_first = gpu_first }
  for rank = 0, n - 1 do
    for i = 1, 7 do ranks:write(rank, given[i], filled("bf16", i * 1001, rank * 10 + i)) end
  end
  local held = {}
  for step = 0, 3 do
    ranks:run("step", { step = step })
    for rank = 0, n - 1 do for i = 1, 7 do held[#held + 1] = ranks:read(rank, taken[i]) end end
  end
  return held
end

--- Adds rows of experts to their owners, or home again, in two waves: only those that there are.
--- Ranks hold whole samples (share 1) or runs of the same ones (share n); some experts get none.
local function add_exchange(b, case)
  local function matrix(seed, rows) -- numbers that come again in other places of other rows
    local count = rows * case.width
    local some = filled(case.dtype, math.min(count, 100003), seed):bits()
    local bits = {}
    for i = 1, count do bits[i] = some[(i - 1) % #some + 1] end
    return core.tensor_from_bits(case.dtype, { rows, case.width }, bits)
  end
  local pieces, slots, waves, width = 3, 2, 2, case.width
  local experts = waves * n * slots - 1
  local list, counts = {}, {}
  for i = 1, experts do list[i] = (i * (experts - 1)) % experts end
  list[#list + 1] = -1
  local rows = 0
  for i = 1, n * pieces * experts do
    counts[i] = i % 5 == 0 and 0 or (i * 7919) % 11
    rows = rows + counts[i]
  end
  local x = b:tensor(case.dtype, { rows, width }, { persistent = true })
  local table_of = b:tensor("i32", { n * pieces, experts }, { persistent = true })
  local y = b:tensor(case.dtype, { rows, width }, { persistent = true })
  for wave = 0, waves - 1 do
    b:add("step", "exchange", { x, table_of }, { y, 0 }, { group = 0, share = case.share,
      waves = waves, wave = wave, home = case.home, hops = 0, island = 1, experts = list })
  end
  return {
    read = y, write = {
      { x, function(rank) return matrix(rank + 1, rows) end },
      { table_of, function() return core.tensor("i32", { n * pieces, experts }, counts) end },
      { y, function() return matrix(77, rows) end },
    },
  }
end

local function exchanges(settings)
  local b, list = programs.new { "all" }, {}
  for home = 0, 1 do
    for _, share in ipairs { 1, n } do
      for _, shape in ipairs { { "f32", 1 }, { "bf16", 72 }, { "bf16", 33 }, { "f32", 520 },
        { "bf16", 512 }, { "bf16", 521 }, { "bf16", 9992 } } do
        local case = { home = home, share = share, dtype = shape[1], width = shape[2] }
        local one = add_exchange(b, case)
        one.name = ("exchange, home %d, share %d, %s rows of %d"):format(home, share, shape[1],
          shape[2])
        list[#list + 1] = one
      end
    end
  end
  return run_all(list, b, settings), list
end

local passed, failed = 0, 0
local function judge(name, good, problem)
  if good then passed = passed + 1 else failed = failed + 1 end
  if not good then print(("%s: %s"):format(name, problem)) end
end

local function compare(name, host, gpu)
  for i = 1, #host do
    if not core.equal(host[i], gpu[i]) then
      return judge(name, false, ("tensor %d of %d differs"):format(i, #host))
    end
  end
  judge(name, true)
end

--- Many cases, on the host and on the GPUs: each is judged alone.
local function compare_all(kind, make, gpu)
  local good, host, list = pcall(make, { gpu_first = -1 })
  if not good then return judge(kind .. " on the host", false, host) end
  local begin = core.files.seconds()
  local ran, held = pcall(make, gpu or { gpu_first = 0 })
  if not ran then return judge(kind .. " on GPUs", false, held) end
  for i, case in ipairs(list) do compare(case.name, host[i], held[i]) end
  print(("%s: %d cases, %.1f s on GPUs"):format(kind, #list, core.files.seconds() - begin))
  io.stdout:flush()
end

--- A rank that fails or says nothing ends the run on all, named.
local function check_fault(kind, pattern)
  local faults = { { rank = 1, instruction = 2, kind = kind } }
  local of = { { size = 5000, dtype = "f32", make = cases[#cases].make } }
  local start = core.files.seconds()
  local good, message = pcall(collectives, of, { gpu_first = 0, faults = faults, timeout_s = 1 })
  local seconds = core.files.seconds() - start
  judge("fault " .. kind, not good and message:find(pattern) and seconds < 10,
    ("%s after %.1f s"):format(tostring(message), seconds))
end

local function speed()
  for _, bytes in ipairs { 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20 } do
    local b, count = programs.new { "all" }, bytes < 1 << 20 and 200 or 20
    local x = b:tensor("f32", { bytes // 4 }, { persistent = true })
    local y = b:tensor("f32", { bytes // 4 })
    for _ = 1, count do b:add("step", "all_reduce", { x }, { y }, { group = 0 }) end
    local program <close> = b:program()
    local ranks <close> = programs.ranks(program, n, { gpu_first = 0 })
    for rank = 0, n - 1 do ranks:write(rank, x, core.tensor("f32", { bytes // 4 })) end
    local best = math.huge
    for step = 0, 6 do
      local ms = ranks:run("step", { step = step }).ms
      if step > 2 then best = math.min(best, ms) end
    end
    local us = best * 1000 / count
    print(("all_reduce of %d KiB on %d GPUs: %.1f us, %.1f GB/s (busbw)"):format(bytes >> 10, n, us,
      2 * (n - 1) / n * bytes / us / 1000))
  end
end

--- Any order of the lanes that the program allows gives the same bits.
local function check_delays(steps, delay_us)
  local lane = { cases[#cases - 1] }
  compare(("%d steps with delays of up to %d us"):format(steps, delay_us),
    collectives(lane, { gpu_first = -1 }, steps)[1],
    collectives(lane, { gpu_first = 0, delay_us = delay_us }, steps)[1])
end

--- Sums of arrays that lie across the border between two GPUs, by a kernel of each GPU.
local function check_span()
  local all, count = {}, 4096
  for i = 1, n do all[i] = i - 1 end
  local span <close> = core.span { gpus = all, bytes = (2 << 20) + 1 }
  local parts = span:parts()
  local function numbers(factor)
    local list = {}
    for i = 1, count do list[i] = i * factor end
    return core.tensor("f32", { count }, list)
  end
  local a, b, host = numbers(0.37), numbers(-1.9), core.tensor("f32", { count })
  core.call("binary", { a, b }, { host }, { kind = 0, broadcast = 0 })
  local function at(byte) return { at = byte, dtype = "f32", shape = { count } } end
  local border = parts[2].first
  local places = { at(border - 2 * count), at(border + parts[2].bytes - 4 * count), at(0) }
  span:write(places[1].at, a)
  span:write(places[2].at, b)
  for _, gpu in ipairs(all) do
    for i, out in ipairs { places[3], places[1] } do -- on GPU 0, then across the border in place
      local y = core.tensor("f32", { count })
      span:call(gpu, "binary", { places[1], places[2] }, { out }, { kind = 0, broadcast = 0 })
      span:read(out.at, y)
      judge(("a span, GPU %d, result %d"):format(gpu, i), core.equal(host, y))
    end
    span:write(places[1].at, a)
  end
  judge("a span's parts", parts[2].first == parts[1].bytes and span:bytes() == n * parts[1].bytes)
end

local function all_collectives(settings) return collectives(cases, settings) end

--- Ends the process.
local function across_processes()
  local settings = { job = found.job, gpu_first = found.here, timeout_s = 20 }
  local good, problem = pcall(function()
    if found.rank > 0 then return all_collectives(settings), exchanges(settings) end
    compare_all("collectives over NCCL", all_collectives, settings)
    compare_all("exchanges over NCCL", exchanges, settings)
    print(("%d passed, %d failed"):format(passed, failed))
    io.stdout:flush()
  end)
  if not good then print(problem) end
  found.job:close(good and failed == 0)
  os.exit(good and failed == 0 and 0 or 1)
end

if found then across_processes() end
if arg[1] == "delays" then
  check_delays(500, 2000)
  print(("%d passed, %d failed"):format(passed, failed))
  os.exit(failed == 0 and 0 or 1)
end
if arg[1] == "span" then
  check_span()
  print(("%d passed, %d failed"):format(passed, failed))
  os.exit(failed == 0 and 0 or 1)
end
if arg[1] == "speed" then
  speed()
  os.exit(0)
end
compare_all("collectives", all_collectives)
compare_all("exchanges", exchanges)
compare("messages in a ring", ring(-1), ring(0))
check_delays(20, 500)
check_span()
check_fault("fail", "rank 1 of " .. n .. ".*a test made it fail")
check_fault("stall", "rank %d+ waits for rank 1: silent for .* s in instruction %d+ all_reduce")
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
