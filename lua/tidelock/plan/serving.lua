--- serving.lua - from a recipe to a program that computes rows of requests: check, expand and shard
--- as in training, then a lowering of its own.
---
---     feed      ids, positions, requests, next, draws: i32, a row each
---     controls  temperature and top_p of each row: f32
---     table     pages of each request: i32, written when one begins
---                  |
---     serve0    1 row     follow, embedding, .., cache_write, attention_cached, .., logits,
---     serve1    4 rows    sample, row_max, row_sum_exp, cross_entropy
---     ..        serve.rows
---                  |
---     ids       the token of each row      nll   its negative log-probability, a loss like others
---
--- A token that a step has just chosen need not have been read by the host: it is fed as the row
--- that chose it, which `follow` looks up among the ids of the step before.
---
--- A section has a fixed number of rows; rows that are none have request -1. All sections share the
--- weights and the pages. No sum runs over rows, so a row's bits are those of the training forward
--- pass at its position, whatever stands beside it.
---
---     pp      layers lie on the ranks of a pipeline, one run each; rows pass through, and the last
---             rank chooses the tokens
---     tp      as in training; experts are whole on every rank, which computes all rows
local arena = require "tidelock.plan.stages.place"
local emit = require "tidelock.plan.stages.emit"
local lower = require "tidelock.plan.lower"
local overrides = require "tidelock.language.overrides"
local panels = require "tidelock.plan.panels"
local pipeline = require "tidelock.plan.stages.pipeline"
local planner = require "tidelock.plan"
local problems = require "tidelock.text.problems"
local serving_sizes = require "tidelock.plan.serving_sizes"
local shard = require "tidelock.plan.stages.shard"

local serving = {}

local row_classes = { 1, 4, 8, 16, 32, 64, 128, 256, 512 }
local choosers, short_first = 256, 10 -- rows that choose in a short section; number of the first

