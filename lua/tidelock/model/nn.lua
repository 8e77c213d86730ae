--- nn.lua - modules: descriptions that become nodes when they are called on a value.
---
---     nn.residual { nn.rms_norm {}, nn.attention { heads = 8 } }     x + attention(rms_norm(x))
---
--- A module is named after its kind, a residual branch after its last module; `name` renames, and a
--- name that starts with "/" is looked up from the root, so that two modules share weights.
local choices = require "tidelock.model.choices"
local graph = require "tidelock.model.graph"
local hf = require "tidelock.hf"
local schema = require "tidelock.language.schema"
local where = require "tidelock.language.where"
local yarn = require "tidelock.model.yarn"

---@class tidelock.Module
---@field kind string
---@field options table
---@field site string
---@field children? tidelock.Module[]
local Module = {}
Module.__index = Module

local nn = {}
local build = {}

local function module(kind, options, children)
  return setmetatable({
    kind = kind, site = where.here(), children = children, options = options,
  }, Module)
end

local function declare(kind)
  nn[kind] = function(options)
    return module(kind, schema.check("nn." .. kind, options or {}, where.here()))
  end
end
for _, kind in ipairs { "attention", "mla", "rms_norm", "layer_norm", "swiglu", "gelu", "linear",
  "dropout", "moe" } do
  declare(kind)
end

--- A residual branch: x + last(...first(x)). Options beside the list: dropout, name.
function nn.residual(options)
  if type(options) ~= "table" then
    error(string.format("%s: nn.residual wants a table of modules, got %s", where.here(),
      type(options)), 0)
  end
  local children, rest = {}, {}
  for i, child in ipairs(options) do children[i] = child end
  for key, value in pairs(options) do
    if math.type(key) ~= "integer" then rest[key] = value end
  end
  if #children == 0 then
    error(string.format("%s: nn.residual has no modules; write nn.residual { norm, mixer }",
      where.here()), 0)
  end
  return module("residual", schema.check("nn.residual", rest, where.here()), children)
end

--- A graph written by hand: nn.graph(name, function(g, x) ... return y end); the name may be
--- left out.
function nn.graph(name, fn)
  if fn == nil then name, fn = nil, name end
  if type(fn) ~= "function" then
    error(string.format("%s: nn.graph wants a function of (g, x), got %s", where.here(),
      type(fn)), 0)
  end
  if name ~= nil and (type(name) ~= "string" or name == "") then
    error(string.format("%s: nn.graph: the name is a string, got %s", where.here(),
      name == "" and "an empty one" or type(name)), 0)
  end
  return module("graph", { name = name, fn = fn })
end

--- The whole model: embedding, layers, final norm, head.
function nn.decoder(options)
  return module("decoder", schema.check("nn.decoder", options, where.here()))
end

--- A model from a Hugging Face folder: nn.from_hf "DIR", or nn.from_hf { "DIR", ignore = { .. } }.
function nn.from_hf(options)
  local site = where.here()
  if type(options) == "string" then options = { options } end
  local checked = schema.check("nn.from_hf", options, site)
  local made = checked.folder and hf.open(nn, checked, site, function(text)
    schema.problem(site, "nn.from_hf", text)
  end)
  if not where.context() then schema.raise_if_any() end
  return module("decoder", made or {})
end

