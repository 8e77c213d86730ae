--- after.lua - what a step does once all its tokens are summed: sums, what is made of them, states.
---
---     forward of each micro-batch     accumulators of g.sum(x), like those of a bias' gradient
---     after.values                    tree over leaves and ranks; then nodes of finished sums,
---                                     each on the pipeline rank of its layer, sent on to ranks
---                                     that use it
---     gradient norm, weights          as without states
---     after.set                       every state = its value, unless the step is skipped
---
--- Weights and states that these nodes read are those before the step: nothing is set until all
--- values are there. Ranks of one pipeline stage hold the same sums, so each sets its own copy or
--- shard of a state, and copies stay equal. An operator that keeps something of its own (a router's
--- bias) needs no more than this: a weight of kind "state", a node "sum" and a node "update".
local lower = require "tidelock.plan.lower"

local after = {}

local function insert(list, rank)
  for _, other in ipairs(list) do
    if other == rank then return end
  end
  list[#list + 1] = rank
end

--- Pipeline ranks that read or set a weight beside its gradients: name -> { rank, .. }, in order of
--- use. States have no others.
function after.readers(plan, chunk_of, pp)
  local readers = {}
  local function add(param, node)
    readers[param.name] = readers[param.name] or {}
    insert(readers[param.name], chunk_of[node.layer] % pp)
  end
  for _, node in ipairs(plan["local"].nodes) do
    if node.op == "update" then add(node.param, node) end
    for _, input in ipairs(node.inputs) do
      if input.param and (node.after or input.fixed) then add(input.param, node) end
    end
  end
  return readers
end

--- Pipeline ranks that need a value made after the tokens: id -> { rank, .. }.
function after.routes(plan, chunk_of, pp)
  local routes = {}
  for _, node in ipairs(plan["local"].nodes) do
    for _, input in ipairs(node.after and node.inputs or {}) do
      routes[input.id] = routes[input.id] or {}
      insert(routes[input.id], chunk_of[node.layer] % pp)
    end
  end
  return routes
end

local function place(node, phase) return { site = node.site, phase = phase, path = node.path } end

--- Gives the other ranks that use a value a copy of it.
local function pass_on(self, shared, node, value, owner)
  for _, peer in ipairs(shared.routes[value.id] or {}) do
    local attrs = { group = "pp", peer = peer, channel = 2 }
    if peer ~= owner and owner == self.rank then
      self:emit("send", { self:at(value, self.step_env) }, {}, attrs, place(node, "finish"))
    elseif peer ~= owner and peer == self.rank then
      attrs.peer = owner
      self:emit("recv", {}, { self:at(value, self.step_env) }, attrs, place(node, "finish"))
    end
  end
end

--- The finished sum of a node "sum" becomes its value.
local function finish_sum(self, node)
  local y = node.outputs[1]
  self:emit("cast", { self:finish(node.use) }, { self:at(y, self.step_env) }, {},
    place(node, "finish"))
end

--- Means of extra losses are read by their names after the step.
local function keep_terms(self)
  for _, term in ipairs(self.l.terms) do
    if self.chunk_of[term.value.node.layer] % self.pp == self.rank then
      self.step_env[term.value.id] = self:lasting("term " .. term.name, "f32", { 1 }, "state")
    end
  end
end

--- The new value of a state on every pipeline rank that holds it; nil on the others.
local function new_value(self, shared, node, owner)
  local o, input, param = place(node, "finish"), node.inputs[1], node.param
  local shape = lower.shape_of(param.value)
  if owner ~= self.rank then
    if not shared.holders[param.name].on[self.rank] then return nil end
    local v = self:make("f32", shape, "state", "value of " .. param.name)
    self:emit("recv", {}, { v }, { group = "pp", peer = owner, channel = 2 }, o)
    return v
  end
  local v = self:at(input, self.step_env)
  if input.param then -- a copy: nobody may see a weight or a state that is set already
    local copy = self:make("f32", shape, "state", "value of " .. param.name)
    self:emit("cast", { v }, { copy }, {}, o)
    v = copy
  end
  for _, peer in ipairs(shared.holders[param.name].ranks) do
    local attrs = { group = "pp", peer = peer, channel = 2 }
    if peer ~= owner then self:emit("send", { v }, {}, attrs, o) end
  end
  return v
end

--- Values made of the sums of a step. Returns { node, value } of each state to set on this rank.
function after.values(self, shared)
  local updates = {}
  keep_terms(self)
  for _, node in ipairs(self.l.nodes) do
    local owner = self.chunk_of[node.layer] % self.pp
    if node.op == "update" then
      local value = new_value(self, shared, node, owner)
      if value then updates[#updates + 1] = { node = node, value = value } end
    elseif node.op == "sum" or node.after then
      if owner == self.rank and node.op == "sum" then finish_sum(self, node)
      elseif owner == self.rank then self:node(node, self.step_env, "finish") end
      for _, output in ipairs(node.outputs) do pass_on(self, shared, node, output, owner) end
    end
  end
  return updates
end

--- Sets the states; control (2) says whether the step is skipped.
function after.set(self, updates, control)
  for _, update in ipairs(updates) do
    local param, node = update.node.param, update.node
    self:emit("set_state", { update.value, control }, { self:weight(param) }, {},
      place(node, "update"))
    self:keep(param.name, self:weight(param), { param = param })
  end
end

return after
