--- cases.lua - faults that users of other systems reported, looked for on a GPU: H01, H22, H25,
--- H31.
---
---     build-cuda/tidelock lua tests/gpu/cases.lua            all: a minute, 40 GiB of host memory
---     build-cuda/tidelock lua tests/gpu/cases.lua norm attention       these
---
--- Run it from the root of the tree. The host's halves are specs (cases_kernels_spec.lua,
--- norm_spec.lua); what is waited for on two streams (H30) is in ranks.lua. `device=host` runs all
--- with smaller sizes on the host, as a check of this script. Needs no Lua packages.
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local tl = require "tidelock"

local device, wanted = "cuda", {}
for _, word in ipairs(arg) do
  if word == "device=host" then device = "host" else wanted[#wanted + 1] = word end
end
local small = device == "host"
local gpus, why = core.cuda_count()
if gpus == 0 and not small then
  print("skipped: " .. why)
  print "0 passed, 0 failed"
  os.exit(0)
end

local function check(good, format, ...)
  if not good then error(format:format(...), 0) end
end

--- core.call there.
local function call(op, inputs, outputs, attrs, options)
  options = options or {}
  options.device = device
  core.call(op, inputs, outputs, attrs, options)
end

--- Uniform numbers, made by the host.
local function random(dtype, shape, stream, spread)
  local t, width = core.tensor(dtype, shape), 1
  for i = 2, #shape do width = width * shape[i] end
  core.call("init", {}, { t }, { kind = 2, name_hash = stream, row_first = 0, col_first = 0,
    cols_full = width, first = -spread, second = spread })
  return t
end

--- Rows `first` .. of a tensor (rows, ..), as a tensor of their own.
local function rows_of(t, first, count)
  local shape = t:shape()
  shape[1] = count
  local width = 1
  for i = 2, #shape do width = width * shape[i] end
  return core.assemble(t:dtype(), shape, { { tensor = t:narrow(1, first, count), rows = count,
    cols = width } })
end

local cases = {}

--- H01: one row has one norm, alone or among 2,274, first, middle or last; the host's.
function cases.norm()
  local hidden, seen = 4096, 0
  local gain = rows_of(random("f32", { 1, hidden }, 2, 1), 1, 1)
  gain = core.assemble("f32", { hidden }, { { tensor = gain, rows = hidden, cols = 1 } })
  local needle = random("f32", { 1, hidden }, 1, 1)
  local function hashes(x, place, on)
    local rows = x:shape()[1]
    local y, rstd = core.tensor("f32", { rows, hidden }), core.tensor("f32", { rows })
    local dx = core.tensor("f32", { rows, hidden })
    core.call("rms_norm", { x, gain }, { y, rstd }, { eps = 1e-6 }, { device = on })
    core.call("rms_norm_grad", { x, x, gain, rstd }, { dx }, {}, { device = on })
    return ("%s %s %s"):format(rows_of(y, place, 1):hash(), rows_of(rstd, place, 1):hash(),
      rows_of(dx, place, 1):hash())
  end
  local expected = hashes(needle, 1, "host")
  for _, rows in ipairs { 1, 2, 31, 32, 33, 255, 256, 257, 928, 2274 } do
    local all = random("f32", { rows, hidden }, 3 + rows, 1)
    for _, place in ipairs { 1, (rows + 1) // 2, rows } do
      local others = { { tensor = all, rows = rows, cols = hidden } }
      local x = core.assemble("f32", { rows, hidden }, others)
      core.call("cast", { needle }, { x:narrow(1, place, 1) }, {})
      check(hashes(x, place, device) == expected, "%d rows, row %d: other bits", rows, place)
      seen = seen + 1
    end
  end
  return seen .. " places, one hash"
end

--- H22: attention, forward and backward, has one hash over 200 runs.
local function attention(samples, length, heads, repeats)
  local rows, list = samples * length, {}
  for i = 1, 4 do list[i] = random("bf16", { rows, heads, 128 }, 10 + i, 1) end
  local borders = {}
  for i = 0, samples do borders[i + 1] = i * length end
  list[5] = core.tensor("i32", { samples + 1 }, borders)
  local q, k, v, upstream, cu = table.unpack(list)
  local o, lse = core.tensor("bf16", { rows, heads, 128 }), core.tensor("f32", { rows, heads })
  local grads = {}
  for i = 1, 3 do grads[i] = core.tensor("bf16", { rows, heads, 128 }) end
  local attrs = { window = 0, kv_block = 128, split = 4096, scale = 128 ^ -0.5 }
  local options = repeats > 1 and not small and { repeats = repeats } or {}
  call("attention", { q, k, v, cu }, { o, lse }, attrs, options)
  attrs.dk_scale, attrs.head_leaves = attrs.scale, 1
  call("attention_grad", { q, k, v, o, lse, upstream, cu }, grads, attrs, options)
  local words = { o:hash(), lse:hash(), grads[1]:hash(), grads[2]:hash(), grads[3]:hash() }
  for _, all in ipairs { list, grads, { o, lse } } do
    for _, t in ipairs(all) do t:close() end
  end
  return table.concat(words, " ")
end

function cases.attention()
  local short, long = attention(1, 64, 16, 1), attention(small and 1 or 32, small and 64 or 4096,
    16, 1)
  for i = 1, small and 2 or 200 do
    check(attention(1, 64, 16, 1) == short, "1 x 64: run %d has other bits", i)
  end
  for _, repeats in ipairs(small and { 1 } or { 1, 65, 66, 67 }) do
    check(attention(small and 1 or 32, small and 64 or 4096, 16, repeats) == long,
      "32 x 4096: the last of %d runs has other bits", repeats)
  end
  return "one hash each: " .. short:sub(1, 16) .. ", " .. long:sub(1, 16)
end

--- H25: the last of 300,000 rows of 8,192 has the bits that it has alone.
function cases.indices()
  local rows, width, said = small and 3008 or 300000, small and 256 or 8192, {}
  local x <close> = random("bf16", { rows, width }, 1, 1)
  local last = rows_of(x, rows, 1)
  local function same(op, inputs, alone, attrs, more)
    local y <close> = core.tensor("bf16", { rows, width })
    local one = core.tensor("bf16", { 1, width })
    call(op, inputs, { y, more and core.tensor("f32", { rows }) or nil }, attrs)
    call(op, alone, { one, more and core.tensor("f32", { 1 }) or nil }, attrs)
    check(rows_of(y, rows, 1):hash() == one:hash(), "%s: the last row has other bits", op)
    said[#said + 1] = op
  end
  local gain = core.assemble("bf16", { width }, { { tensor = random("bf16", { 1, width }, 2, 1),
    rows = width, cols = 1 } })
  same("rms_norm", { x, gain }, { last, gain }, { eps = 1e-6 }, true)
  same("swiglu", { x, x }, { last, last }, {})
  same("binary", { x, x }, { last, last }, { kind = 0, broadcast = 0 })
  local ids, total = {}, core.tensor("f32", { 3, width })
  for i = 1, rows do ids[i] = i == rows and 2 or i % 2 end
  call("embedding_grad", { core.tensor("i32", { rows }, ids), x }, { total },
    { first_id = 0, first = 0, samples = 1, length = rows, mode = 0 })
  local wide = core.tensor("f32", { 1, width })
  core.call("cast", { last }, { wide }, {})
  check(rows_of(total, 3, 1):hash() == wide:hash(), "embedding_grad: the last row")
  local turned <close> = core.tensor("bf16", { rows, width // 128, 128 })
  local tables = core.tensor("f32", { 16, 64, 2 })
  core.call("scale", { x }, { turned }, { factor = 1 })
  core.call("rope_table", {}, { tables }, { kind = 0, original = 0, base = 10000, factor = 1,
    low = 1, high = 4, magnitude = 1 })
  local starts, alone = {}, core.tensor("bf16", { 16, width // 128, 128 })
  core.call("scale", { x:narrow(1, rows - 15, 16) }, { alone }, { factor = 1 })
  for i = 0, rows, 16 do starts[#starts + 1] = i end
  local function turn(t, borders)
    call("rope", { t, core.tensor("i32", { #borders }, borders), tables }, { t },
      { inverse = 0, interleaved = 0 })
  end
  turn(turned, starts)
  turn(alone, { 0, 16 })
  check(turned:narrow(1, rows - 15, 16):hash() == alone:hash(), "rope: the last rows")
  return table.concat(said, ", ") .. ", embedding_grad, rope"
end

--- H25: the last of 20,000 rows of 128,256 logits has the gradient that it has alone.
function cases.logits()
  local rows, vocab = small and 20 or 20000, 128256
  local z <close> = random("bf16", { rows, vocab }, 3, 4)
  local one = rows_of(z, rows, 1)
  local function gradient(logits, count)
    local function column(dtype, value)
      local t = core.tensor(dtype or "f32", { count })
      if value then t:fill(value) end
      return t
    end
    local targets, m, s = column("i32", 128255), column(), column()
    call("row_max", { logits }, { m }, { columns = vocab })
    call("row_sum_exp", { logits, m, targets }, { s, column(), column() },
      { columns = vocab, first = 0, leaves = 1 })
    call("cross_entropy_grad", { logits, m, s, targets, column(nil, 1) }, { logits },
      { columns = vocab, first = 0, vocab = vocab, smoothing = 0, z = 0 })
    return rows_of(logits, count, 1):hash()
  end
  local expected = gradient(one, 1)
  check(gradient(z, rows) == expected, "other bits")
  return rows .. " rows"
end

--- H31: what memory held before changes no bit of a step; the host's bits.
function cases.stale()
  local function trail(on, dtype, byte)
    local run <close> = driver.start(tl.load "recipes/quickstart.lua":with {
      data = tl.data.text { "tests/golden/text.txt" }, dtype = dtype, device = on,
      ["batch.samples"] = 4, ["batch.micro"] = 2, ["batch.length"] = 128,
    }, { poison = byte })
    local words = {}
    for i = 1, 3 do
      local s = run:step()
      words[i] = s.loss_bits .. " " .. s.grad_norm_bits
    end
    return table.concat(words, " ") .. " " .. run:weights_hash() .. " " .. run:optimizer_hash()
  end
  for _, dtype in ipairs { "f32", "bf16" } do
    local expected = trail("host", dtype)
    for _, byte in ipairs { 0, 255, 0x7F } do
      check(trail(device, dtype, byte) == expected, "%s, memory of 0x%02X: other bits", dtype, byte)
    end
  end
  return "f32 and bf16, 3 steps over 0x00, 0xFF, 0x7F"
end

local passed, failed = 0, 0
for _, name in ipairs { "norm", "attention", "stale", "logits", "indices" } do
  local asked = #wanted == 0
  for _, word in ipairs(wanted) do asked = asked or word == name end
  if asked then
    local begin = core.files.seconds()
    local good, found = pcall(cases[name])
    if good then passed = passed + 1 else failed = failed + 1 end
    print(("%-9s %5.1f s  %s%s"):format(name, core.files.seconds() - begin,
      good and "" or "FAILED: ", type(found) == "table" and found.message or tostring(found)))
    io.stdout:flush()
  end
end
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0)
