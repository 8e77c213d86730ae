--- graph.lua - the graph of a model, written by calling modules and operators on values.
---
---     value --node--> value --node--> value          nodes are kept in the order of the calls
---
--- A value has named dims: (tokens, dim), (tokens, heads, head_dim), (dim). A dim that the model
--- maps to the axis "tp" may be cut over tensor-parallel ranks; which dims those are belongs to the
--- model, because it fixes where the leaves of sums lie, at every tp. Nothing is computed here.
local states = require "tidelock.model.states"
local types = require "tidelock.language.types"
local where = require "tidelock.language.where"

---@class tidelock.Dim
---@field name string
---@field size? integer # absent for tokens
---@field axis? string # "tp", or nil: never cut
---@field replicated? boolean # cut over more ranks than it has elements: several hold the same one

---@class tidelock.Weight
---@field name string # its identity: initial bits hang on it
---@field dims tidelock.Dim[] # output dims first, then input dims
---@field out integer # how many of the dims are output dims (all of them for a vector)
---@field rows integer # product of the output dims
---@field cols integer # product of the input dims (1 for a vector)
---@field kind string # "matrix", "gain", "bias", "vector" or "state": decides the defaults
---@field given table # fields given where it was made
---@field site string
---@field updated? string # of a state: where g.update sets it

---@class tidelock.Value
---@field graph tidelock.Graph
---@field id integer
---@field dims tidelock.Dim[]
---@field dtype string
---@field name? string
---@field weight? tidelock.Weight
---@field fixed? boolean # no gradient goes through it
---@field after? boolean # made of sums over the tokens of the step: there once all are summed
---@field node? table # the node that makes it
---@field site string

---@class tidelock.Graph
---@field nodes table[]
---@field values tidelock.Value[]
---@field weights tidelock.Weight[]
---@field by_name table<string, tidelock.Weight>
---@field terms table[] # extra losses: { name, value, site }, value the mean over targets
---@field schedules table # functions of the step, by place and by hash: a number for each step
---@field steps integer # of the run
---@field tokens integer # of the global batch
---@field complete? boolean # the functions of the model are done: nothing more is added
local Graph = {}
Graph.__index = Graph

local Value = {}
Value.__index = Value

--- nodes_max: what a model may have. A loop in nn.graph that does not end meets it in a few
--- seconds, long before its lines are counted out and with little memory.
local graph = { nodes_max = 50000 }

---@param dtype string # dtype of activations and, unless a rule says otherwise, of weights
---@return tidelock.Graph
function graph.new(dtype)
  local self = setmetatable({
    nodes = {}, values = {}, weights = {}, by_name = {}, dtype = dtype,
    scopes = { { path = "", dims = {} } }, layer = "embed", names = {}, losses = {}, terms = {},
    schedules = {}, tabulated = {},
  }, Graph)
  self:define("tokens")
  return self
end

--- Raises with the site of the innermost recipe line.
local function fail(g, text)
  error(string.format("%s: %s", where.here() or g.site or "?", text), 0)
end

