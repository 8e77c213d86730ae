--- Small models for the tests of planner and driver: recipes that train in milliseconds.
---
---     local small = models.recipe { heads = 8, kv_heads = 2, ["layout.tp"] = 4 }
---     models.trace(small)      -- "3f8a.. 3e10.. | .. | weights .. | state .."
---
--- Options are those of models.defaults and dotted keys of the recipe; tokens are written out, from
--- the fill F, so that no file is needed.
local driver = require "tidelock.run.driver"
local planner = require "tidelock.plan"
local support = require "support"
local tl = require "tidelock"

local nn = tl.nn
local models = {}

models.defaults = {
  vocab = 61, dim = 32, layers = 2, heads = 4, kv_heads = 2, hidden = 48, length = 16,
  samples = 8, micro = 2, leaves = { tp = 4, dp = 8 }, seed = 3,
}

--- Token ids of sample `index`: neighbours are related, so that there is something to learn.
function models.tokens(index, length, vocab)
  local list, id = {}, 0
  for i = 0, length - 1 do
    local x = support.fill_value(index + 1, i)
    id = (i == 0 or x > -0.4) and math.floor((x + 1) * 0.5 * vocab) or (id * 7 + 3) % vocab
    list[i + 1] = id
  end
  return list
end

--- Borders of documents of 1 to 7 tokens, an empty one now and then.
local function documents(index, length)
  local borders, at = { 0 }, 0
  while at < length do
    local x = support.fill_value(1000 + index, at)
    at = math.min(length, at + 1 + math.floor((x + 1) * 3.5))
    borders[#borders + 1] = at
    if x > 0.8 and #borders < length - 1 then borders[#borders + 1] = at end
  end
  return borders
end

--- Data of `count` samples; o.documents: each sample holds many short documents.
function models.data(o, count)
  local list = {}
  for i = 1, count do
    list[i] = { tokens = models.tokens(i, o.length, o.vocab) }
    if o.documents then list[i].cu_seqlens = documents(i, o.length) end
  end
  return tl.data.given(list)
end

--- The layer of most tests; `o` may change every part of it.
local function layer_of(o)
  return function()
    local norm = o.layer_norm and nn.layer_norm or nn.rms_norm
    local attention = {
      heads = o.heads, kv_heads = o.kv_heads, window = o.window, bias = o.bias, rope = o.rope,
      head_dim = o.head_dim, qk_norm = o.qk_norm,
    }
    local ffn = o.gelu and nn.gelu { hidden = o.hidden, bias = o.bias, name = o.ffn_name }
      or nn.swiglu { hidden = o.hidden, bias = o.bias, name = o.ffn_name }
    return {
      nn.residual { norm {}, nn.attention(attention), dropout = o.dropout },
      nn.residual { norm {}, ffn, dropout = o.dropout },
    }
  end
end

--- fn(...) on a stack of its own. Every node looks for its recipe line down the stack, and that of
--- a test runner is deep: this makes a plan three times as quick.
local function shallow(fn, ...)
  local thread = coroutine.create(fn)
  local results = table.pack(coroutine.resume(thread, ...))
  if not results[1] then error(results[2], 0) end
  return table.unpack(results, 2, results.n)
end

---@param options? table # models.defaults, fields of nn.decoder, and "section.key" of the recipe
local function recipe_of(options)
  local o, dotted = setmetatable({}, { __index = models.defaults }), {}
  for key, value in pairs(options or {}) do
    if key:find(".", 1, true) then dotted[key] = value else o[key] = value end
  end
  local recipe = tl.recipe {
    model = nn.decoder {
      vocab = o.vocab, dim = o.dim, layers = o.layers, layer = o.layer or layer_of(o),
      positions = o.positions, tied = o.tied, dropout = o.dropout, norm = o.norm,
    },
    dtype = o.dtype, weights = o.weights, loss = o.loss,
    data = o.data or models.data(o, o.samples * 3), eval = o.eval,
    batch = { samples = o.samples, micro = o.micro, length = o.length },
    policy = { o.policy or "layout", leaves = o.leaves or nil, seed = o.seed },
    train = { steps = 4, lr = 0.02, clip = o.clip or 0.5 },
    log = o.log,
  }
  if next(dotted) then recipe = recipe:with(dotted) end
  return recipe
end

function models.recipe(options) return shallow(recipe_of, options) end

--- The plan, up to the stage `last`.
function models.plan(options, last)
  return shallow(function() return planner(recipe_of(options), last) end)
end

--- A run of the recipe; close it.
function models.start(options, start)
  return shallow(function() return driver.start(recipe_of(options), start) end)
end

--- Every bit of `steps` steps (2 unless set): losses, gradient norms, weights, optimizer state.
function models.trace(options, start, steps)
  local run <close> = models.start(options, start)
  local line = {}
  for i = 1, steps or 2 do
    local s = run:step()
    line[i] = s.loss_bits .. " " .. s.grad_norm_bits
  end
  line[#line + 1] = "weights " .. run:weights_hash()
  line[#line + 1] = "state " .. run:optimizer_hash()
  return table.concat(line, " | ")
end

--- Options with more fields: the ones on the right win.
function models.with(...)
  local all = {}
  for _, options in ipairs { ... } do
    for key, value in pairs(options) do all[key] = value end
  end
  return all
end

--- All gradients of one step, by name.
function models.gradients(options)
  local run <close> = models.start(options, { keep = { "*.grad" } })
  local s = run:step()
  local list = {}
  for _, name in ipairs(require("tidelock.run.kept").names(run)) do list[name] = run:kept(name) end
  return list, s
end

return models
