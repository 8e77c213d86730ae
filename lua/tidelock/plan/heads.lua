--- heads.lua - channels of heads, taken apart and put together, through the stages of the planner.
---
---     split_heads   (tokens, heads, a + b)             -> (tokens, heads, a), (tokens, heads, b)
---     join_heads    (tokens, heads, a), (tokens, b)    -> (tokens, heads, a + b)
---
--- A piece without heads is one for all heads: every tp rank has the whole of it. Its gradient is
--- the sum over the heads: in as many leaves as any tp needs, each a chain of neighbouring heads,
--- then the tree, over leaves of a rank and over ranks (kernels/heads/heads.h).
local heads = { shard = {}, gradient = {}, lowering = {} }

--- Heads of a value that a rank holds; a value without them counts as one head.
local function held(s, value)
  if #value.dims < 3 then return 1 end
  return (s:cut(value.dims[2], value.site))
end

--- Leaves of the sum over all heads: a function of the model and the policy alone.
function heads.leaves(leaves, count)
  local a, b = leaves, count
  while b ~= 0 do a, b = b, a % b end
  return a & -a
end

-- shard -----------------------------------------------------------------------------------------

function heads.shard.split_heads(s, node, inputs)
  local x, outputs = inputs[1], {}
  for i, output in ipairs(node.outputs) do outputs[i] = s:like(output, x.region) end
  s:add(node, "split_heads", { x }, outputs, { parts = #outputs, first = 0 },
    { heads = held(s, node.inputs[1]) })
  return outputs
end

function heads.shard.join_heads(s, node, inputs)
  local list, own = {}, {}
  for i, x in ipairs(inputs) do
    own[i] = #node.inputs[i].dims == 3
    list[i] = not own[i] and x.region == "trunk" and s:spread(node, x) or x
  end
  local all = node.outputs[1].dims[2].size
  local y = s:like(node.outputs[1], "heads")
  return { (s:add(node, "join_heads", list, { y }, { parts = #list }, {
    heads = held(s, node.outputs[1]), own = own,
    leaves = math.max(1, heads.leaves(s.n, all) // s.t),
  })) }
end

-- differentiate ---------------------------------------------------------------------------------

function heads.gradient.split_heads(d, node, dys)
  local own = {}
  for i, y in ipairs(node.outputs) do
    own[i] = true
    dys[i] = dys[i] or d:add("fill", {}, { d:value(y) }, { value = 0 })
  end
  local x = node.inputs[1]
  local dx = d:value(x)
  d:add("join_heads", dys, { dx }, { parts = #dys }, { heads = node.heads, own = own })
  d:contribute(x, dx, 1)
end

--- The root of this rank's heads, and with tp that of all of them.
local function shared(d, node, dy, x, first)
  local root = d:value(x, d.t > 1 and { dtype = "f32" } or nil)
  d:add("sum_heads", { dy }, { root }, { first = first, leaves = node.leaves },
    { heads = node.heads })
  if d.t == 1 then return root end
  return (d:add("all_reduce", { root }, { d:value(x, { alias = root, dtype = "f32" }) }))
end

function heads.gradient.join_heads(d, node, dys)
  local dy, first = dys[1], 0
  for i, x in ipairs(node.inputs) do
    local dx = node.own[i] and d:value(x) or shared(d, node, dy, x, first)
    if node.own[i] then
      d:add("split_heads", { dy }, { dx }, { parts = 1, first = first }, { heads = node.heads })
    end
    d:contribute(x, dx, i)
    first = first + (node.own[i] and x.cols // node.heads or x.cols)
  end
end

-- lower -----------------------------------------------------------------------------------------

--- The view of a value as (rows, heads, channels).
local function view(self, value, count, env)
  local v = self:at(value, env)
  return { buffer = v.buffer, dtype = v.dtype, offset = v.offset,
    shape = { value.rows, count, value.cols // count } }
end

function heads.lowering.split_heads(self, node, env, o)
  local pieces = {}
  for i, y in ipairs(node.outputs) do pieces[i] = view(self, y, node.heads, env) end
  self:emit("split_heads", { view(self, node.inputs[1], node.heads, env) }, pieces, node.attrs, o)
end

function heads.lowering.join_heads(self, node, env, o)
  local pieces = {}
  for i, x in ipairs(node.inputs) do
    pieces[i] = view(self, x, node.own[i] and node.heads or 1, env)
  end
  self:emit("join_heads", pieces, { view(self, node.outputs[1], node.heads, env) }, node.attrs, o)
end

function heads.lowering.sum_heads(self, node, env, o)
  self:emit("sum_heads", { view(self, node.inputs[1], node.heads, env) },
    { self:at(node.outputs[1], env) }, node.attrs, o)
end

return heads