--- Numbers of rows that have a section, ascending; `rows` is the last.
function serving.classes(rows)
  local list = {}
  for _, count in ipairs(row_classes) do
    if count < rows then list[#list + 1] = count end
  end
  list[#list + 1] = rows
  return list
end

--- Axes of the recipe's training layout are left out; those that are asked for now are refused.
local function check_axes(spec)
  local found = problems.new()
  for _, axis in ipairs { "dp", "cp", "ep" } do
    local path = "layout." .. axis
    if spec.layout[axis] > 1 and spec.site(path) == overrides.place then
      found:add(overrides.place, path, ("%s %d: generation is cut over tp and pp alone")
        :format(axis, spec.layout[axis]))
    end
  end
  found:raise()
end

--- The recipe with one sample a step and no axes but tp and pp. Its leaves stay what they are.
local function alone(recipe)
  local spec = planner(recipe, "check", { serving = true }).spec
  local policy, layout = spec.policy, spec.layout
  check_axes(spec)
  return recipe:with {
    layout = { tp = layout.tp, pp = layout.pp, sequence_parallel = false,
      stages = layout.virtual_stages == 1 and layout.stages or nil },
    ["batch.samples"] = 1, ["batch.micro"] = 1,
    policy = { policy.name, seed = policy.seed, arithmetic = policy.arithmetic, leaves = {
      tp = policy.leaves.tp, dp = policy.leaves.dp, cp = policy.leaves.cp,
    } },
  }
end

-- what has to be computed ------------------------------------------------------------------------

--- The local value of the logits, and the nodes that lead to it.
local function needed(plan, l)
  local logits, wanted = nil, {}
  for _, value in ipairs(l.values) do
    if value.global == plan.logits then logits = value end
  end
  local function visit(value)
    local node = value.node
    if node and not wanted[node] then
      wanted[node] = true
      for _, input in ipairs(node.inputs) do visit(input) end
      if node.bias then visit(node.bias) end
    end
    if value.alias then visit(value.alias) end
  end
  visit(logits)
  return logits, wanted
end

-- lowering ---------------------------------------------------------------------------------------

local function padded(count) return (count + 15) // 16 * 16 end

--- Parts of the feed of `rows` rows: { name, first, shape }, in elements; and its size. `chosen`:
--- how many of them choose, in a short section.
local function feed_parts(rows, chosen)
  local list, at = {}, 0
  local function add(name, shape)
    list[#list + 1] = { name = name, first = at, shape = shape }
    at = at + padded(shape[1] * (shape[2] or 1))
  end
  for _, name in ipairs { "ids", "positions", "requests" } do add(name, { rows }) end
  if chosen then add("chosen", { chosen }) end
  add("next", { chosen or rows })
  add("draws", { chosen or rows, 6 })
  return list, at
end

local Serve = {}

--- Pages by request, and a view of each request's own.
function Serve:open_table()
  local sizes, persistent = self.sizes, self.lower.persistent
  local width = sizes.pages_row
  local whole = self.lower:lasting("table", "i32", { sizes.requests, width }, "data", "table")
  for slot = 0, sizes.requests - 1 do
    local key = "table " .. slot
    persistent[key] = persistent[key] or { buffer = whole.buffer, dtype = "i32",
      shape = { width }, offset = slot * width * 4 }
  end
  return whole
end

--- Views of the feed for this section; they start where the buffer starts.
function Serve:open_feed(rows, chosen)
  local largest = self.sizes.rows
  local _, most = feed_parts(largest)
  if largest > choosers then
    local _, short = feed_parts(largest, choosers)
    most = math.max(most, short)
  end
  local lists = self.lower:lasting("feed", "i32", { most }, "data", "feed")
  local floats = self.lower:lasting("controls", "f32", { largest, 2 }, "data", "controls")
  local parts, size = feed_parts(rows, chosen)
  local persistent, buffer = self.lower.persistent, lists.buffer
  local count = chosen or rows
  persistent["feed " .. rows .. (chosen and " short" or "")] = { buffer = buffer, dtype = "i32",
    shape = { size } }
  persistent["controls " .. count] = persistent["controls " .. count]
    or { buffer = floats.buffer, dtype = "f32", shape = { count, 2 } }
  local feed = { controls = persistent["controls " .. count] }
  for _, part in ipairs(parts) do
    feed[part.name] = { buffer = buffer, dtype = "i32", shape = part.shape,
      offset = part.first * 4 }
  end
  feed.table = self:open_table()
  return feed
end

--- A view of the first `rows` rows of a tensor that all sections share, read by its name.
function Serve:shared(name, dtype, rows, width)
  local largest = self.sizes.rows
  local whole = self.lower:lasting(name, dtype, { largest, width }, "state", name)
  local key = name .. " " .. rows
  local view = self.lower.persistent[key] or { buffer = whole.buffer, dtype = dtype,
    shape = width and { rows, width } or { rows } }
  self.lower.persistent[key] = view
  return view
end

--- Tokens of the rows. Only the last rank of a pipeline has the ids of the step before.
function Serve:follow(rows)
  if self.plan.spec.layout.pp > 1 then return self.feed.ids end
  local low = self.lower
  self:shared("ids", "i32", rows)
  local tokens = self:shared("tokens", "i32", rows)
  low:emit("follow", { self.feed.ids, low.persistent.ids }, { tokens }, {},
    { site = self.plan.spec.model.site, micro = 0, phase = "forward", path = "follow" })
  return tokens
end

local special = {}

function special.position_ids(self, node, env)
  env[node.outputs[1].id] = self.feed.positions
end

--- Nothing is dropped outside training.
function special.dropout(self, node, env)
  env[node.outputs[1].id] = self.lower:at(node.inputs[1], env)
end

--- The table of a whole context, not of the rows of a step.
local function rope_table(self, node)
  local low = self.lower
  low.l = setmetatable({ length = self.sizes.context }, { __index = self.l })
  local view = low:rope_table(node)
  low.l = self.l
  return view
end

function special.rope(self, node, env, o)
  local low, x = self.lower, node.inputs[1]
  local shape = { self.rows, x.cols // node.head_dim, node.head_dim }
  low:emit("rope_rows", { lower.reshaped(low:at(x, env), shape), self.feed.positions,
    rope_table(self, node) }, { lower.reshaped(low:at(node.outputs[1], env), shape) },
    { inverse = 0, interleaved = node.attrs.interleaved and 1 or 0 }, o)
end

function special.attention(self, node, env, o)
  local low, sizes, feed, a = self.lower, self.sizes, self.feed, node.attrs
  local q, k, v = low:at(node.inputs[1], env), low:at(node.inputs[2], env),
    low:at(node.inputs[3], env)
  self.attentions = self.attentions + 1
  local keys = low:lasting("keys " .. self.attentions, k.dtype,
    { sizes.pages, node.kv_heads, node.width, sizes.page }, "cache", node.path .. ".keys")
  local values = low:lasting("values " .. self.attentions, v.dtype,
    { sizes.pages, sizes.page, node.kv_heads, node.v_width }, "cache", node.path .. ".values")
  local where_to = { feed.requests, feed.positions, feed.table }
  local function rows(view, heads, width)
    return lower.reshaped(view, { self.rows, heads, width })
  end
  low:emit("cache_write", { rows(k, node.kv_heads, node.width), rows(v, node.kv_heads,
    node.v_width), table.unpack(where_to) }, { keys, values }, {}, o)
  low:emit("attention_cached", { rows(q, node.heads, node.width), keys, values,
    table.unpack(where_to) }, { rows(low:at(node.outputs[1], env), node.heads, node.v_width) },
    { window = a.window, kv_block = a.kv_block, split = a.split, scale = a.scale }, o)
end

--- Operators that look at segments or targets have no form for rows of requests.
local function refuse_packed(l, node)
  for _, input in ipairs(node.inputs) do
    if input == l.cu or input == l.targets then
      error(("%s: %s works on whole samples and has no form for single rows of requests: this "
        .. "model can be trained, not served"):format(node.site, node.op), 0)
    end
  end
end

--- Whole rows of logits, for every rank and for who reads them.
function Serve:rows_of_logits(logits)
  return self:shared("logits", "f32", self.rows, logits.cols * self.lower.l.t)
end

--- Logits that are whole rows of f32 are made where those are kept.
function Serve:place_logits(logits, env)
  if self.lower.l.t > 1 or logits.dtype ~= "f32" or logits.alias then return end
  env[logits.id] = self:rows_of_logits(logits)
end

--- Tokens and their log-probabilities from the logits, whole rows on every rank.
function Serve:choose(logits, env)
  local low, l, rows, feed = self.lower, self.lower.l, self.rows, self.feed
  local o = { site = logits.node.site, micro = 0, phase = "sample", path = "sample" }
  local vocab = self.plan.spec.model.vocab
  local z = self:rows_of_logits(logits)
  if l.t > 1 then
    low:emit("all_gather", { low:at(logits, env) }, { z }, { group = "tp", outer = rows }, o)
  elseif low:at(logits, env) ~= z then
    low:emit("cast", { low:at(logits, env) }, { z }, {}, o)
  end
  local ids, nll = self:shared("ids", "i32", rows), self:shared("nll", "f32", rows)
  local function stat(name) return low:make("f32", { rows }, "activations", name) end
  local m, sum, zt, zsum = stat "m", stat "s", stat "zt", stat "zsum"
  low:emit("sample", { z, feed.next, feed.controls, feed.draws }, { ids }, { columns = vocab }, o)
  low:emit("row_max", { z }, { m }, { columns = vocab }, o)
  low:emit("row_sum_exp", { z, m, ids }, { sum, zt, zsum }, { columns = vocab, first = 0,
    leaves = l.n }, o)
  low:emit("cross_entropy", { m, sum, zt, zsum, ids }, { nll }, { vocab = vocab, smoothing = 0,
    z = 0 }, o)
end

--- What rows of requests come to, for a section of `rows` rows: sharded, and what leads to logits.
local function rows_of(plan, rows)
  local spec = setmetatable({ batch = { samples = 1, micro = 1, length = rows } },
    { __index = plan.spec })
  local l = shard.run { spec = spec, graph = plan.graph, fields = plan.fields,
    loss = plan.loss }["local"]
  local logits, wanted = needed(plan, l)
  local nodes, carried = {}, {}
  for _, node in ipairs(l.nodes) do
    if wanted[node] then
      if not special[node.op] then refuse_packed(l, node) end
      nodes[#nodes + 1] = node
      if node.op ~= "position_ids" then carried[#carried + 1] = node end -- fed to every rank
    end
  end
  return { l = l, rows = rows, logits = logits, nodes = nodes,
    borders = pipeline.borders(carried, plan.chunk_of, false) }
end

--- Stands in for Lower.weight.
local function weight_view(low, param)
  if not low.in_panels[param.name] then return lower.Lower.weight(low, param) end
  local rows, columns = param.value.rows, param.value.cols
  return low:lasting("weight " .. param.name, "f32", { (rows + 63) // 64, columns, 64 }, "weights",
    param.name)
end

--- Of the rows of `made`, those that choose: its logits are computed as those of a section that has
--- no other rows.
function Serve:choose_some(made, some, env)
  local low, x = self.lower, made.logits.node.inputs[1]
  local rows, node = low:at(x, env), some.logits.node
  low.l, self.l, self.rows = some.l, some.l, some.rows
  local own = { micro = 0 }
  self:place_logits(some.logits, own)
  low:emit("pick_rows", { rows, self.feed.chosen }, { low:at(node.inputs[1], own) }, {},
    { site = node.site, micro = 0, phase = "forward", path = node.path })
  low:node(node, own, "forward")
  self:choose(some.logits, own)
end

--- The section of `made.rows` rows on this rank of the pipeline: what arrives, its layers, what
--- leaves. `some`: a short one, in which as many rows choose as `some` has.
function Serve:section(index, made, some)
  local plan, low, l = self.plan, self.lower, made.l
  low.l, self.l, self.rows, self.attentions = l, l, made.rows, 0
  self.feed = self:open_feed(made.rows, some and some.rows)
  local env, stage = { micro = 0 }, low.rank
  if not some and stage == plan.chunk_of.head then self:place_logits(made.logits, env) end
  low.step_env = { micro = 0 }
  lower.section(low, "serve" .. index, function()
    env[l.ids.id] = self:follow(made.rows)
    local receive, send = pipeline.cross(low, made.borders, stage, env, false)
    receive()
    for _, node in ipairs(made.nodes) do
      local o = { site = node.site, micro = 0, phase = "forward", path = node.path }
      local here = plan.chunk_of[node.layer] == stage
      here = here and not (some and node == made.logits.node)
      if special[node.op] and (here or node.op == "position_ids") then
        special[node.op](self, node, env, o)
      elseif here then
        low:node(node, env, "forward")
      end
    end
    send()
    if stage == plan.chunk_of.head then
      if some then
        self:choose_some(made, some, env)
      else
        self:choose(made.logits, env)
      end
    end
  end)
end
Serve.__index = Serve

--- Tables of angles, and pages that no poison or rest of an earlier run shines through.
function Serve:init()
  local low = self.lower
  local o = { site = self.plan.spec.model.site, micro = 0, phase = "init", path = "cache" }
  for _, entry in ipairs(low.tables) do
    low:emit("rope_table", {}, { entry.view }, entry.attrs, o)
  end
  for n = 1, self.attentions do
    for _, kind in ipairs { "keys ", "values " } do
      low:emit("fill", {}, { low.persistent[kind .. n] }, { value = 0 }, o)
    end
  end
end

--- Weights come from outside, as the feed does.
local function mark_persistent(plan)
  for stage, low in ipairs(plan.ranks) do
    local list = {}
    for key, view in pairs(low.persistent) do
      local outside = key:find "^weight " or key:find "^feed " or key:find "^controls "
        or key:find "^table" or key == "ids"
      if outside and view.tensor then list[#list + 1] = view.tensor end
    end
    table.sort(list)
    for tp = 1, plan.spec.layout.tp do
      plan.programs[(stage - 1) * plan.spec.layout.tp + tp].persistent = list
    end
  end
end

--- Few rows pass through the model in one kernel, whose blocks of threads run apart for as long as
--- no place is used twice (kernels/fused/pass.h): what a value lies on is not used again soon after
--- its last reader. Values of few rows are small.
---
--- Of some more, q, k and v are one kernel with rope and the pages (kernels/fused/fused.h).
local rows_apart, instructions_apart, rows_fused, instructions_fused = 8, 96, 256, 3
local function keep_apart(low, made, first_buffer)
  if made.rows > rows_fused then return end
  local apart = made.rows > rows_apart and instructions_fused or instructions_apart
  for i = first_buffer, #low.buffers do
    local buffer = low.buffers[i]
    if buffer.last and not buffer.persistent then buffer.last = buffer.last + apart end
  end
end

--- The instructions of one rank of the pipeline, and its `params`: weights that it needs.
local function lower_stage(plan, stage, sections)
  local low = lower.new(plan, stage, 0, { chunk_of = plan.chunk_of, keep = {} })
  low.evaluating, low.params = true, {}
  low.in_panels, low.weight = panels.find(plan, sections[1].nodes), weight_view
  local self = setmetatable({ plan = plan, lower = low, sizes = plan.sizes }, Serve)
  for i, made in ipairs(sections) do
    local first_buffer = #low.buffers + 1
    self:section(i - 1, made)
    keep_apart(low, made, first_buffer)
  end
  for _, short in ipairs(plan.shorts) do
    self:section(short.index, sections[short.class], sections[short.some])
  end
  lower.section(low, "init", function() self:init() end)
  for _, param in ipairs(self.l.params) do
    local stack = param.expert and param.expert.stack -- experts lie side by side in one tensor
    if stack and low.persistent["weight stack " .. stack.name] then low:weight(param) end
    if low.persistent["weight " .. param.name] then low.params[#low.params + 1] = param end
  end
  for key, view in pairs(low.persistent) do -- a rank that reads no controls has none
    if not view.buffer.first then low.persistent[key] = nil end
  end
  return low
end

--- Sections for many rows of which few choose, as in prompts: after the layers, only those go on.
--- Where logits are made by something else than one product there are none.
local function find_shorts(sections)
  local list, some = {}, nil
  for class, made in ipairs(sections) do
    if made.rows == choosers then some = class end
    if made.rows > choosers and some and made.logits.node.op == "linear" then
      list[#list + 1] = { index = short_first + #list, class = class, some = some }
    end
  end
  return list
end

---@class tidelock.ServingPlan
---@field spec table
---@field sizes { context: integer, page: integer, pages: integer, pages_each: integer,
---  pages_row: integer, rows: integer, requests: integer }
---@field classes integer[] # rows of the sections serve0, serve1, ..
---@field shorts { index: integer, class: integer }[] # sections of many rows, `choosers` of which
---  choose, and whose rows they are
---@field choosers integer
---@field programs table[] # by rank of the pipeline, then tp rank
---@field ranks table[] # of the pipeline: { persistent = tensors by key, params = its weights }

--- Plans serving of a recipe. Nothing is opened or run.
---@param recipe tidelock.Recipe
---@return tidelock.ServingPlan
function serving.plan(recipe)
  local plan = { recipe = alone(recipe), keep = {} }
  for key, value in pairs(planner(plan.recipe, "expand", { serving = true })) do
    plan[key] = value
  end
  for _, value in ipairs(plan.graph.names) do
    if value.name == "logits" then plan.logits = value end
  end
  plan.sizes = serving_sizes(plan.spec)
  plan.classes = serving.classes(plan.sizes.rows)
  plan.chunk_of = pipeline.chunk_table(plan)
  local sections = {}
  for i, rows in ipairs(plan.classes) do sections[i] = rows_of(plan, rows) end
  plan["local"] = sections[#sections].l
  plan.shorts, plan.choosers = find_shorts(sections), choosers
  pipeline.step_borders(plan, plan.chunk_of)
  plan.ranks = {}
  for stage = 0, plan.spec.layout.pp - 1 do
    plan.ranks[stage + 1] = lower_stage(plan, stage, sections)
  end
  plan.places = arena.run(plan).places
  plan.programs = emit.run(plan).programs
  mark_persistent(plan)
  return plan
end

return serving
