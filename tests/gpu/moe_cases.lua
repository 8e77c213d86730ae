--- moe_cases.lua - mixtures of experts on the GPU: router, order, rows, and products of experts.
---
--- The edges: 32 lanes of a row of logits and 2 .. 32 experts of a lane; 64 slots; 64 tokens of a
--- block of route_sums, 1,024 of expert_counts, 512 slots of a warp that sorts; tiles of 64, 128
--- and 256 rows, with experts that have none, one, all; segments that end inside a step of 16.
---
--- Rows past the last of an expert hold poison on the way in, and must still do so on the way out.
--- Ids, places and segments come from the host twins, which have specs of their own.
local core = require "tidelock.core"
local data = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/rowwise_data.lua")
local spread, poison = data.spread, data.poison

local cases = {}

local function add(op, name, make) cases[#cases + 1] = { op = op, name = name, make = make } end

--- Runs the host twin and returns its outputs.
local function host(op, inputs, outputs, attrs)
  core.call(op, inputs, outputs, attrs)
  return table.unpack(outputs)
end

--- --- router -----------------------------------------------------------------------------------

local function route_attrs(kind, groups, top_groups, normalize)
  return { layer = 3, kind = kind, groups = groups, top_groups = top_groups, normalize = normalize,
    scale = kind == 0 and 1 or 2.5 }
end

--- Choices of `rows` tokens. like: every token chooses alike.
local function routed(rows, experts, k, like)
  local z = spread("f32", { rows, experts }, 3)
  if like then z = core.tensor("f32", { rows, experts }, (function()
    local list = {}
    for i = 1, rows * experts do list[i] = (i - 1) % experts end
    return list
  end)()) end
  local weight, expert = host("route", { z, false }, { poison("f32", { rows, k }), poison("i32",
    { rows, k }) }, route_attrs(0, 1, 1, 1))
  return z, expert, weight
end

local sizes = { { 1, 1, 1 }, { 5, 16, 2 }, { 9, 64, 6 }, { 33, 128, 8 }, { 7, 100, 64 },
  { 3, 256, 8 }, { 4, 33, 33 }, { 5, 500, 3 }, { 3, 1000, 40 }, { 2, 1024, 64 } }
for _, size in ipairs(sizes) do
  local rows, experts, k = table.unpack(size)
  for kind = 0, 2 do
    for _, bias in ipairs { false, true } do
      local normalize = (kind + k) % 2
      add("route", ("%d x %d, %d slots, kind %d, bias %s"):format(rows, experts, k, kind, bias),
        function()
          return { spread("f32", { rows, experts }, 5), bias and spread("f32", { experts }, 0.2) },
            { poison("f32", { rows, k }), poison("i32", { rows, k }) },
            route_attrs(kind, 1, 1, normalize)
        end)
    end
  end
end
for _, group in ipairs { { 64, 8, 4, 6 }, { 256, 8, 4, 8 }, { 96, 3, 2, 64 }, { 128, 128, 16, 8 },
  { 512, 4, 1, 64 }, { 1024, 32, 5, 20 } } do
  for kind = 0, 2 do
    local experts, groups, top, k = table.unpack(group)
    add("route", ("%d experts, %d of %d groups, kind %d"):format(experts, top, groups, kind),
      function()
        return { spread("f32", { 17, experts }, 2), spread("f32", { experts }, 0.1) },
          { poison("f32", { 17, k }), poison("i32", { 17, k }) }, route_attrs(kind, groups, top, 1)
      end)
  end
end
add("route", "ties and -infinity", function()
  local list = {}
  for row = 1, 40 do
    for e = 1, 64 do
      local own = (e * 7 + row) % 5
      list[#list + 1] = own == 0 and -math.huge or own == 1 and -0.0 or own == 2 and 0.0 or 1
    end
  end
  return { core.tensor("f32", { 40, 64 }, list), false },
    { poison("f32", { 40, 20 }), poison("i32", { 40, 20 }) }, route_attrs(0, 1, 1, 1)
end)

--- Rows that cannot be routed: the first of them is named, whichever thread finds it.
for _, fault in ipairs { { "NaN", 0 / 0 }, { "infinite", math.huge },
  { "%-infinity", -math.huge } } do
  for _, size in ipairs { { 300, 128, 8 }, { 300, 64, 64 }, { 70, 1000, 3 } } do
    local rows, experts, k = table.unpack(size)
    add("route", ("%s in rows of %d"):format(fault[1], experts), function()
      local values = spread("f32", { rows, experts }, 2, 0, true):flat()
      for _, row in ipairs { 69, 37, 61 } do
        local bad = fault[2] == -math.huge and experts - k + 1 or 1
        for e = 1, bad do values[row * experts + e] = fault[2] end
      end
      return { core.tensor("f32", { rows, experts }, values), false }, { poison("f32", { rows, k }),
        poison("i32", { rows, k }) }, route_attrs(2, 1, 1, 1)
    end)
    cases[#cases].refuses = "layer 3, token 37 is " .. fault[1]
  end
end

--- A table whose row of `id` holds what `entry` says; ids of three samples, some of them padding.
local function table_of(vocab, experts, k, entry)
  local list, step = {}, experts % 3 == 0 and (experts % 5 == 0 and 7 or 5) or 3
  for id = 0, vocab - 1 do
    for i = 0, k - 1 do
      list[#list + 1] = entry and entry(id, i) or (id * 11 + i * step) % experts
    end
  end
  return core.tensor("f32", { vocab, k }, list)
end

local function by_table(rows, experts, k, kind, entry, most)
  local samples, vocab = rows % 3 == 0 and 3 or 1, 37
  local each = rows // samples
  local length, ids = each + 5, {}
  for i = 1, samples * length do ids[i] = i % 7 == 0 and -1 or i * 13 % (most or vocab) end
  return { spread("f32", { rows, experts }, 4), core.tensor("i32", { samples * length }, ids),
    table_of(vocab, experts, k, entry) },
    { poison("f32", { rows, k }), poison("i32", { rows, k }) },
    { layer = 3, kind = kind, normalize = (kind + k) % 2, samples = samples, length = length,
      token_first = 4, scale = 1.5 }
end

for _, size in ipairs(sizes) do
  local rows, experts, k = table.unpack(size)
  for kind = 0, 2 do
    add("route_table", ("%d x %d, %d slots, kind %d"):format(rows, experts, k, kind), function()
      return by_table(rows, experts, k, kind)
    end)
  end
end
--- Row 26 of the table with another entry in one slot; no entry: ids that the table does not have.
for _, wrong in ipairs { { "an expert twice", 5, 0 }, { "no whole number", 40, 40.5 },
  { "past the experts", 3, 100 }, { "below 0", 3, -1 }, { "an id past the table" } } do
  local name, slot, value = table.unpack(wrong)
  add("route_table", name, function()
    return by_table(60, 100, 45, 2, function(id, i) return id == 26 and i == slot and value or i
      end, not slot and 41 or nil)
  end)
  cases[#cases].refuses = "route_table: layer 3, token %d+: no row of different experts for its "
    .. "id$"
  cases[#cases].begins = true
end
add("route_table", "NaN", function()
  local inputs, outputs, attrs = by_table(60, 100, 45, 2)
  local values = inputs[1]:flat()
  values[37 * 100 + 99] = 0 / 0
  inputs[1] = core.tensor("f32", { 60, 100 }, values)
  return inputs, outputs, attrs
end)
cases[#cases].refuses = "layer 3, token 37 is NaN"

for _, size in ipairs(sizes) do
  local rows, experts, k = table.unpack(size)
  for kind = 0, 2 do
    for normalize = 0, 1 do
      for _, dtype in ipairs { "f32", "bf16" } do
        for _, load in ipairs(kind == 0 and { false, true } or { false }) do
          local name = ("%d x %d, %d slots, kind %d, normalize %d, %s, load %s"):format(rows,
            experts, k, kind, normalize, dtype, load)
          add("route_grad", name, function()
            local z, expert = routed(rows, experts, k)
            local place = host("expert_order", { expert }, { poison("i32", { rows, k }),
              poison("i32", { rows * k }), poison("i32", { experts + 1 }) }, { experts = (function()
                local list = {}
                for e = 1, experts do list[e] = e - 1 end
                return list
              end)() })
            local samples = rows % 3 == 0 and 3 or 1
            return { z, expert, place, spread("f32", { rows * k }), load and spread("f32",
              { samples, experts }, 20, 20) }, { poison(dtype, { rows, experts }) },
              { kind = kind, normalize = normalize, samples = samples, scale = 1.5,
                balance = 0.01 }
          end)
        end
      end
    end
  end
end
add("route_grad", "an expert with two slots", function()
  local expert = core.tensor("i32", { 3, 3 }, { 1, 1, 0, 2, 2, 2, 0, 3, 0 })
  local place = core.tensor("i32", { 3, 3 }, { 2, 3, 0, 5, 6, 7, 1, 8, 4 })
  return { spread("f32", { 3, 4 }), expert, place, spread("f32", { 9 }), false },
    { poison("f32", { 3, 4 }) },
    { kind = 1, normalize = 1, samples = 1, scale = 1.5, balance = 0 }
end)

for _, size in ipairs { { 1, 1, 1, 1, 4 }, { 2, 64, 16, 2, 1 }, { 3, 65, 128, 8, 1 },
  { 2, 300, 64, 6, 4 }, { 1, 130, 1000, 3, 2 }, { 4, 7, 8, 2, 64 } } do
  local samples, length, experts, k, runs = table.unpack(size)
  add("route_sums", ("%d x %d, %d experts, %d runs"):format(samples, length, experts, runs),
    function()
      local z, expert = routed(samples * length, experts, k)
      return { z, expert }, { poison("f32", { samples, experts }), poison("f32", { samples,
        experts }) }, { samples = samples, runs = runs }
    end)
  add("balance_loss", ("%d samples of %d experts"):format(samples, experts), function()
    return { spread("f32", { samples, experts }, 9, 9), spread("f32", { samples, experts }, 9, 9) },
      { poison("f32", { samples }) }, { length = 37 }
  end)
end

--- --- counts, order, segments ------------------------------------------------------------------

local function listing(experts, holes)
  local list = {}
  for e = 1, experts do
    list[#list + 1] = (e * 5) % experts
    if holes and e % 3 == 0 then list[#list + 1] = -1 end
  end
  return list
end

for _, size in ipairs { { 1, 1, 1, 1, 1, 1, 0 }, { 2, 70, 16, 2, 1, 8192, 0 },
  { 2, 3000, 64, 6, 3, 1024, 0 }, { 3, 1500, 8, 8, 4, 1000, 2300 }, { 1, 5000, 128, 8, 2, 4096,
  3000 } } do
  local samples, length, experts, k, pieces, block, first = table.unpack(size)
  for _, like in ipairs { false, true } do
    add("expert_counts", ("%d x %d, %d experts, %d pieces, alike %s"):format(samples, length,
      experts, pieces, like), function()
      local _, expert = routed(samples * length, experts, k, like)
      return { expert }, { poison("i32", { samples * pieces, experts }) },
        { samples = samples, pieces = pieces, block = block, token_first = first }
    end)
    for _, holes in ipairs { false, true } do
      add("expert_order", ("%d x %d, %d experts, alike %s, holes %s"):format(samples, length,
        experts, like, holes), function()
        local _, expert = routed(samples * length, experts, k, like)
        local list = listing(experts, holes)
        return { expert }, { poison("i32", { samples * length, k }), poison("i32",
          { samples * length * k }), poison("i32", { #list + 1 }) }, { experts = list }
      end)
    end
  end
end

for mode = 0, 1 do
  for _, experts in ipairs { 1, 16, 300 } do
    add("expert_load", ("%d experts, mode %d"):format(experts, mode), function()
      local load = poison("i64", { experts })
      if mode == 1 then
        local list = {}
        for e = 1, experts do list[e] = e * 1000000007 end
        load = core.tensor("i64", { experts }, list)
      end
      return { core.tensor("i32", { 7, experts }, data.ids(7 * experts, 0, 900):flat()) }, { load },
        { mode = mode }
    end)
  end
end
for _, experts in ipairs { 1, 16, 300, 1024 } do
  add("load_sign", experts .. " experts", function()
    return { core.tensor("i64", { experts }, data.ids(experts, 1, 5):flat()) },
      { poison("f32", { experts }) }, {}
  end)
end

--- ranks, share, pieces, waves, slots
for _, grid in ipairs { { 1, 1, 1, 1, 16 }, { 2, 1, 4, 2, 8 }, { 4, 2, 3, 1, 5 },
  { 8, 4, 2, 4, 40 }, { 1, 1, 8, 1, 1000 } } do
  local ranks, share, pieces, waves, slots = table.unpack(grid)
  for position = 0, ranks - 1, 3 do
    add("expert_segments", ("%d ranks, %d pieces, %d of %d slots, at %d"):format(ranks, pieces,
      waves, slots, position), function()
      local list, experts = {}, waves * ranks * slots - 1
      for i = 1, waves * ranks * slots do list[i] = i - 1 end
      list[#list] = -1
      return { core.tensor("i32", { ranks * pieces, experts }, data.ids(ranks * pieces * experts, 0,
        9):flat()) }, { poison("i32", { slots + 1 }), poison("i32", { slots, ranks // share
        * pieces + 1 }) }, { ranks = ranks, share = share, position = position, waves = waves,
        wave = waves - 1, experts = list }
    end)
  end
end

--- --- rows -------------------------------------------------------------------------------------

local function ordered(rows, experts, k)
  local _, expert, weight = routed(rows, experts, k)
  local list = {}
  for e = 1, experts do list[e] = e - 1 end
  local place, order, starts = host("expert_order", { expert }, { poison("i32", { rows, k }),
    poison("i32", { rows * k }), poison("i32", { experts + 1 }) }, { experts = list })
  return place, order, starts, weight
end

for _, dtype in ipairs { "f32", "bf16" } do
  for _, width in ipairs { 1, 3, 8, 72, 256, 1031, 4096 } do
    local rows, experts, k = 45, 8, 3
    add("take_rows", ("width %d, %s"):format(width, dtype), function()
      local _, order, starts = ordered(rows, experts, k)
      return { spread(dtype, { rows, width }), order, starts }, { poison(dtype, { rows * k,
        width }) }, { per = k, first = 2, last = 7 }
    end)
    for _, out in ipairs { "f32", "bf16" } do
      for _, weighted in ipairs { true, false } do
        add("combine", ("width %d, %s to %s, weights %s"):format(width, dtype, out, weighted),
          function()
            local slots = width == 72 and 8 or k
            local place, _, _, weight = ordered(rows, experts, slots)
            return { spread(dtype, { rows * slots, width }), place, weighted and weight,
              weighted and spread(out, { rows, width }) }, { poison(out, { rows, width }) }, {}
          end)
      end
    end
  end
end
add("take_rows", "weights of slots", function()
  local _, order, starts, weight = ordered(700, 16, 2)
  return { core.tensor("f32", { 1400, 1 }, weight:flat()), order, starts },
    { poison("f32", { 1400, 1 }) }, { per = 1, first = 0, last = 16 }
end)

local function offsets(counts) return data.starts(counts) end

local function total(counts)
  local sum = 0
  for _, count in ipairs(counts) do sum = sum + count end
  return sum
end

--- Rows of which the last `spare` are poison.
local function with_spare(dtype, rows, spare, width, factor)
  local t = spread(dtype, { rows, width }, factor)
  local all, bits = poison(dtype, { rows + spare, width }):bits(), t:bits()
  table.move(bits, 1, #bits, 1, all)
  return core.tensor_from_bits(dtype, { rows + spare, width }, all)
end

for _, dtype in ipairs { "f32", "bf16" } do
  for _, shape in ipairs { { { 3, 0, 7, 1 }, 1 }, { { 0, 300 }, 72 }, { { 20, 0, 1 }, 2048 },
    { { 5 }, 4100 }, { { 0, 0 }, 16 } } do
    local counts, width = table.unpack(shape)
    local rows, name = total(counts), ("%d rows of %d, %s"):format(total(counts), width, dtype)
    local function given() return with_spare(dtype, rows, 5, width) end
    local function out() return poison(dtype, { rows + 5, width }) end
    add("expert_swiglu", name, function() return { given(), given(), offsets(counts) }, { out() },
      {} end)
    add("expert_swiglu_grad", name, function()
      return { given(), given(), given(), offsets(counts) }, { out(), out() }, {}
    end)
    add("expert_scale_grad", name, function()
      return { given(), given(), spread("f32", { rows + 5 }), offsets(counts) },
        { out(), poison("f32", { rows + 5 }) }, {}
    end)
  end
end

--- --- products ---------------------------------------------------------------------------------

--- Weights of experts (n, k), with `fill` numbers behind each.
local function stack(dtype, experts, count, fill)
  return spread(dtype, { experts, count + fill }, 0.5)
end

local function linear(dtype, out, counts, width, widths, fill)
  local rows = total(counts)
  add("grouped_linear", ("%d rows of %d experts, %d to %s, %s to %s"):format(rows, #counts, width,
    table.concat(widths, " "), dtype, out), function()
    local inputs, outputs = { with_spare(dtype, rows, 9, width), offsets(counts) }, {}
    for i, n in ipairs(widths) do
      inputs[2 + i] = stack(dtype, #counts, n * width, fill)
      outputs[i] = poison(out, { rows + 9, n })
    end
    return inputs, outputs, { parts = #widths }
  end)
end

local function grad_input(dtype, out, counts, width, widths, fill)
  local rows = total(counts)
  add("grouped_linear_grad_input", ("%d rows of %d experts, %s to %d, %s to %s"):format(rows,
    #counts, table.concat(widths, " "), width, dtype, out), function()
    local inputs = {}
    for i, n in ipairs(widths) do inputs[i] = with_spare(dtype, rows, 9, n) end
    inputs[#widths + 1] = offsets(counts)
    for _, n in ipairs(widths) do
      inputs[#inputs + 1] = stack(dtype, #counts, n * width, fill)
    end
    return inputs, { poison(out, { rows + 9, width }) }, { parts = #widths }
  end)
end

--- pieces[e]: rows of each piece of expert e.
local function grad_weight(dtype, pieces, first, samples, mode, features, width, fill, leaves)
  local each, rows = #pieces[1] + 1, 0
  local starts = {}
  for _, counts in ipairs(pieces) do
    for _, count in ipairs(counts) do
      starts[#starts + 1] = rows
      rows = rows + count
    end
    starts[#starts + 1] = rows
  end
  add("grouped_linear_grad_weight", ("%d rows of %d experts, %d x %d, pieces %d + %d, mode %d, "
    .. "leaves %d, %s"):format(rows, #pieces, features, width, first, samples, mode, leaves or 1,
    dtype), function()
      local size = features * width + fill
      local out = mode == 0 and poison("f32", { #pieces, size }) or spread("f32", { #pieces, size })
      return { with_spare(dtype, rows, 9, features), with_spare(dtype, rows, 9, width),
        core.tensor("i32", { #pieces, each }, starts) }, { out },
        { first = first, samples = samples, mode = mode, leaves = leaves or 1 }
    end)
end

local groups = { { 1 }, { 0, 0, 0 }, { 5, 0, 64, 1, 0, 130 }, { 0, 300, 0 },
  { 16, 17, 15, 33, 31, 2, 1, 0 }, { 128, 256, 257, 127 } }
for _, dtype in ipairs { "f32", "bf16" } do
  for i, counts in ipairs(groups) do
    for _, out in ipairs { "f32", "bf16" } do
      linear(dtype, out, counts, 72, { 40, 136 }, 32)
      linear(dtype, out, counts, 128 + 8 * i, { 264 }, 0)
      grad_input(dtype, out, counts, 72, { 48, 144 }, 32)
      grad_input(dtype, out, counts, 264, { 136 }, 0)
    end
    linear(dtype, dtype, counts, 33, { 7, 65 }, 3)
    grad_input(dtype, dtype, counts, 21, { 33, 70 }, 5)
    linear(dtype, dtype, counts, 192, { 512 }, 0)
    grad_input(dtype, dtype, counts, 520, { 128, 128 }, 0)
  end
  local pieces = { { 3, 0, 17, 16 }, { 0, 0, 0, 0 }, { 70, 1, 15, 64 }, { 0, 130, 0, 5 } }
  for mode = 0, 2 do
    grad_weight(dtype, pieces, 0, 4, mode, 72, 136, 32)
    grad_weight(dtype, pieces, 1, 2, mode, 40, 264, 0)
    grad_weight(dtype, pieces, 3, 1, mode, 136, 72, 16)
    grad_weight(dtype, pieces, 2, 0, mode, 40, 40, 0)
    grad_weight(dtype, pieces, 0, 4, mode, 33, 35, 5)
    grad_weight(dtype, { { 200 }, { 33 } }, 0, 1, mode, 264, 520, 0)
    grad_weight(dtype, { { 200 }, { 33 } }, 0, 1, mode, 320, 136, 0)
  end
  local eight = { { 3, 0, 17, 16, 0, 0, 64, 65 }, { 0, 0, 0, 0, 0, 0, 0, 0 },
    { 0, 0, 0, 0, 0, 9, 0, 0 }, { 70, 1, 15, 64, 130, 33, 2, 200 } }
  for _, mode in ipairs { 0, 2 } do
    for _, leaves in ipairs { 2, 4, 8 } do
      grad_weight(dtype, eight, 0, 8, mode, 72, 136, 32, leaves)
      grad_weight(dtype, eight, 0, 8, mode, 320, 264, 0, leaves)
      grad_weight(dtype, eight, 0, 8, mode, 33, 35, 5, leaves)
    end
    grad_weight(dtype, eight, 2, 4, mode, 264, 520, 0, 2)
  end
end
-- experts of a real model: many, most of them small
local many = {}
for e = 1, 64 do many[e] = e % 7 == 0 and 0 or e % 5 == 0 and 150 or e % 23 end
linear("bf16", "bf16", many, 256, { 320, 320 }, 0)
grad_input("bf16", "bf16", many, 256, { 320, 320 }, 0)
local halves, leaves = {}, {}
for e = 1, 64 do halves[e] = { many[e] // 3, many[e] - many[e] // 3 } end
for e = 1, 200 do -- more leaves than shared memory lists
  leaves[e] = {}
  for i = 1, 8 do leaves[e][i] = (e * i) % 9 == 0 and 0 or (e + 3 * i) % 21 end
end
grad_weight("bf16", halves, 0, 2, 0, 320, 256, 0, 2)
for mode = 0, 2 do -- several tiles for each pair of blocks, and so for both of its warpgroups
  grad_weight("bf16", halves, 0, 2, mode, 328, 264, 8)
  grad_weight("bf16", halves, 1, 1, mode, 456, 520, 0)
end
grad_weight("bf16", leaves, 0, 8, 0, 72, 64, 0, 8)
local hundreds = { { 200, 150 }, { 0, 0 }, { 511, 1 }, { 64, 64 }, { 7, 300 } }
for mode = 0, 2 do -- some hundred rows each: warpgroups in turn
  grad_weight("bf16", hundreds, 0, 2, mode, 328, 264, 8)
  grad_weight("bf16", hundreds, 0, 2, mode, 456, 520, 0)
  grad_weight("bf16", hundreds, 1, 1, mode, 72, 1032, 0)
  grad_weight("bf16", hundreds, 2, 0, mode, 264, 136, 0)
end
linear("f32", "f32", many, 128, { 128, 128 }, 0)

return cases
