--- states.lua - what a graph keeps from step to step, and what it makes once all tokens are summed.
---
---     s = g.state("level", "dim")                    the value before the step, f32, no gradient
---     g.update(s, 0.9 * s + 0.1 * g.mean(x))         sets it after the step, once
---
---     token         (tokens, dim)       every micro-batch             x, s * x
---     step          (dim)               once, before the tokens       weights, s, 0.9 * s
---     after         (dim)               once, after the tokens        g.sum(x), what is made of it
---
--- `value.fixed`: no gradient goes through it (states, numbers, sums, and what is made of these
--- alone). `value.after`: there only when all tokens of the step are summed, so no token may meet
--- it: a state carries it into the next step. Sums run over every token of the global batch, in the
--- order of the gradient of a bias (accumulate.lua), so they hang on no layout; after.lua says what
--- ranks do with them.
local core = require "tidelock.core"
local numbers = require "tidelock.language.numbers"
local types = require "tidelock.language.types"
local where = require "tidelock.language.where"

local states = {}

--- Operators that take values made after the tokens of a step.
local elementwise = { unary = true, binary = true, scale = true, scale_step = true, cast = true,
  update = true, loss_finish = true }

--- Scalars of a step: learning rate, two bias corrections, then these.
states.first_scalar = 3
states.schedules_max = 256 - states.first_scalar

--- What messages call a weight of a graph.
function states.word(weight) return weight.kind == "state" and "state" or "weight" end

--- A graph is written while the model is expanded; its functions may not be called later.
function states.check_open(g, fail)
  if g.complete then
    fail(g, "the graph is complete: g is called inside the functions of the model and the loss "
      .. "only")
  end
end

local function has_tokens(dims) return dims[1] and dims[1].name == "tokens" end

--- { fixed, after } of the outputs of a node, or the error of inputs that cannot meet there.
function states.facts(g, op, inputs, outputs, fail)
  states.check_open(g, fail)
  local fixed, after = true, op == "sum" or op == "update" or op == "load_sign"
  for _, input in ipairs(inputs) do
    if input.graph ~= g then
      fail(g, ("%s of a value of another model, made at %s; a value, and a state, belongs to one "
        .. "model"):format(op, input.site))
    end
    fixed = fixed and input.fixed
    if input.after then
      after = true
      if not elementwise[op] then
        fail(g, ("%s of a sum over the tokens of the step (%s): it takes elementwise operators "
          .. "only"):format(op, input.site))
      end
    end
  end
  for _, output in ipairs(outputs) do
    if after and has_tokens(output[1]) then
      fail(g, op .. ": a sum over the tokens of the step is known after them, so none of them "
        .. "meets it: keep it by g.update(state, ..) and read the state")
    end
  end
  return { fixed = fixed or op == "sum" or nil, after = after or nil }
end