local function scope(g) return g.scopes[#g.scopes] end

local function joined(path, name)
  if name:sub(1, 1) == "/" then return name:sub(2) end
  return path == "" and name or path .. "." .. name
end

--- Opens a scope of names; "/x" starts at the root. An empty name keeps the present one.
function Graph:enter(name)
  local top = scope(self)
  local path = name and joined(top.path, name) or top.path
  self.scopes[#self.scopes + 1] = {
    path = path, dims = setmetatable({}, { __index = top.dims }),
    shared = top.shared or (name ~= nil and name:sub(1, 1) == "/"),
  }
end

function Graph:leave() self.scopes[#self.scopes] = nil end

function Graph:path() return scope(self).path end

function Graph:define(name, size, axis)
  local dim = { name = name, size = size, axis = axis }
  scope(self).dims[name] = dim
  return dim
end

--- Names a dim of this graph, of `size` elements; `axis` "tp" lets it be cut over tp ranks.
function Graph:dim(name, size, axis)
  if math.type(size) ~= "integer" or size < 1 then
    fail(self, string.format("dim %s: expected a positive integer size, got %s", name,
      tostring(size)))
  end
  if axis ~= nil and axis ~= "tp" then
    fail(self, string.format('dim %s: axis %s; a dim may be mapped to "tp" or to nothing', name,
      tostring(axis)))
  end
  return self:define(name, size, axis)
end

--- The width of the residual stream, where it has `size` elements: a linear may lead back to it.
function Graph:width(size)
  local dim = scope(self).dims.dim
  return dim and dim.size == size and dim or nil
end

local function find_dim(g, name)
  local dim = scope(g).dims[name]
  if not dim then
    local known = {}
    for i = #g.scopes, 1, -1 do
      for key in pairs(g.scopes[i].dims) do known[#known + 1] = key end
    end
    table.sort(known)
    fail(g, string.format("no dim is called %s; there are %s (g.dim makes one)", name,
      table.concat(known, ", ")))
  end
  return dim
end

function Graph:value(dims, dtype, node, extra)
  local value = setmetatable({
    graph = self, id = #self.values + 1, dims = dims, dtype = dtype, node = node,
    site = where.here() or self.site, layer = self.layer,
  }, Value)
  for key, item in pairs(extra or {}) do value[key] = item end
  self.values[value.id] = value
  return value
end

--- Adds a node. `outputs` is a list of { dims, dtype }. Returns its output values.
function Graph:node(op, inputs, outputs, attrs)
  if #self.nodes >= graph.nodes_max then
    fail(self, ("more than %d operators in one model: this does not end, or has too many layers")
      :format(graph.nodes_max))
  end
  local facts = states.facts(self, op, inputs, outputs, fail)
  local node = {
    id = #self.nodes + 1, op = op, inputs = inputs, outputs = {}, attrs = attrs or {},
    path = self:path(), site = where.here() or self.site, layer = self.layer,
    after = op ~= "sum" and facts.after or nil,
  }
  self.nodes[node.id] = node
  for i, output in ipairs(outputs) do
    node.outputs[i] = self:value(output[1], output[2], node, facts)
  end
  return table.unpack(node.outputs)
end

--- A weight; made once per name. dims: output dims, then input dims, as names or dims.
---@param kind string
function Graph:parameter(name, dims, out, kind, given)
  local full = joined(self:path(), name)
  states.check_open(self, fail)
  if not utf8.len(full) then fail(self, string.format("the weight %q: a name is UTF-8", full)) end
  local list, rows, cols = {}, 1, 1
  for i, dim in ipairs(dims) do
    list[i] = type(dim) == "string" and find_dim(self, dim) or dim
    if i <= out then rows = rows * list[i].size else cols = cols * list[i].size end
  end
  local known = self.by_name[full]
  if known then
    if not scope(self).shared and name:sub(1, 1) ~= "/" then
      fail(self, string.format("the %s %s is already made at %s; give one of the modules a name"
        .. ' (name = "..."; a name that starts with / shares)', states.word(known), full,
        known.site))
    end
    if (known.kind == "state") ~= (kind == "state") then
      fail(self, string.format("%s is a %s at %s and a %s here", full, states.word(known),
        known.site, states.word { kind = kind }))
    end
    if known.rows ~= rows or known.cols ~= cols then
      fail(self, string.format("the shared %s %s is (%d, %d) at %s and (%d, %d) here",
        states.word(known), full, known.rows, known.cols, known.site, rows, cols))
    end
    return self:value(list, known.value.dtype, nil,
      { weight = known, name = full, fixed = known.value.fixed })
  end
  local weight = {
    name = full, dims = list, out = out, rows = rows, cols = cols, kind = kind, given = given or {},
    site = where.here() or self.site, index = #self.weights + 1,
  }
  self.weights[weight.index], self.by_name[full] = weight, weight
  local state = kind == "state"
  weight.value = self:value(list, state and "f32" or self.dtype, nil,
    { weight = weight, name = full, fixed = state })
  return weight.value
end

--- A weight of a user's graph. One dim: a vector; two or more: a matrix with output dims first.
--- How many dims are output dims shows where it is used.
function Graph:weight(name, dims, given)
  local list = states.dims(self, name, dims, find_dim, fail)
  if #list == 0 then fail(self, string.format("weight %s has no dims", name)) end
  local out = #list == 1 and 1 or #list - 1
  return self:parameter(name, list, out, #list == 1 and "vector" or "matrix", given)
end

--- Gives a value a name that watch and keep can use.
function Graph:named(name, value)
  value.name = joined(self:path(), name)
  self.names[#self.names + 1] = value
  return value
end

-- dims ---------------------------------------------------------------------------------------

local function has_dim(value, dim)
  for _, other in ipairs(value.dims) do
    if other == dim or other.name == dim.name and other.size == dim.size then return true end
  end
  return false
end

local function same_dims(a, b)
  if #a.dims ~= #b.dims then return false end
  for i, dim in ipairs(a.dims) do
    if dim ~= b.dims[i] and (dim.name ~= b.dims[i].name or dim.size ~=
      b.dims[i].size) then return false end
  end
  return true
end

local function dims_text(value)
  local names = {}
  for i, dim in ipairs(value.dims) do
    names[i] = dim.size and string.format("%s %d", dim.name, dim.size) or dim.name
  end
  return "(" .. table.concat(names, ", ") .. ")"
end
graph.dims_text = dims_text

local function is_value(x) return getmetatable(x) == Value end
graph.is_value = is_value

-- operators ----------------------------------------------------------------------------------

--- Sums over the dims that both have: an activation (tokens, ...) times a weight.
function Graph:matmul(a, b)
  if not (is_value(a) and is_value(b)) then fail(self, "matmul wants two values") end
  if a.weight then a, b = b, a end
  if not b.weight or a.weight or b.fixed then
    fail(self, string.format("matmul wants an activation and a weight, got %s and %s",
      dims_text(a), dims_text(b)))
  end
  local out, inner = {}, {}
  for _, dim in ipairs(b.dims) do
    if has_dim(a, dim) then inner[#inner + 1] = dim
    elseif #inner > 0 then
      fail(self,
        string.format("weight %s %s: write output dims first, then the dims that are summed",
        b.weight.name, dims_text(b)))
    else out[#out + 1] = dim end
  end
  if #inner == 0 then
    fail(self, string.format("matmul: %s and %s have no dim in common", dims_text(a), dims_text(b)))
  end
  local rest = {}
  for _, dim in ipairs(a.dims) do
    local summed = false
    for _, other in ipairs(inner) do summed = summed or other.name == dim.name end
    if not summed then rest[#rest + 1] = dim end
  end
  if #rest ~= 1 or rest[1].name ~= "tokens" then
    fail(self, string.format("matmul: %s must be (tokens, the dims of %s that are summed)",
      dims_text(a), dims_text(b)))
  end
  for i, dim in ipairs(inner) do
    if a.dims[i + 1].name ~= dim.name then
      fail(self, string.format("weight %s %s: write the summed dims in the order of %s",
        b.weight.name, dims_text(b), dims_text(a)))
    end
  end
  return self:linear(a, { b }, nil, { out }, inner)
end

--- One linear op with parts: y_i = x w_i^T (+ bias_i). out[i]: the output dims of part i.
function Graph:linear(x, weights, biases, out, inner, dtype)
  local outputs = {}
  for i, w in ipairs(weights) do
    local rows, cols = 1, 1
    for _, dim in ipairs(out[i]) do rows = rows * dim.size end
    for _, dim in ipairs(inner) do cols = cols * dim.size end
    if w.weight.used and w.weight.out ~= #out[i] then
      fail(self, string.format("weight %s: %d of its dims are summed here and %d before; use two "
        .. "weights", w.weight.name, #w.weight.dims - #out[i], #w.weight.dims - w.weight.out))
    end
    w.weight.out, w.weight.rows, w.weight.cols, w.weight.used = #out[i], rows, cols, true
    local dims = { x.dims[1] }
    for _, dim in ipairs(out[i]) do dims[#dims + 1] = dim end
    outputs[i] = { dims, dtype or self.dtype }
  end
  local inputs = { x }
  for _, w in ipairs(weights) do inputs[#inputs + 1] = w end
  for _, bias in ipairs(biases or {}) do inputs[#inputs + 1] = bias end
  return self:node("linear", inputs, outputs,
    { parts = #weights, biases = biases and 1 or 0, inner = inner })
end

local unary = { "sigmoid", "silu", "gelu", "relu", "tanh", "square", "exp", "log", "neg", "sign" }
for kind, name in ipairs(unary) do
  Graph[name] = function(self, x)
    if not is_value(x) then fail(self, name .. " wants a value") end
    return self:node("unary", { x }, { { x.dims, x.dtype } }, { kind = kind - 1, name = name })
  end
end

local kinds = { add = 0, sub = 1, mul = 2, div = 3 }

local function scaled(g, x, factor)
  return g:node("scale", { x }, { { x.dims, x.dtype } }, { factor = factor })
end

--- A number beside a value: one row of it, of the features of `x`, without a gradient.
local function constant(g, x, number)
  local dims = {}
  for _, dim in ipairs(x.dims) do if dim.name ~= "tokens" then dims[#dims + 1] = dim end end
  return g:node("fill", {}, { { dims, x.dtype } }, { value = number })
end

--- a op b where one is a number, or a function of the step; nil where both are values.
local function with_number(g, name, a, b)
  local x, number = is_value(a) and a or b, is_value(a) and b or a
  if type(number) == "function" and name == "mul" then
    return states.scheduled(g, x, number, fail)
  end
  if type(number) ~= "number" then return nil end
  if name == "mul" then return scaled(g, x, number) end
  if name == "div" and x == a then return scaled(g, x, 1 / number) end
  if name == "add" then return x + constant(g, x, number) end
  if name == "sub" then return x == a and x + constant(g, x, -number) or -x + number end
end

--- How the dims of a and b meet: 0 alike, 1 b is a row of a, nil not at all.
local function meeting(a, b)
  if same_dims(a, b) then return 0 end
  if #b.dims == 0 then return 1 end
  local offset = #a.dims - #b.dims
  for i, dim in ipairs(b.dims) do
    local other = a.dims[i + offset]
    if offset < 1 or other.name ~= dim.name or other.size ~= dim.size then return nil end
  end
  return a.dims[1].name == "tokens" and 1 or nil
end

--- a op b; dims meet by name: (tokens, dim) with (dim), any with (), or equal dims.
local function binary(name, a, b)
  local g = is_value(a) and a.graph or b.graph
  if not (is_value(a) and is_value(b)) then
    return with_number(g, name, a, b) or fail(g, string.format("%s of a value and %s: a number is "
      .. "added, subtracted, multiplied or divides", name, tostring(is_value(a) and b or a)))
  end
  if #b.dims > #a.dims and (name == "add" or name == "mul") then a, b = b, a end
  local broadcast = meeting(a, b)
  if not broadcast then
    fail(g, string.format("%s: the dims %s and %s do not meet", name, dims_text(a), dims_text(b)))
  end
  if broadcast == 1 and (name == "div" or name == "sub") and not b.fixed then
    fail(g, string.format("%s: %s and %s: a row on the right is only added or multiplied", name,
      dims_text(a), dims_text(b)))
  end
  if name == "div" and not (a.fixed and b.fixed) then
    fail(g, "values are not divided by values: multiply by exp(-log(x))")
  end
  return g:node("binary", { a, b }, { { a.dims, a.dtype } }, { kind = kinds[name],
    broadcast = broadcast, name = name })
end

function Value.__add(a, b) return binary("add", a, b) end
function Value.__sub(a, b) return binary("sub", a, b) end
function Value.__mul(a, b) return binary("mul", a, b) end
function Value.__div(a, b) return binary("div", a, b) end
function Value.__unm(a) return a.graph:neg(a) end
function Value.__tostring(v) return string.format("value %s%s", v.name or v.id, dims_text(v)) end

function Graph:cast(x, dtype)
  if dtype ~= "f32" and dtype ~= "bf16" then fail(self, "cast: dtype " .. tostring(dtype)
    .. "; f32 or bf16") end
  if x.dtype == dtype then return x end
  return self:node("cast", { x }, { { x.dims, dtype } })
end

--- Loss of each target token: log(sum(exp(z))) - z[target], f32 (tokens); 0 for those without a
--- target.
function Graph:cross_entropy(logits, targets, options)
  options = options or {}
  for _, key in ipairs { "smoothing", "z" } do
    local x = options[key]
    if x ~= nil and (type(x) ~= "number" or not (x >= 0 and x < math.huge)) then
      fail(self, string.format("cross_entropy: %s is %s; it is a number, 0 or more", key,
        types.show(x)))
    end
  end
  if targets.input ~= "targets" then
    fail(self, "cross_entropy wants the targets that the loss function is given")
  end
  return self:node("cross_entropy", { logits, targets }, { { { logits.dims[1] }, "f32" } },
    { smoothing = options.smoothing or 0, z = options.z or 0 })
end

--- log(sum(exp(x))) over the vocabulary, f32 (tokens).
function Graph:logsumexp(logits, dim)
  local last = logits.dims[#logits.dims]
  if dim ~= nil and last.name ~= dim then
    fail(self, string.format("logsumexp over %s: the last dim of %s is %s", dim,
      dims_text(logits), last.name))
  end
  return self:node("logsumexp", { logits }, { { { logits.dims[1] }, "f32" } })
end

--- An extra loss: `values` (tokens), one number per target token, times `scale`; logged by name.
function Graph:add_loss(name, values, scale)
  if #values.dims ~= 1 or values.dims[1].name ~= "tokens" then
    fail(self, string.format("add_loss %s: one number per token is wanted, got %s", name,
      dims_text(values)))
  end
  self.losses[#self.losses + 1] = { name = name, value = scale and scaled(self, values, scale)
    or values }
  states.term(self, joined(self:path(), name), values, fail)
end

states.extend(Graph, { fail = fail, find_dim = find_dim, dims_text = dims_text,
  is_value = is_value, same_dims = same_dims })

-- What operators take; "?": may be left out. The others look at their operands themselves.
local wants = {
  dim = { "string" }, weight = { "string", "string", "table?" }, named = { "string", "value" },
  state = { "string", "string?", "table?" }, sum = { "value", "string?" },
  mean = { "value", "string?" }, update = { "value", "value" },
  cast = { "value" }, cross_entropy = { "value", "value", "table?" },
  logsumexp = { "value", "string?" }, add_loss = { "string", "value", "number?" },
}

local function check_operands(g, name, ...)
  for i, kind in ipairs(wants[name] or {}) do
    local x, bare = select(i, ...), kind:gsub("%?$", "")
    local found = is_value(x) and "value" or type(x)
    if found ~= bare and not (x == nil and bare ~= kind) then
      fail(g, string.format("%s wants a %s as its operand %d, got %s", name, bare, i,
        found == "value" and "a value" or types.show(x)))
    end
  end
end

--- Functions of recipes are written g.matmul(a, b): the same methods without the colon.
---@return table
function graph.face(g)
  return setmetatable({}, {
    __index = function(_, key)
      local method = Graph[key]
      if type(method) ~= "function" then
        fail(g, string.format("graphs have no operator %s; docs/recipes.md has all, in Graphs "
          .. "written by hand", tostring(key)))
      end
      return function(...)
        check_operands(g, key, ...)
        return method(g, ...)
      end
    end,
  })
end

return graph
