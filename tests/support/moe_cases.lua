--- moe_cases.lua - the operators of kernels/moe/, with f64 oracles.
local core = require "tidelock.core"
local promises = require "support.promises"
local support = require "support"
local spread = promises.spread

local moe = { cases = {} }

local function add(case) moe.cases[#moe.cases + 1] = case end

--- Scores of a row in f64.
function moe.scores(kind, z)
  local s, total, m = {}, 0.0, -math.huge
  for _, x in ipairs(z) do m = math.max(m, x) end
  for j, x in ipairs(z) do
    if kind == 0 then s[j] = math.exp(x - m)
    elseif kind == 1 then s[j] = 1 / (1 + math.exp(-x))
    else
      local u = math.exp(x)
      s[j] = math.sqrt(x > 20 and x or u < 1e-4 and u - u * u / 2 or math.log(1 + u))
    end
    total = total + s[j]
  end
  if kind == 0 then for j = 1, #s do s[j] = s[j] / total end end
  return s
end

--- The k best of a list, the lowest index of equal ones; indices from 0. `out` are left out.
function moe.best(values, k, out)
  local taken, list = {}, {}
  for _ = 1, k do
    local found
    for j, v in ipairs(values) do
      local free = not taken[j] and not (out and out[j])
      if free and (not found or v > values[found]) then found = j end
    end
    taken[found] = true
    list[#list + 1] = found - 1
  end
  return list
end

local function dropped_groups(choice, a)
  local each, score, out = #choice // a.groups, {}, {}
  for g = 0, a.groups - 1 do
    local list = moe.best({ table.unpack(choice, g * each + 1, (g + 1) * each) },
      (a.kind == 0 or each == 1) and 1 or 2)
    score[g + 1] = 0.0
    for _, i in ipairs(list) do score[g + 1] = score[g + 1] + choice[g * each + i + 1] end
  end
  local stays = {}
  for _, g in ipairs(moe.best(score, a.top_groups)) do stays[g] = true end
  for j = 1, #choice do out[j] = not stays[(j - 1) // each] end
  return out
end

--- weight and expert of a row, in f64; `fixed`: experts that are chosen already.
function moe.route_row(z, bias, a, k, fixed)
  local s, choice, total = moe.scores(a.kind, z), {}, a.kind == 0 and 0.0 or 1e-20
  for j = 1, #s do choice[j] = s[j] + (bias and bias[j] or 0) end
  local out = a.groups > 1 and dropped_groups(choice, a) or nil
  local list, weight = fixed or moe.best(choice, k, out), {}
  for _, e in ipairs(list) do total = total + s[e + 1] end
  for i, e in ipairs(list) do weight[i] = a.scale * s[e + 1] / (a.normalize == 1 and total or 1) end
  return weight, list
end

local function row_of(flat, row, width) return { table.unpack(flat, row * width + 1,
  (row + 1) * width) } end

local routers = {
  { "softmax", 8, 2, { kind = 0, groups = 1, top_groups = 1, normalize = 1, scale = 1 } },
  { "softmax, plain", 7, 3, { kind = 0, groups = 1, top_groups = 1, normalize = 0, scale = 16 } },
  { "softmax in groups", 12, 3, { kind = 0, groups = 4, top_groups = 2, normalize = 0,
    scale = 1 } },
  { "sigmoid", 16, 4, { kind = 1, groups = 4, top_groups = 2, normalize = 1, scale = 2.5 }, true },
  { "sigmoid, plain", 9, 9, { kind = 1, groups = 1, top_groups = 1, normalize = 0, scale = 1 } },
  { "sqrt softplus", 32, 6, { kind = 2, groups = 1, top_groups = 1, normalize = 1, scale = 1.5 },
    true },
  { "sqrt softplus, one of many", 130, 1, { kind = 2, groups = 1, top_groups = 1, normalize = 0,
    scale = 1 } },
}

for _, r in ipairs(routers) do
  local name, experts, k, a, biased = table.unpack(r)
  a.layer = 3
  add {
    op = "route", name = name, rows = 9, attrs = a, dtypes = { "f32" }, by_row = { true, false },
    finite = true,
    inputs = function(_, rows)
      return { spread("f32", { rows, experts }, 1, 6), biased and spread("f32", { experts }, 2, 0.1)
        or false }
    end,
    outputs = function(_, rows) return { { "f32", { rows, k } }, { "i32", { rows, k } } } end,
    oracle = function(x, attrs, rows)
      local weights, ids = {}, {}
      for row = 0, rows - 1 do
        local weight, list = moe.route_row(row_of(x[1], row, experts), x[2], attrs, k)
        for i = 1, k do weights[#weights + 1], ids[#ids + 1] = weight[i], list[i] end
      end
      return { weights, ids }
    end,
    error = 2e-5,
  }
end

--- A table of a router by hash: rows of different experts.
local function shuffled(vocab, experts, k)
  local list = {}
  for id = 0, vocab - 1 do
    for i = 0, k - 1 do list[#list + 1] = (id * 5 + i * 3) % experts end -- 3 and E share no factor
  end
  return core.tensor("f32", { vocab, k }, list)
end

for _, normalize in ipairs { 1, 0 } do
  local experts, k, vocab, samples, length = 16, 6, 20, 3, 8
  add {
    op = "route_table", name = "normalize " .. normalize, rows = 15, dtypes = { "f32" },
    finite = true, error = 2e-5,
    attrs = { layer = 3, kind = 2, normalize = normalize, samples = samples, length = length,
      token_first = 2, scale = 1.5 },
    inputs = function(_, rows)
      local ids = {}
      for i = 1, samples * length do ids[i] = i % 7 == 0 and -1 or i * 11 % vocab end
      return { spread("f32", { rows, experts }, 1, 6), core.tensor("i32", { samples * length },
        ids), shuffled(vocab, experts, k) }
    end,
    outputs = function(_, rows) return { { "f32", { rows, k } }, { "i32", { rows, k } } } end,
    oracle = function(x, attrs, rows)
      local weights, list = {}, {}
      for row = 0, rows - 1 do
        local each = rows // samples
        local id = math.max(0, x[2][row // each * length + 2 + row % each + 1])
        local chosen = row_of(x[3], math.tointeger(id), k)
        for i = 1, k do chosen[i] = math.tointeger(chosen[i]) end
        local weight = moe.route_row(row_of(x[1], row, experts), nil, { kind = 2, groups = 1,
          normalize = attrs.normalize, scale = attrs.scale }, k, chosen)
        for i = 1, k do weights[#weights + 1], list[#list + 1] = weight[i], chosen[i] end
      end
      return { weights, list }
    end,
  }
end

--- dz of a row: the slope of sum(d * weight) with the choice fixed, in closed form.
function moe.route_grad_row(z, list, d, a)
  local s, dz, total, g = moe.scores(a.kind, z), {}, a.kind == 0 and 0.0 or 1e-20, 0.0
  for j = 1, #z do dz[j] = 0.0 end
  for _, e in ipairs(list) do total = total + s[e + 1] end
  if a.normalize == 0 then total = 1 end
  for i, e in ipairs(list) do g = g + s[e + 1] / total * d[i] end
  local ds = {}
  for j = 1, #z do ds[j] = 0.0 end
  for i, e in ipairs(list) do
    ds[e + 1] = a.scale * (a.normalize == 1 and (d[i] - g) / total or d[i])
  end
  local mean = 0.0
  for j = 1, #z do mean = mean + s[j] * ds[j] end
  for j = 1, #z do
    if a.kind == 0 then dz[j] = s[j] * (ds[j] - mean)
    elseif a.kind == 1 then dz[j] = ds[j] * s[j] * (1 - s[j])
    else dz[j] = ds[j] * (1 / (1 + math.exp(-z[j]))) / (2 * s[j]) end
  end
  return dz
end

--- Adds the slope of the balance loss.
local function add_balance(dz, z, load, factor)
  local s, mean = moe.scores(0, z), 0.0
  for j = 1, #z do mean = mean + factor * load[j] * s[j] end
  for j = 1, #z do dz[j] = dz[j] + s[j] * (factor * load[j] - mean) end
end

--- What route_grad reads: logits, the experts chosen, places in reverse, weights' gradients, loads.
local function grad_inputs(rows, experts, k, a, balanced)
  local z = spread("f32", { rows, experts }, 1, 3)
  local flat, ids, places, load = z:flat(), {}, {}, {}
  for row = 0, rows - 1 do
    local _, list = moe.route_row(row_of(flat, row, experts), nil, a, k)
    for i = 1, k do ids[#ids + 1], places[#places + 1] = list[i], rows * k - #places - 1 end
  end
  for i = 1, 2 * experts do load[i] = (i * 7) % 5 end
  return { z, core.tensor("i32", { rows, k }, ids), core.tensor("i32", { rows, k }, places),
    spread("f32", { rows * k }, 4), balanced and core.tensor("f32", { 2, experts }, load) or false }
end

for i, r in ipairs(routers) do
  local name, experts, k, a = table.unpack(r)
  local balanced = i == 1
  add {
    op = "route_grad", name = name .. (balanced and " with a balance loss" or ""), rows = 10,
    dtypes = { "f32", "bf16" },
    attrs = { kind = a.kind, normalize = a.normalize, samples = 2, scale = a.scale,
      balance = balanced and 0.125 or 0 },
    inputs = function(_, rows) return grad_inputs(rows, experts, k, a, balanced) end,
    outputs = function(dtype, rows) return { { dtype, { rows, experts } } } end,
    oracle = function(x, attrs, rows)
      local dz = {}
      for row = 0, rows - 1 do
        local z, d = row_of(x[1], row, experts), {}
        for slot = 1, k do d[slot] = x[4][x[3][row * k + slot] + 1] end
        local own = moe.route_grad_row(z, row_of(x[2], row, k), d, { kind = a.kind,
          normalize = a.normalize, scale = a.scale })
        if x[5] then add_balance(own, z, row_of(x[5], row // 5, experts), attrs.balance) end
        table.move(own, 1, experts, #dz + 1, dz)
      end
      return { dz }
    end,
    error = 2e-5,
  }
end

for _, runs in ipairs { 1, 4 } do
  add {
    op = "route_sums", name = runs .. " runs", rows = 260, dtypes = { "f32" },
    attrs = { samples = 2, runs = runs },
    inputs = function(_, rows)
      local ids = {}
      for i = 1, rows * 2 do ids[i] = (i * i) % 6 end
      return { spread("f32", { rows, 6 }, 1, 2), core.tensor("i32", { rows, 2 }, ids) }
    end,
    outputs = function() return { { "f32", { 2, 6 } }, { "f32", { 2, 6 } } } end,
    oracle = function(x, _, rows)
      local share, load = {}, {}
      for i = 1, 12 do share[i], load[i] = 0.0, 0.0 end
      for row = 0, rows - 1 do
        local at = row // (rows // 2) * 6
        for j, s in ipairs(moe.scores(0, row_of(x[1], row, 6))) do
          share[at + j] = share[at + j] + s
        end
        for i = 1, 2 do
          local e = at + x[2][row * 2 + i] + 1
          load[e] = load[e] + 1
        end
      end
      return { share, load }
    end,
    error = 1e-5,
  }
end

for _, k in ipairs { 1, 3 } do
  for _, width in ipairs { 5, 2100 } do
    for _, form in ipairs { "plain", "weights", "weights and shared" } do
      add {
        op = "combine", name = ("%d slots, width %d, %s"):format(k, width, form), rows = 7,
        inputs = function(dtype, rows)
          local places = {}
          for i = 0, rows * k - 1 do places[i + 1] = (i * 2 + 1) % (rows * k) end -- odd counts
          return { spread(dtype, { rows * k, width }, 1), core.tensor("i32", { rows, k }, places),
            form ~= "plain" and spread("f32", { rows, k }, 2) or false,
            form:find "shared" and spread(dtype, { rows, width }, 3) or false }
        end,
        outputs = function(dtype, rows) return { { dtype, { rows, width } } } end,
        oracle = function(x, _, rows)
          local y = {}
          for i = 0, rows * width - 1 do
            local row, c = i // width, i % width
            y[i + 1] = x[4] and x[4][i + 1] or 0.0
            for slot = row * k + 1, (row + 1) * k do
              y[i + 1] = y[i + 1] + (x[3] and x[3][slot] or 1) * x[1][x[2][slot] * width + c + 1]
            end
          end
          return { y }
        end,
      }
    end
  end
end

-- rows of experts
-- ------------------------------------------------------------------------------------

--- Offsets of experts with 3, 0, 4 and 1 rows.
function moe.offsets() return core.tensor("i32", { 5 }, { 0, 3, 3, 7, 8 }) end

local function expert_of(row)
  return row < 3 and 0 or row < 7 and 2 or 3
end

local function each_expert(y, rows, width, fn)
  for row = 0, rows - 1 do
    for n = 1, width do y[row * width + n] = fn(row, n, expert_of(row)) end
  end
  return y
end

for parts = 1, 2 do
  local inner, outer = 19, 6
  add {
    op = "grouped_linear", name = parts .. " parts", rows = 8, attrs = { parts = parts },
    inputs = function(dtype, rows)
      local list = { spread(dtype, { rows, inner }, 1), moe.offsets() }
      for i = 1, parts do list[2 + i] = spread(dtype, { 4, outer * inner }, 1 + i) end
      return list
    end,
    outputs = function(dtype, rows)
      local list = {}
      for i = 1, parts do list[i] = { dtype, { rows, outer } } end
      return list
    end,
    oracle = function(x, _, rows)
      local all = {}
      for i = 1, parts do
        all[i] = each_expert({}, rows, outer, function(row, n, e)
          local sum = 0.0
          for k = 1, inner do
            sum = sum + x[1][row * inner + k] * x[2 + i][(e * outer + n - 1) * inner + k]
          end
          return sum
        end)
      end
      return all
    end,
    error = 6e-6,
  }
  add {
    op = "grouped_linear_grad_input", name = parts .. " parts", rows = 8, attrs = { parts = parts },
    inputs = function(dtype, rows)
      local list = {}
      for i = 1, parts do
        list[i] = spread(dtype, { rows, outer }, i)
        list[parts + 1 + i] = spread(dtype, { 4, outer * inner }, 3 + i)
      end
      list[parts + 1] = moe.offsets()
      return list
    end,
    outputs = function(dtype, rows) return { { dtype, { rows, inner } } } end,
    oracle = function(x, _, rows)
      return { each_expert({}, rows, inner, function(row, k, e)
        local sum = 0.0
        for i = 1, parts do
          for n = 1, outer do
            sum = sum + x[i][row * outer + n] * x[parts + 1 + i][(e * outer + n - 1) * inner + k]
          end
        end
        return sum
      end) }
    end,
    error = 6e-6,
  }
end

for mode = 0, 2 do
  local rows_out, columns = 5, 7
  local function start() return spread("f32", { 4, 48 }, 9) end -- 35 elements, then fill
  add {
    op = "grouped_linear_grad_weight", name = "mode " .. mode, rows = 8,
    attrs = { first = 1, samples = 2, mode = mode, leaves = mode == 2 and 2 or 1 },
    inputs = function(dtype, rows)
      return { spread(dtype, { rows, rows_out }, 1), spread(dtype, { rows, columns }, 2),
        core.tensor("i32", { 4, 4 }, { 0, 1, 1, 3, 3, 3, 3, 3, 3, 4, 6, 7, 7, 7, 8, 8 }) }
    end,
    outputs = function() return { { "f32", { 4, 48 }, mode > 0 and start or nil } } end,
    oracle = function(x)
      local y, begin = {}, start():flat()
      for e = 0, 3 do
        for i = 0, 47 do y[e * 48 + i + 1] = mode > 0 and begin[e * 48 + i + 1] or 0.0 end
        for row = x[3][e * 4 + 2], x[3][e * 4 + 4] - 1 do
          for n = 0, rows_out - 1 do
            for k = 0, columns - 1 do
              local at = e * 48 + n * columns + k + 1
              y[at] = y[at] + x[1][row * rows_out + n + 1] * x[2][row * columns + k + 1]
            end
          end
        end
      end
      return { y }
    end,
  }
end

add {
  op = "expert_scale_grad", name = "width 2100", rows = 8,
  inputs = function(dtype, rows)
    return { spread(dtype, { rows, 2100 }, 1), spread(dtype, { rows, 2100 }, 2),
      spread("f32", { rows }, 3), moe.offsets() }
  end,
  outputs = function(dtype, rows) return { { dtype, { rows, 2100 } }, { "f32", { rows } } } end,
  oracle = function(x, _, rows)
    local dout, dweight = {}, {}
    for row = 0, rows - 1 do
      dweight[row + 1] = 0.0
      for c = row * 2100 + 1, (row + 1) * 2100 do
        dout[c] = x[3][row + 1] * x[1][c]
        dweight[row + 1] = dweight[row + 1] + x[1][c] * x[2][c]
      end
    end
    return { dout, dweight }
  end,
  error = 2e-5,
}

for _, grad in ipairs { false, true } do
  add {
    op = grad and "expert_swiglu_grad" or "expert_swiglu", name = "eight rows", rows = 8,
    inputs = function(dtype, rows)
      local list = { spread(dtype, { rows, 9 }, 1, 3), spread(dtype, { rows, 9 }, 2) }
      if grad then table.insert(list, 1, spread(dtype, { rows, 9 }, 3)) end
      list[#list + 1] = moe.offsets()
      return list
    end,
    outputs = function(dtype, rows)
      return { { dtype, { rows, 9 } }, grad and { dtype, { rows, 9 } } or nil }
    end,
    oracle = function(x)
      local y, dgate, dup = {}, {}, {}
      local gate, up = x[grad and 2 or 1], x[grad and 3 or 2]
      for i, g in ipairs(gate) do
        local s = 1 / (1 + math.exp(-g))
        y[i] = g * s * up[i]
        if grad then
          dgate[i], dup[i] = x[1][i] * up[i] * (s * (1 + g * (1 - s))), x[1][i] * g * s
        end
      end
      return grad and { dgate, dup } or { y }
    end,
  }
end

--- Routing of `rows` tokens that favours some experts: ids for core.tensor.
function moe.ids(rows, experts, k, stream)
  local ids = {}
  for row = 1, rows do
    local values = {}
    for e = 1, experts do
      values[e] = support.fill_value(stream, row * experts + e) + e % 3 * 0.4
    end
    for _, id in ipairs(moe.best(values, k)) do ids[#ids + 1] = id end
  end
  return ids
end

return moe
