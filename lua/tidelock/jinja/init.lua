--- Renders the tree of a chat template (jinja/read.lua) as Jinja itself would.
---
---     local template = jinja.open(text)                    raises { template = "line 3: .." }
---     template { messages = { { role = "user", content = "Hi" } }, add_generation_prompt = true }
---
--- Texts are UTF-8 here and characters there: slices, lengths and indices count characters. What
--- Python would print in a way of its own (floats, lists, objects) is refused, not imitated.
local jinja_names = require "tidelock.jinja.names"
local jinja_read = require "tidelock.jinja.read"
local values = require "tidelock.jinja.values"

local jinja = {}

local fail, truth, text_of, get = values.fail, values.truth, values.text, values.get
local undefined, none = values.undefined, values.none
local is_list = values.is_list

local evaluate -- below

local function evaluate_all(list, scope)
  local results = { n = #list }
  for i, item in ipairs(list) do results[i] = evaluate(item, scope) end
  return results
end

--- The value of a name: of the innermost scope that has it.
local function find(scope, name)
  while scope do
    local value = scope.names[name]
    if value ~= nil then return value end
    scope = scope.outer
  end
  return undefined
end

local function named_of(list, scope)
  local named = {}
  for _, entry in ipairs(list or {}) do named[entry.name] = evaluate(entry.value, scope) end
  return named
end

local nodes = {}

function nodes.constant(node) return node.value end

function nodes.none() return none end

function nodes.variable(node, scope)
  local value = find(scope, node.name)
  if value == undefined and jinja_names.functions[node.name] then return jinja_names.callable end
  return value
end

function nodes.list(node, scope) return values.list(evaluate_all(node.items, scope)) end

function nodes.map(node, scope)
  local map = values.map()
  for i, key in ipairs(node.keys) do
    values.put(map, evaluate(key, scope), evaluate(node.values[i], scope))
  end
  return map
end

function nodes.attribute(node, scope) return get(evaluate(node.value, scope), node.key) end

function nodes.index(node, scope)
  return get(evaluate(node.value, scope), evaluate(node.key, scope))
end

function nodes.slice(node, scope)
  local function bound(part)
    local value = part and evaluate(part, scope)
    if value == none then return nil end
    if value and math.type(value) ~= "integer" then
      fail("a slice with a bound that is a %s, no whole number", values.kind(value))
    end
    return value
  end
  return values.slice(evaluate(node.value, scope), bound(node.first), bound(node.last),
    bound(node.step))
end

function nodes.sign(node, scope)
  local value = evaluate(node.value, scope)
  if type(value) ~= "number" then fail("%s of what is no number", node.sign) end
  return node.sign == "-" and -value or value
end

function nodes.operator(node, scope)
  return values.operate(node.operator, evaluate(node[1], scope), evaluate(node[2], scope))
end

function nodes.compare(node, scope)
  local left = evaluate(node.value, scope)
  for _, entry in ipairs(node.list) do
    local right = evaluate(entry[2], scope)
    if not values.compare(entry[1], left, right) then return false end
    left = right
  end
  return true
end

nodes["not"] = function(node, scope) return not truth(evaluate(node.value, scope)) end

nodes["and"] = function(node, scope)
  local left = evaluate(node[1], scope)
  if not truth(left) then return left end
  return evaluate(node[2], scope)
end

nodes["or"] = function(node, scope)
  local left = evaluate(node[1], scope)
  if truth(left) then return left end
  return evaluate(node[2], scope)
end

function nodes.choose(node, scope)
  if truth(evaluate(node.condition, scope)) then return evaluate(node[1], scope) end
  if node[2] then return evaluate(node[2], scope) end
  return undefined
end

function nodes.test(node, scope)
  return jinja_names.tests[node.name](evaluate(node.value, scope),
    table.unpack(evaluate_all(node.list, scope)))
end

function nodes.filter(node, scope)
  local arguments = evaluate_all(node.list, scope)
  return jinja_names.filters[node.name](evaluate(node.value, scope), arguments,
    named_of(node.named, scope))
end

function nodes.call(node, scope)
  return jinja_names.functions[node.name](evaluate_all(node.list, scope),
    named_of(node.named, scope))
end

function nodes.method(node, scope)
  local value = evaluate(node.value, scope)
  return jinja_names.method(value, node.name, evaluate_all(node.list, scope),
    named_of(node.named, scope))
end

evaluate = function(node, scope)
  values.spend(1)
  return nodes[node.kind](node, scope)
end

-- statements -------------------------------------------------------------------------------------

local run -- below

local statements = {}

function statements.text(node, _, out)
  values.spend(#node[1] // 64)
  out[#out + 1] = node[1]
end

function statements.print(node, scope, out)
  local text = text_of(evaluate(node.value, scope))
  values.spend(#text // 64)
  out[#out + 1] = text
end

function statements.group(node, scope, out) return run(node.body, scope, out) end

statements["if"] = function(node, scope, out)
  for _, entry in ipairs(node.list) do
    if truth(evaluate(entry[1], scope)) then return run(entry[2], scope, out) end
  end
  if node.other then return run(node.other, scope, out) end
end

function statements.set(node, scope)
  local value
  if node.value then
    value = evaluate(node.value, scope)
  else
    local inner = {}
    run(node.body, { names = {}, outer = scope }, inner)
    value = table.concat(inner)
  end
  if not node.field then
    scope.names[node.name] = value
    return
  end
  local space = find(scope, node.name)
  if not values.is_namespace(space) then
    fail("%s.%s is set, and %s is no namespace", node.name, node.field, node.name)
  end
  space.fields[node.field] = value
end

statements["break"] = function() return "break" end
statements["continue"] = function() return "continue" end

--- What `loop` is in the i-th of `items`.
local function loop_of(items, i)
  local map = values.map()
  local function put(name, value) values.put(map, name, value) end
  put("index", i)
  put("index0", i - 1)
  put("first", i == 1)
  put("last", i == #items)
  put("length", #items)
  put("revindex", #items - i + 1)
  put("revindex0", #items - i)
  put("previtem", items[i - 1] == nil and undefined or items[i - 1])
  put("nextitem", items[i + 1] == nil and undefined or items[i + 1])
  return map
end

--- A scope with the targets of a loop set to one item.
local function scope_of(node, scope, item)
  local names = {}
  if #node.targets == 1 then
    names[node.targets[1]] = item
  else
    if not is_list(item) or #item ~= #node.targets then
      fail("a loop over %d names, and an item that is not as many", #node.targets)
    end
    for i, name in ipairs(node.targets) do names[name] = item[i] end
  end
  return { names = names, outer = scope }
end

statements["for"] = function(node, scope, out)
  local items = {}
  for _, item in ipairs(values.items(evaluate(node.list, scope))) do
    if not node.condition or truth(evaluate(node.condition, scope_of(node, scope, item))) then
      items[#items + 1] = item
    end
  end
  for i, item in ipairs(items) do
    local inner = scope_of(node, scope, item)
    values.spend(10) -- of which `loop` has most
    inner.names.loop = loop_of(items, i)
    if run(node.body, inner, out) == "break" then break end
  end
  if #items == 0 and node.other then return run(node.other, scope, out) end
end

--- Runs nodes in order; "break" or "continue" where one of them says so.
run = function(body, scope, out)
  for _, node in ipairs(body) do
    values.spend(1)
    local signal = statements[node.kind](node, scope, out)
    if signal then return signal end
  end
end

--- The template as a function of its variables: plain Lua values, lists as JSON arrays.
---@param text string
---@return fun(variables: table): string # raises { template = message }
function jinja.open(text)
  local tree = jinja_read.tree(text, jinja_names)
  return function(variables)
    values.begin()
    local names, out = {}, {}
    for name, value in pairs(variables) do names[name] = values.from(value) end
    run(tree, { names = names }, out)
    return table.concat(out)
  end
end

return jinja
