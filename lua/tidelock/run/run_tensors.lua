--- run_tensors.lua - the logical tensors of a run: put together from shards, or hashed where the
--- shards are.
---
---     rank 0 (tp 0)   rank 1 (tp 1)              run:weight "layers.1.q"      (rows, cols)
---     +-----------+   +-----------+    gather    +-----------------------+
---     | columns 0 |   | columns 1 |   ------->   | columns 0 | columns 1 |
---     +-----------+   +-----------+              +-----------------------+
---     share         + share         = the hash of the whole: nothing is gathered
---
--- Shards are read from dp 0 and from the first of those that hold the same part.
local core = require "tidelock.core"
local emit = require "tidelock.plan.stages.emit"
local experts = require "tidelock.plan.experts"
local kept = require "tidelock.run.kept"

local function param_of(self, name)
  for _, param in ipairs(self.plan["local"].params) do
    if param.name == name then return param end
  end
  local list = {}
  for i, param in ipairs(self.plan["local"].params) do list[i] = param.name end
  error(string.format("no weight is called %s; nearest: %s", name,
    tostring(require("tidelock.text.suggest").nearest(name, list))), 0)
end

--- The first of the ranks that hold the same shard of a weight.
local function first_of(self, param, at)
  if param.expert then return select(2, experts.coordinates(self.spec.layout, at)) == 0 end
  return at.dp == 0 and (param.axis and at.tp % param.replicas == 0 or at.tp == 0)
end

--- The rank (from 0) that a shard is read from: dp 0, the first holder, one of each set of
--- replicas.
local function shards_of(self, param)
  local list = {}
  for index, rank in ipairs(self.table) do
    local at = rank.coordinates
    local v = self:planned(at).persistent["weight " .. param.name]
    local own = v and v.tensor and first_of(self, param, at)
    if own and (not list.pp or list.pp == at.pp) then
      list.pp = at.pp
      list[#list + 1] = {
        rank = index - 1, row_first = emit.resolve(param.row_first, at.tp),
        col_first = emit.resolve(param.col_first, at.tp),
      }
    end
  end
  return list
end

--- Shards put together: true rows only. `key` picks the weight, "master ", "m " or "v ".
local function gather(self, param, key)
  local shards = shards_of(self, param)
  local rows, cols = param.weight.rows, param.weight.cols
  local pieces, dtype = {}, nil
  for i, shard in ipairs(shards) do
    local at = self.table[shard.rank + 1].coordinates
    local v = self:planned(at).persistent[key .. param.name]
    local t = self.ranks:read(shard.rank, v.tensor)
    dtype = t:dtype()
    -- nothing to put together, and nothing that fills it up
    if #shards == 1 and not param.value.vector and param.rows == rows and param.cols == cols then
      return t
    end
    pieces[i] = {
      tensor = t, row_first = shard.row_first, col_first = shard.col_first, rows = param.rows,
      cols = param.cols,
    }
  end
  local whole = core.assemble(dtype, param.value.vector and { rows } or { rows, cols }, pieces)
  -- gigabytes, of which Lua's collector knows nothing
  for _, piece in ipairs(pieces) do piece.tensor:close() end
  return whole
end

--- The sum of the shards' shares in the hash of a tensor: nothing is gathered. `name` is hashed
--- with it; cols_full: the columns that it is taken to have, past which nothing counts.
local function shares_of(self, param, key, name, cols_full)
  local sum = 0
  for _, shard in ipairs(shards_of(self, param)) do
    local at = self.table[shard.rank + 1].coordinates
    local v = self:planned(at).persistent[key .. param.name]
    local rows = math.min(param.rows, param.weight.rows - shard.row_first)
    local cols = math.min(param.cols, cols_full - shard.col_first)
    if v and rows > 0 and cols > 0 then
      sum = sum + self.ranks:hash(shard.rank, v.tensor, name, {
        row_first = shard.row_first, col_first = shard.col_first, rows = rows, cols = cols,
        pitch = param.cols, cols_full = cols_full,
      })
    end
  end
  return sum
end

--- The sum of the hashes of all tensors of a kind.
local function hash_of(self, key)
  local sum = 0
  for _, param in ipairs(self.plan["local"].params) do
    sum = sum + shares_of(self, param, key, param.name, param.full_cols)
  end
  return sum
end

---@param Run table # the class of the driver, which gets the methods below
return function(Run)
  --- The whole logical weight, in any layout: (rows, cols), or (rows) for a vector.
  function Run:weight(name) return gather(self, param_of(self, name), "weight ") end

  --- The f32 value that the optimizer steps: the master beside bf16, the weight itself in f32.
  function Run:master(name)
    local param = param_of(self, name)
    local exact = param.fields.dtype ~= "f32" and not param.fields.frozen
    return gather(self, param, exact and "master " or "weight ")
  end

  --- A weight ("weight "), its f32 master ("master ") or a moment ("m ", "v "), whole; nil where no
  --- rank keeps one.
  function Run:stored(param, arena)
    for _, rank in ipairs(self.plan.ranks) do
      local v = rank.persistent[arena .. param.name]
      if v and v.tensor then return gather(self, param, arena) end
    end
  end

  --- All weights by name: { name, param }, in bytewise order.
  function Run:weights()
    local list = {}
    for i, param in ipairs(self.plan["local"].params) do
      list[i] = { name = param.name, param = param }
    end
    table.sort(list, function(a, b) return a.name < b.name end)
    return list
  end

  --- What Run:stored(param, arena):hash(name) gives, without the tensor.
  function Run:stored_hash(param, arena, name)
    return ("%016x"):format(shares_of(self, param, arena, name, param.weight.cols))
  end

  --- The hash of all weights.
  function Run:weights_hash() return string.format("%016x", hash_of(self, "weight ")) end

  --- The hash of the optimizer's state: first moments, second moments and f32 masters.
  function Run:optimizer_hash()
    local parts = {}
    for i, key in ipairs { "m ", "v ", "master " } do
      parts[i] = string.format("%016x", hash_of(self, key))
    end
    return core.hash(table.concat(parts, " "))
  end

  --- A tensor of the last step that `keep` or log.watch asked for, whole: (tokens, dim) over the
  --- global batch, or the shape of a weight for gradients.
  function Run:kept(name)
    local found = kept.read(self, name)
    if not found then
      error(string.format('%s was not kept; ask for it before planning: start { keep = { "%s" } }',
        name, name), 0)
    end
    return found
  end

  function Run:watched()
    local values = {}
    for _, watch in ipairs(self.watches) do
      for _, name in ipairs(kept.names(self, watch.pattern)) do
        local tensor = self:kept(name)
        values[name .. ":" .. watch.what] = tensor[watch.what](tensor)
      end
    end
    return values
  end
end