--- The dims that `text` names; none of them is tokens.
function states.dims(g, name, text, find_dim, fail)
  local list = {}
  for word in text:gmatch "%S+" do
    list[#list + 1] = find_dim(g, word)
    if word == "tokens" then
      fail(g, name .. ": tokens are no dim of what outlives a micro-batch; g.sum(x) sums over them")
    end
  end
  return list
end

--- What `fn` gives for each step of the run, under the limits of a recipe, one step at a time. What
--- runs inside leaves no trace in where.here.
local function tabulate(g, fn)
  local context, values = where.context(), {}
  local good, message = where.run(context, function()
    for step = 1, g.steps do
      context.lines, values[step] = 0, fn(step)
    end
  end)
  if not good then error(message, 0) end
  return values
end

--- What a function is, where its code and numbers alone say it: equal ones, such as those that
--- every layer makes anew, give equal numbers. nil where it reaches anything else.
local function identity_of(fn)
  local good, code = pcall(string.dump, fn, true)
  if not good then return nil end
  local words = { code }
  for i = 1, math.huge do
    local name, value = debug.getupvalue(fn, i)
    if not name then break end
    local kind = math.type(value) or type(value)
    if kind == "table" or kind == "function" or kind == "userdata" or kind == "thread" then
      return nil
    end
    words[#words + 1] = kind .. ("%q"):format(value)
  end
  return table.concat(words, "\0")
end

--- The place of a function's numbers in g.schedules.
local function schedule_of(g, fn, fail)
  local words, values = {}, tabulate(g, fn)
  for step = 1, g.steps do
    local value = values[step]
    if type(value) ~= "number" or value ~= value or math.abs(value) == math.huge then
      fail(g, ("the function gave %s for step %d; a number is wanted"):format(types.show(value),
        step))
    end
    values[step] = numbers.f32(value)
    if values[step] ~= values[step - 1] then words[#words + 1] = ("%d:%a"):format(step,
      values[step]) end
  end
  local id = core.hash(table.concat(words, ","))
  local index = g.schedules[id]
  if not index then
    index = #g.schedules + 1
    if index > states.schedules_max then
      fail(g, ("more than %d different functions of the step"):format(states.schedules_max))
    end
    g.schedules[index], g.schedules[id] = values, index
  end
  return { index = index, id = id }
end

--- x * fn: a number for each step, tabulated now. Equal tables share a scalar.
function states.scheduled(g, x, fn, fail)
  if not x.after then
    fail(g, "a function of the step multiplies what is made of g.sum alone, on its way to g.update")
  end
  local identity = identity_of(fn)
  local found = identity and g.tabulated[identity] or schedule_of(g, fn, fail)
  if identity then g.tabulated[identity] = found end
  return g:node("scale_step", { x }, { { x.dims, x.dtype } },
    { scalar = states.first_scalar + found.index - 1, name = found.id })
end

--- The scalars that follow the optimizer's in step `step` (from 1); past the last the last.
function states.scalars(g, step, list)
  for _, values in ipairs(g.schedules) do
    list[#list + 1] = values[math.min(step, #values)]
  end
  return list
end

--- What the log shows of an extra loss: its mean over the targets of the global batch.
function states.term(g, name, values, fail)
  for _, other in ipairs(g.terms) do
    if other.name == name then
      fail(g, ("add_loss: %s is already added at %s; give one of them another name"):format(name,
        other.site))
    end
  end
  local sum = g:node("sum", { g:cast(values, "f32") }, { { {}, "f32" } }, { targets = true })
  local mean = g:node("loss_finish", { sum }, { { {}, "f32" } })
  g.terms[#g.terms + 1] = { name = name, value = mean, site = mean.site }
end

--- Mistakes that show when the graph is complete; no function may add to it from here on.
function states.complete(g, found)
  g.complete = true
  for _, weight in ipairs(g.weights) do
    if weight.kind == "state" and not weight.updated then
      found:add(weight.site, weight.name,
        "nothing updates this state; g.update(state, value) does, or g.weight with frozen = true")
    end
  end
end

--- Adds state, sum, mean and update to the methods of graphs. tools: of graph.lua.
function states.extend(Graph, tools)
  local fail, dims_text = tools.fail, tools.dims_text

  --- A state of the dims that `dims` names ("" or nil: one number): the value before the step.
  --- `given`: init (0 unless set) and from.
  function Graph:state(name, dims, given)
    local list = states.dims(self, "state " .. name, dims or "", tools.find_dim, fail)
    return self:parameter(name, list, #list, "state", given)
  end

  --- The sum over all tokens of the global batch, f32, without the dim tokens.
  function Graph:sum(x, dim)
    if dim ~= nil and dim ~= "tokens" then
      fail(self, ("sum over %s: only tokens are summed, over the whole step; g.matmul sums over "
        .. "features"):format(dim))
    end
    if not has_tokens(x.dims) or x.input then
      fail(self, "sum: " .. dims_text(x) .. (x.input and " are ids" or " has no tokens"))
    end
    return (self:node("sum", { x }, { { { table.unpack(x.dims, 2) }, "f32" } }))
  end

  --- The sum over all tokens, times 1 / their number.
  function Graph:mean(x, dim)
    return self:sum(x, dim) * (1 / self.tokens)
  end

  --- Sets a state after the step, unless the step is skipped. Once for each state.
  function Graph:update(state, value)
    states.check_open(self, fail)
    local weight = state.weight
    if not weight or weight.kind ~= "state" then
      fail(self, ("update wants a state, made by g.state, as its operand 1; got %s"):format(
        weight and "the weight " .. weight.name or dims_text(state)))
    end
    local name = weight.name
    if weight.updated and state.graph == self then
      fail(self, ("the state %s is already updated at %s; a state is set once a step"):format(name,
        weight.updated))
    end
    if has_tokens(value.dims) then
      fail(self, ("update: the state %s is %s and the value %s; g.sum(x) or g.mean(x) sums over "
        .. "tokens"):format(name, dims_text(state), dims_text(value)))
    end
    if not tools.same_dims(state, value) then
      fail(self, ("update: the state %s is %s and the value %s"):format(name, dims_text(state),
        dims_text(value)))
    end
    self:node("update", { state, self:cast(value, "f32") }, {})
    weight.updated = where.here() or self.site or "a model that no recipe wrote"
  end
end

return states
