--- pipeline.lua - the instructions of every pipeline rank, in program order.
---
---     chunk    a run of layers; chunk c lies on pipeline rank c mod pp
---     border   a value that a later chunk uses travels chunk by chunk; gradients travel back
---
--- The schedule decides the order of (phase, micro-batch, chunk); this stage expands each into its
--- nodes, with sends and receives at its edges, and ends the step with the sums, norm and update.
local after = require "tidelock.plan.after"
local experts = require "tidelock.plan.experts"
local finish = require "tidelock.plan.finish"
local lower = require "tidelock.plan.lower"
local names = require "tidelock.language.names"
local order = require "tidelock.plan.order"
local problems = require "tidelock.text.problems"
local schedules = require "tidelock.plan.schedules"
local weave = require "tidelock.plan.weave"

local pipeline = {}

-- chunks -----------------------------------------------------------------------------------------

--- Layers per chunk that make the costliest chunk cheapest, as even as that allows; earlier chunks
--- get more. `head_cost`: what the last chunk does besides, in layers.
---@param layers integer
---@param chunks integer
---@param head_cost number
---@return integer[]
function pipeline.balance(layers, chunks, head_cost)
  local limit, rooms, total = (layers + chunks - 1) // chunks - 1, {}, 0
  while total < layers do
    limit, total = limit + 1, 0
    for c = 1, chunks do
      rooms[c] = c < chunks and limit or math.max(1, math.floor(limit - head_cost + 1e-9))
      total = total + rooms[c]
    end
  end
  local counts, left, later = {}, layers, total
  for c = 1, chunks do
    later = later - rooms[c]
    local even = (left + chunks - c) // (chunks - c + 1)
    counts[c] = math.max(left - later, math.min(rooms[c], even))
    left = left - counts[c]
  end
  return counts
end

--- The chunk of each layer, of "embed" and of "head"; how many there are; layers of each.
function pipeline.chunk_table(plan)
  local layout, model = plan.spec.layout, plan.spec.model
  local chunks = layout.pp * schedules.virtual_stages(layout)
  local per_layer = 0
  for _, weight in ipairs(plan.graph.weights) do
    if weight.name:find "^layers%." then per_layer = per_layer + weight.rows * weight.cols end
  end
  per_layer = per_layer / model.layers
  local counts = layout.stages or pipeline.balance(model.layers, chunks,
    model.vocab * model.dim / math.max(1, per_layer))
  local of, layer = { embed = 0, head = chunks - 1 }, 0
  for c = 1, chunks do
    for _ = 1, counts[c] do
      layer = layer + 1
      of[layer] = c - 1
    end
  end
  return of, chunks, counts
end

-- borders ----------------------------------------------------------------------------------------

local function real(value)
  while value.alias do value = value.alias end
  return value
end

