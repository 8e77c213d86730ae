--- sampling_cases.lua - the next token, by an oracle that sorts all ids and adds up in f64.
local core = require "tidelock.core"
local promises = require "support.promises"
local spread = promises.spread

local sampling = { cases = {} }

--- How a row chooses: { next, temperature, top_p, top_k, seed, request, position }.
sampling.ways = {
  { -1, 0, 1, 0, 1, 0, 3 }, { -1, 1, 1, 0, 1, 0, 4 }, { -1, 0.7, 1, 5, 2, 1, 9 },
  { -1, 1.3, 0.9, 0, 3, 0, 2 }, { 4, 1, 1, 0, 1, 0, 4 }, { -2, 1, 1, 0, 1, 0, 4 },
  { -1, 1, 0.5, 7, 7, 1 << 40, 5 },
}

--- Controls, draws and known tokens of `ways`, as tensors.
function sampling.operands(ways)
  local next_, controls, draws = {}, {}, {}
  for i, w in ipairs(ways) do
    next_[i], controls[2 * i - 1], controls[2 * i] = w[1], w[2], w[3]
    local function low(n) return ((n & 0xFFFFFFFF) ~ 1 << 31) - (1 << 31) end
    local function high(n) return low(n >> 32) end
    for k, value in ipairs { w[4], low(w[5]), high(w[5]), low(w[6]), high(w[6]), w[7] } do
      draws[6 * (i - 1) + k] = value
    end
  end
  return core.tensor("i32", { #ways }, next_), core.tensor("f32", { #ways, 2 }, controls),
    core.tensor("i32", { #ways, 6 }, draws)
end

--- Ids by falling z, equal ones by rising id.
local function sorted(z)
  local order = {}
  for i = 1, #z do order[i] = i end
  table.sort(order, function(a, b)
    if z[a] ~= z[b] then return z[a] > z[b] end
    return a < b
  end)
  return order
end

--- The token of one row of logits.
function sampling.token(z, w)
  if w[1] ~= -1 then return w[1] >= 0 and w[1] or -1 end
  local order = sorted(z)
  local m = z[order[1]]
  if w[2] == 0 then return order[1] - 1 end
  local limit = w[4] > 0 and math.min(w[4], #z) or #z
  if limit == #z and w[3] >= 1 then
    for i = 1, #z do order[i] = i end
  end
  local weight, total, kept = {}, 0.0, limit
  for i = 1, limit do
    weight[i] = math.exp((z[order[i]] - m) / w[2])
    total = total + weight[i]
  end
  if w[3] < 1 then
    local sum = 0.0
    for i = 1, limit do
      sum = sum + weight[i]
      if sum >= w[3] * total then
        kept, total = i, sum
        break
      end
    end
  end
  local words, sum = core.random_words(w[5], core.hash_int "sample", w[7], w[6]), 0.0
  for i = 1, kept do
    sum = sum + weight[i]
    if sum > (words >> 8) * 2.0 ^ -24 * total then return order[i] - 1 end
  end
  return order[kept] - 1
end

sampling.cases[1] = {
  op = "sample", name = "seven ways", rows = #sampling.ways, attrs = { columns = 12 },
  dtypes = { "f32" }, by_row = { true, true, true, true }, finite = true,
  inputs = function(_, rows)
    return { spread("f32", { rows, 16 }, 5, 4), sampling.operands(sampling.ways) }
  end,
  outputs = function(_, rows) return { { "i32", { rows } } } end,
  oracle = function(x, attrs, rows)
    local ids = {}
    for t = 1, rows do
      local z = table.move(x[1], (t - 1) * 16 + 1, (t - 1) * 16 + attrs.columns, 1, {})
      ids[t] = sampling.token(z, sampling.ways[t])
    end
    return { ids }
  end,
}

sampling.cases[2] = {
  op = "follow", name = "tokens, none, and rows of a step before", rows = 6, attrs = {},
  dtypes = { "i32" }, by_row = { true, false }, finite = true,
  inputs = function()
    return { core.tensor("i32", { 6 }, { 7, -1, -2, -5, -4, 0 }),
      core.tensor("i32", { 4 }, { 30, 31, -1, 33 }) }
  end,
  outputs = function(_, rows) return { { "i32", { rows } } } end,
  oracle = function() return { { 7, -1, 30, 33, -1, 0 } } end,
}

return sampling