--- The name that a module takes in its scope; nil for an anonymous graph or a residual.
local function name_of(m)
  if getmetatable(m) ~= Module then return nil end
  if m.options.name then return m.options.name end
  if m.kind == "graph" then return nil end
  if m.kind == "residual" then return name_of(m.children[#m.children]) or "residual" end
  return m.kind
end

--- Calls a module (or a plain function of a value) on a value; `inside`: its scope is open already.
local function apply(m, x, inside, ...)
  local g = x.graph
  if getmetatable(m) ~= Module then
    if type(m) == "function" then return m(x) end
    error(string.format("%s: expected a module of nn, got %s", g.site or "?", type(m)), 0)
  end
  local site = g.site
  g.site = m.site or site
  if not inside then g:enter(name_of(m)) end
  local y = build[m.kind](g, m, x, ...)
  if graph.is_value(y) and not y.name and not y.weight then g:named("out", y) end
  if not inside then g:leave() end
  g.site = site
  return y
end
nn.apply = apply

function Module:__call(x, ...)
  if not graph.is_value(x) then
    error(string.format("%s: nn.%s is called on a graph value, got %s", where.here(), self.kind,
      type(x)), 0)
  end
  return apply(self, x, false, ...)
end

function Module:__tostring() return string.format("nn.%s (%s)", self.kind, self.site or "?") end

local function width(x) return x.dims[#x.dims] end

local function gain(g, name, dim, kind) return g:parameter(name, { dim }, 1, kind) end

function build.residual(g, m, x)
  local y = x
  for i, child in ipairs(m.children) do y = apply(child, y, i == #m.children) end
  if m.options.dropout and m.options.dropout > 0 then
    y = g:node("dropout", { y }, { { y.dims, y.dtype } }, { rate = m.options.dropout,
      key = g:path() .. ".dropout" })
  end
  return g:named("sum", x + y)
end

function build.graph(g, m, x, ...)
  local y = m.options.fn(graph.face(g), x, ...)
  if not graph.is_value(y) then
    error(string.format("%s: the function of nn.graph returns %s, not a value", m.site, type(y)), 0)
  end
  return y
end

--- All dims but the last: a norm has one number for each of these.
local function outer(x) return { table.unpack(x.dims, 1, #x.dims - 1) } end

function build.rms_norm(g, m, x)
  local y = g:node("rms_norm", { x, gain(g, "gain", width(x), "gain") },
    { { x.dims, x.dtype }, { outer(x), "f32" } }, { eps = m.options.eps })
  return y
end

function build.layer_norm(g, m, x)
  local y = g:node("layer_norm", { x, gain(g, "gain", width(x), "gain"), gain(g, "bias", width(x),
    "bias") },
    { { x.dims, x.dtype }, { outer(x), "f32" }, { outer(x), "f32" } }, { eps = m.options.eps })
  return y
end

--- Several linears of one input, as parts of one op. parts: { { name, dims }, ... }
local function parts(g, x, inner, list, with_bias)
  local weights, biases, out = {}, with_bias and {} or nil, {}
  for i, part in ipairs(list) do
    local dims = { table.unpack(part[2]) }
    for _, dim in ipairs(inner) do dims[#dims + 1] = dim end
    weights[i] = g:parameter(part[1], dims, #part[2], "matrix")
    if with_bias then biases[i] = g:parameter(part[1] .. "_bias", part[2], #part[2], "bias") end
    out[i] = part[2]
  end
  return g:linear(x, weights, biases, out, inner)
end

--- An RMS norm inside module `m`; over (.., heads, c) each head is normalized apart, with one gain.
local function norm_of(m, name, x, eps)
  local options = { eps = eps, name = name }
  return apply(setmetatable({ kind = "rms_norm", options = options, site = m.site }, Module), x)
end

function build.attention(g, m, x)
  local o = m.options
  local dim = width(x)
  local head_dim = o.head_dim or dim.size // o.heads
  if not o.head_dim and dim.size % o.heads ~= 0 then
    error(string.format("%s: nn.attention: heads %d do not divide dim %d; set head_dim", m.site,
      o.heads, dim.size), 0)
  end
  local heads = g:define("heads", o.heads, "tp")
  local kv_heads = g:define("kv_heads", o.kv_heads or o.heads, "tp")
  kv_heads.replicated = true -- more tp ranks than heads: whole ranks share one
  local channels = g:define("head_dim", head_dim)
  local q, k, v = parts(g, x, { dim },
    { { "q", { heads, channels } }, { "k", { kv_heads, channels } },
      { "v", { kv_heads, channels } } }, o.bias)
  if o.qk_norm then
    local eps = o.qk_norm.eps
    q, k = norm_of(m, "q_norm", q, eps), norm_of(m, "k_norm", k, eps)
  end
  local rope = o.rope
  if rope ~= false then
    if type(rope) ~= "table" then rope = { base = 10000 } end
    q = g:node("rope", { q }, { { q.dims, q.dtype } }, rope)
    k = g:node("rope", { k }, { { k.dims, k.dtype } }, rope)
  end
  local y = g:node("attention", { q, k, v }, { { q.dims, q.dtype }, { { q.dims[1], heads },
    "f32" } },
    { window = o.window or 0, scale = o.scale })
  g:named("mixed", y)
  return parts(g, y, { heads, channels }, { { "o", { dim } } }, o.bias)
end

--- The first channels of each head, and those that follow: one value for each dim.
local function split(g, x, ...)
  local outputs = {}
  for i, dim in ipairs { ... } do
    local dims = outer(x)
    dims[#dims + 1] = dim
    outputs[i] = { dims, x.dtype }
  end
  return g:node("split_heads", { x }, outputs, { parts = #outputs })
end

--- Queries, and what keys and values are made of: { latent | rope } of a token.
local function latents(g, m, x, heads, query, latent)
  local o, dim = m.options, width(x)
  if not o.q_rank then
    return parts(g, x, { dim }, { { "q", { heads, query } } }),
      parts(g, x, { dim }, { { "kv_a", { latent } } })
  end
  local rank = g:define("q_rank", o.q_rank)
  local q, kv = parts(g, x, { dim }, { { "q_a", { rank } }, { "kv_a", { latent } } })
  return parts(g, norm_of(m, "q_norm", q, o.eps), { rank }, { { "q_b", { heads, query } } }), kv
end

--- Latent attention: keys and values of all heads come from one narrow latent of the token, beside
--- one turned part of the key that every head shares.
function build.mla(g, m, x)
  local o, dim = m.options, width(x)
  local v_size = o.v_dim or o.nope_dim
  local heads = g:define("heads", o.heads, "tp")
  local still, turned = g:define("nope_dim", o.nope_dim), g:define("rope_dim", o.rope_dim)
  local query, v_dim = g:define("head_dim", o.nope_dim + o.rope_dim), g:define("v_dim", v_size)
  local rank = g:define("kv_rank", o.kv_rank)
  local q, kv = latents(g, m, x, heads, query, g:define("kv_a", o.kv_rank + o.rope_dim))
  local rope = type(o.rope) == "table" and o.rope or { base = 10000, interleaved = true }
  local function turn(part) return g:node("rope", { part }, { { part.dims, part.dtype } }, rope) end
  local function join(a, b)
    return g:node("join_heads", { a, b }, { { { x.dims[1], heads, query }, a.dtype } },
      { parts = 2 })
  end
  local latent, key = split(g, kv, rank, turned)
  local both = parts(g, norm_of(m, "kv_norm", latent, o.eps), { rank },
    { { "kv_b", { heads, g:define("kv_b", o.nope_dim + v_size) } } })
  local k, v = split(g, both, still, v_dim)
  local q_still, q_turned = split(g, q, still, turned)
  local y = g:node("attention", { join(q_still, turn(q_turned)), join(k, turn(key)), v },
    { { v.dims, v.dtype }, { { x.dims[1], heads }, "f32" } },
    { window = 0, scale = 1 / math.sqrt(query.size) * yarn.softness(rope.scaling) })
  g:named("mixed", y)
  return parts(g, y, { heads, v_dim }, { { "o", { dim } } })
end

function build.swiglu(g, m, x)
  local dim, hidden = width(x), g:define("hidden", m.options.hidden, "tp")
  local gate, up = parts(g, x, { dim }, { { "gate", { hidden } }, { "up", { hidden } } },
    m.options.bias)
  local y = g:node("swiglu", { gate, up }, { { up.dims, up.dtype } })
  return parts(g, y, { hidden }, { { "down", { dim } } }, m.options.bias)
end

function build.gelu(g, m, x)
  local dim, hidden = width(x), g:define("hidden", m.options.hidden, "tp")
  local up = parts(g, x, { dim }, { { "up", { hidden } } }, m.options.bias)
  return parts(g, g:gelu(up), { hidden }, { { "down", { dim } } }, m.options.bias)
end

function build.linear(g, m, x)
  local out = m.options.out == width(x).size and width(x) or g:width(m.options.out)
    or g:define("out", m.options.out)
  return parts(g, x, { width(x) }, { { "weight", { out } } }, m.options.bias)
end

function build.dropout(g, m, x)
  if m.options.rate == 0 then return x end
  return g:node("dropout", { x }, { { x.dims, x.dtype } }, { rate = m.options.rate, key = g:path()
    .. ".dropout" })
end

--- Weights of all experts for one part: (hidden, dim) or (dim, hidden) each.
local function expert_weights(g, count, part, dims, inputs)
  for e = 0, count - 1 do
    inputs[#inputs + 1] = g:parameter(("experts.%d.%s"):format(e, part), dims, 1, "expert")
  end
end

--- The frozen table of a router by hash: (vocab, top_k) f32, experts as numbers.
local function choices_table(g, o)
  local dims = { g:define("router_ids", g.vocab), g:define("slots", o.top_k) }
  local init = choices.of(o.router.seed, g:path(), o.experts, o.top_k)
  local value = g:parameter("choices", dims, #dims, "state", { init = init })
  value.weight.updated = value.weight.updated or "frozen" -- nothing may update it
  return value
end

function build.moe(g, m, x)
  local o, dim = m.options, width(x)
  local every = g:define("experts", o.experts)
  local hidden = g:define("expert_hidden", o.hidden) -- whole on its owner: it is never cut over tp
  local router = g:parameter("router", { every, dim }, 1, "matrix")
  local logits = g:linear(x, { router }, nil, { { every } }, { dim }, "f32")
  g:named("logits", logits)
  local inputs = { x, logits }
  local bias = o.balance.name == "bias" and g:state("bias", "experts")
  expert_weights(g, o.experts, "gate", { hidden, dim }, inputs)
  expert_weights(g, o.experts, "up", { hidden, dim }, inputs)
  expert_weights(g, o.experts, "down", { dim, hidden }, inputs)
  if o.shared > 0 then
    g:enter "shared"
    inputs[#inputs + 1] = build.swiglu(g, { options = { hidden = o.shared * o.hidden } }, x)
    g:leave()
  end
  if bias then inputs[#inputs + 1] = bias end
  if o.router.name == "hash" then
    inputs[#inputs + 1], inputs[#inputs + 2] = g.ids, choices_table(g, o)
  end
  local y = g:node("moe", inputs, { { x.dims, x.dtype } }, {
    experts = o.experts, top_k = o.top_k, hidden = o.hidden, router = o.router,
    balance = { name = o.balance.name, weight = o.balance.weight }, shared = o.shared > 0,
    first_weight = inputs[3].weight.name,
  })
  if bias then
    local few = g:node("load_sign", {}, { { { every }, "f32" } }, { experts = o.experts })
    g:update(bias, bias + few * o.balance.speed)
  end
  return y
end

return nn