--- For each value that crosses chunks: the chunk that makes it and the farthest that uses it.
function pipeline.borders(nodes, chunk_of, backward)
  local made, uses = {}, {}
  for _, node in ipairs(nodes) do
    if not node.step then
      for _, y in ipairs(node.outputs) do
        if not y.alias and not y.after then made[y.id] = chunk_of[node.layer] end
      end
    end
  end
  local list = {}
  for _, node in ipairs(nodes) do
    for _, input in ipairs(node.inputs) do
      local x = real(input)
      local from, to = made[x.id], chunk_of[node.layer]
      if from and from ~= to then
        if not uses[x.id] then
          uses[x.id] = { value = x, from = from, to = to }
          list[#list + 1] = uses[x.id]
        end
        uses[x.id].to = backward and math.min(uses[x.id].to, to) or math.max(uses[x.id].to, to)
      end
    end
  end
  table.sort(list, function(a, b) return a.value.id < b.value.id end)
  return list
end

--- Receives and sends of a chunk in a micro-batch, as two functions that emit them. Each border has
--- a channel of its own: then an operation of the schedule is one message on any channel, which is
--- what two slots suffice for.
function pipeline.cross(self, list, chunk, env, backward)
  local step, kind = backward and -1 or 1, backward and 1 or 0
  local arriving, leaving = {}, {}
  for i, border in ipairs(list) do
    local from, to, at = border.from * step, border.to * step, chunk * step
    if at >= from and at <= to then
      local entry = { value = border.value, channel = 4 * (i - 1) + kind }
      if at > from then arriving[#arriving + 1] = entry end
      if at < to then leaving[#leaving + 1] = entry end
    end
  end
  local phase = backward and "backward" or "forward"
  local site = self.plan.spec.model.site
  local o = { site = site, micro = env.micro, phase = phase, path = "pipeline" }
  local function move(op, entries, peer)
    for _, entry in ipairs(entries) do
      local v = self:at(entry.value, env)
      local attrs = { group = "pp", peer = peer, channel = entry.channel }
      if op == "send" then self:emit("send", { v }, {}, attrs, o)
      else self:emit("recv", {}, { v }, attrs, o) end
    end
  end
  local pp = self.pp
  return function() move("recv", arriving, (chunk - step) % pp) end,
    function() move("send", leaving, (chunk + step) % pp) end
end

-- phases -----------------------------------------------------------------------------------------

local function load(self, env, source)
  if env.loaded then return end
  env.loaded = true
  local l = self.l
  self:emit("load_micro", {}, { self:at(l.ids, env), self:at(l.targets, env), self:at(l.cu, env) },
    { first = env.micro * l.samples, samples = l.samples, length = l.length, source = source },
    { site = self.spec.data.site or self.spec.model.site, micro = env.micro, phase = "forward",
      path = "data" })
end

--- Adds what a node does to items of weave.lua. A reduce is two of them: its message, and what is
--- made of the sum.
local function add_node(self, items, node, phase, is_loss)
  local function add(op, run) items[#items + 1] = { op = op, run = run, is_loss = is_loss } end
  if node.op ~= "reduce" then
    return add(node.op, function(env) self:node(node, env, phase) end)
  end
  add("reduce", function(env) env.arrives = self:begin_reduce(node, env, phase) end)
  add("cast", function(env) env.arrives() end)
end

--- The nodes of each chunk, forward and backward, and those of the loss: sorted once, since every
--- pass of every micro-batch asks for its own.
local function sort_nodes(plan, chunk_of, chunks)
  local forward_nodes, backward_nodes, loss_nodes = {}, {}, {}
  for chunk = 0, chunks - 1 do forward_nodes[chunk], backward_nodes[chunk] = {}, {} end
  for _, node in ipairs(plan["local"].nodes) do
    if not node.step then table.insert(forward_nodes[chunk_of[node.layer]], node) end
  end
  for _, node in ipairs(plan.backward.nodes) do
    table.insert(node.phase == "loss" and loss_nodes or backward_nodes[chunk_of[node.layer]], node)
  end
  return forward_nodes, backward_nodes, loss_nodes
end

--- What a forward pass of a chunk does.
local function forward_items(self, shared, chunk, loss_use)
  local items = {}
  for _, node in ipairs(shared.forward_nodes[chunk]) do
    add_node(self, items, node, "forward")
  end
  if chunk < shared.chunks - 1 then return items end
  for _, node in ipairs(shared.loss_nodes) do add_node(self, items, node, "loss", true) end
  items[#items + 1] = { op = "loss", is_loss = true,
    run = function(env) self:accumulate(loss_use, env, "loss") end }
  return items
end

local function forward(self, shared, env, chunk, source, loss_use)
  local receive, send = pipeline.cross(self, shared.forward_borders, chunk, env, false)
  local items, sent = forward_items(self, shared, chunk, loss_use), false
  load(self, env, source)
  receive()
  for _, item in ipairs(items) do
    if item.is_loss and not sent then send() end
    sent = sent or item.is_loss
    item.run(env)
  end
  if not sent then send() end
end

--- Nothing learns from the gradient of this value.
local function frozen(value)
  if value.param then return value.param.fields.frozen end
  for _, param in ipairs(value.stack and value.stack.params or {}) do
    if not param.fields.frozen then return false end
  end
  return value.stack ~= nil
end

--- What a backward pass of a chunk does, or only its phase `want`, as items of weave.lua.
local function backward_items(self, shared, chunk, want)
  local items = {}
  for _, node in ipairs(shared.backward_nodes[chunk]) do
    if want == "backward" or node.phase == want then
      if not node.use then
        add_node(self, items, node, "backward")
      elseif not frozen(node.use.value) then
        items[#items + 1] = { op = node.use.op or "use", aside = true,
          run = function(env) self:accumulate(node.use, env, "backward") end }
      end
    end
  end
  return items
end

local function backward(self, shared, env, chunk, want)
  local receive, send = pipeline.cross(self, shared.backward_borders, chunk, env, true)
  if want ~= "weight" then receive() end
  for _, item in ipairs(backward_items(self, shared, chunk, want)) do item.run(env) end
  if want ~= "weight" then send() end
end

--- The same pass of two micro-batches at once, where nothing comes from other chunks.
local function together(self, shared, envs, item)
  local chunk = item.chunk or 0
  if item.phase == "backward" then
    return weave.run(self, backward_items(self, shared, chunk, "backward"), envs)
  end
  for _, env in ipairs(envs) do load(self, env, 0) end
  weave.run(self, forward_items(self, shared, chunk, self.b.loss_use), envs)
end

--- Values made of weights and states alone, at the start of a step.
local function prologue(self)
  self.step_env = { micro = 0 }
  for _, node in ipairs(self.l.nodes) do
    if node.step and not node.after and self.chunk_of[node.layer] % self.pp == self.rank then
      self:node(node, self.step_env, "prologue")
    end
  end
end

local function train(self, shared)
  prologue(self)
  finish.count(self, self.samples, 0)
  local envs, passes, done = {}, shared.orders[self.rank + 1], 0
  local function env_of(item)
    envs[item.micro] = envs[item.micro] or { micro = item.micro }
    return envs[item.micro]
  end
  for i, item in ipairs(passes) do
    local chunk = (item.chunk or 0) * self.pp + self.rank
    if i > done and weave.fits(self, item, passes[i + 1]) then
      together(self, shared, { env_of(item), env_of(passes[i + 1]) }, item)
      done = i + 1
    elseif i > done and item.phase == "forward" then
      forward(self, shared, env_of(item), chunk, 0, self.b.loss_use)
    elseif i > done then
      backward(self, shared, env_of(item), chunk, item.phase)
    end
  end
  finish.step(self, shared)
end

local function evaluate(self, shared)
  local eval = self.spec.eval
  if not eval then return end
  self.evaluating = true -- no dropout, and nothing is kept
  local use = {}
  for key, value in pairs(self.b.loss_use) do use[key] = value end
  use.samples = eval.samples // self.dp
  prologue(self)
  finish.count(self, use.samples, 1)
  local micros = use.samples // self.l.samples
  for micro = 0, micros - 1 do
    local env = { micro = micro }
    for chunk = self.rank, shared.chunks - 1, self.pp do forward(self, shared, env, chunk, 1,
      use) end
  end
  finish.loss(self, use)
  self.evaluating = false
end

local function run_rank(plan, shared, rank, ep)
  local self = lower.new(plan, rank, ep, shared)
  local body = function() train(self, shared) end
  finish.weights(self, shared) -- gives weights the first places of the arena
  lower.section(self, "step", body)
  lower.section(self, "eval", function() evaluate(self, shared) end)
  lower.section(self, "init", function() finish.init(self, shared) end)
  order.run(self, shared.found)
  return self
end

--- Patterns of values to keep: the caller's and those of log.watch.
local function keep_of(plan)
  local list = {}
  for _, pattern in ipairs(plan.keep) do list[#list + 1] = names.matcher(pattern) end
  for _, watch in ipairs(plan.spec.log.watch or {}) do
    list[#list + 1] = names.matcher(watch:match "^(.*):%w+$" or watch)
  end
  return list
end

--- Which pipeline ranks hold a weight, in order of use.
local function holders(plan, chunk_of, pp)
  local held, found, readers = {}, problems.new(), after.readers(plan, chunk_of, pp)
  for _, param in ipairs(plan["local"].params) do
    local value = param.expert and param.expert.stack.value or param.value
    local uses, ranks, seen = plan.backward.uses[value.id] or {}, {}, {}
    for _, use in ipairs(uses) do
      local rank = chunk_of[use.layer] % pp
      if not seen[rank] then
        seen[rank] = true
        ranks[#ranks + 1] = rank
      end
    end
    for _, rank in ipairs(readers[param.name] or {}) do
      if not seen[rank] then
        seen[rank] = true
        ranks[#ranks + 1] = rank
      end
    end
    if #uses == 0 and param.weight.kind ~= "state" then
      found:add(param.weight.site, param.name,
        "no loss reaches this weight; use it or leave it out")
    end
    held[param.name] = { ranks = ranks, on = seen }
  end
  found:raise()
  return held
end

--- The order of operations of every pipeline rank; what is wrong with a schedule is raised at once.
local function orders_of(spec, micros)
  local layout = spec.layout
  local orders, found = schedules.build(layout.schedule, {
    pp = layout.pp, micros = micros,
    virtual_stages = schedules.virtual_stages(layout),
  })
  if orders then return orders end
  local collected = problems.new()
  for _, text in ipairs(found) do
    collected:add(spec.site "layout.schedule", "layout.schedule", text)
  end
  collected:raise()
end

--- A value made of weights alone is made where it is used: once a step, on one pipeline rank. Those
--- made after the tokens travel.
function pipeline.step_borders(plan, chunk_of)
  local pp, found = plan.spec.layout.pp, problems.new()
  for _, node in ipairs(plan["local"].nodes) do
    for _, input in ipairs(node.inputs) do
      local maker = input.region == "step" and not input.after and input.node
      if maker and chunk_of[maker.layer] % pp ~= chunk_of[node.layer] % pp then
        found:add(node.site, "layout.pp", string.format("%s uses a value made of weights alone at "
          .. "%s, on another pipeline stage; make it in the layer that uses it", node.op,
          maker.site))
      end
    end
  end
  found:raise()
end

function pipeline.run(plan)
  local layout = plan.spec.layout
  local chunk_of, chunks, counts = pipeline.chunk_table(plan)
  local micros = plan.spec.batch.samples // layout.dp // plan.spec.batch.micro
  local forward_nodes, backward_nodes, loss_nodes = sort_nodes(plan, chunk_of, chunks)
  local shared = {
    forward_nodes = forward_nodes, backward_nodes = backward_nodes, loss_nodes = loss_nodes,
    chunks = chunks, chunk_of = chunk_of, keep = keep_of(plan), holders = holders(plan, chunk_of,
      layout.pp),
    forward_borders = pipeline.borders(plan["local"].nodes, chunk_of, false),
    backward_borders = pipeline.borders(plan.backward.nodes, chunk_of, true),
    orders = orders_of(plan.spec, micros), routes = after.routes(plan, chunk_of, layout.pp),
    found = {},
  }
  pipeline.step_borders(plan, chunk_of)
  local ranks = {}
  for rank = 0, layout.pp - 1 do
    for ep = 0, experts.grid(layout).ep - 1 do
      ranks[#ranks + 1] = run_rank(plan, shared, rank, ep)
    end
  end
  return { ranks = ranks, stages = counts, micros = micros, orders = shared.orders }
end

return pipeline
