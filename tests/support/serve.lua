--- serve.lua - a tiny trained model for the tests of generation, and what requests give on it.
---
---     local file <close> = serve.train { window = 5 }
---     serve.outcomes(file, { ["layout.tp"] = 2 }, requests, { chunk = 3 })
local core = require "tidelock.core"
local engine = require "tidelock.serve.engine"
local loader = require "tidelock.run.loader"
local models = require "support.models"
local support = require "support"

local serve = {}

local File = { __close = function(self) os.remove(self.path) end }
File.__index = File

--- Weights of a run, in a file of their own.
function serve.save(run, options)
  local list, path = {}, os.tmpname()
  for i, weight in ipairs(run:weights()) do
    list[i] = { name = weight.name, tensor = run:weight(weight.name) }
  end
  core.weights.write(path, list, {})
  return setmetatable({ path = path, options = options }, File)
end

--- A model after two steps.
function serve.train(options)
  local run <close> = models.start(options)
  run:step()
  run:step()
  return serve.save(run, options)
end

--- An engine on the weights of `file`; `more` are options of the recipe, `how` of the engine. On a
--- stack of its own, where plans are made in a third of the time.
function serve.open(file, more, how)
  local small = { ["serve.page"] = 4, ["serve.rows"] = 32, ["serve.requests"] = 3 }
  local recipe = models.recipe(models.with(file.options, small, more or {}))
  local good, result = coroutine.resume(coroutine.create(engine.open),
    { recipe = recipe, read = loader.file(file.path) }, how)
  if not good then error(result, 0) end
  return result
end

--- Requests of many kinds: long and short prompts, a prefix that some share, all controls.
function serve.requests(vocab)
  local list, prefix = {}, models.tokens(77, 9, vocab)
  for i = 1, 8 do
    local tokens = i % 2 == 0 and table.move(prefix, 1, 9, 1, {}) or {}
    for j = 1, i % 3 + (i % 2 == 0 and 0 or i) do tokens[#tokens + 1] = (i * 11 + j * 5) % vocab end
    list[i] = {
      tokens = tokens, max_tokens = 3 + i % 3, temperature = ({ 0, 0.8, 1.2, 1 })[i % 4 + 1],
      top_p = ({ 1, 0.9, 0.7 })[i % 3 + 1], top_k = i % 4 == 1 and 6 or 0, seed = i,
      request = i % 2,
      echo = i == 3 or i == 6 or nil,
    }
  end
  return list
end

--- Runs requests in the order `order` (all at once unless `late`: some steps apart); what each
--- gave: tokens and the bits of log-probabilities.
function serve.outcomes(file, more, requests, how, order, late)
  local e <close> = serve.open(file, more, how)
  local text, owner, next_one = {}, {}, 1
  for i = 1, #requests do text[i] = {} end
  order = order or {}
  local steps = 0
  while next_one <= #requests or not e:idle() do
    while next_one <= #requests and (not late or steps >= late * (next_one - 1)) do
      local index = order[next_one] or next_one
      owner[assert(e:submit(requests[index]))] = index
      next_one = next_one + 1
    end
    for _, event in ipairs(e:step()) do
      local list = text[owner[event.id]]
      list[#list + 1] = ("%d:%d %08x%s"):format(event.position, event.token, event.logprob_bits,
        event.finish and " " .. event.finish or "")
    end
    steps = steps + 1
  end
  for i, list in ipairs(text) do text[i] = table.concat(list, ", ") end
  return text, e:stats()
end

--- An order of 1 .. count that depends on `seed`.
function serve.order(count, seed)
  local order = {}
  for i = 1, count do order[i] = i end
  for i = count, 2, -1 do
    local j = math.floor((support.fill_value(seed, i) + 1) * 0.5 * i) + 1
    order[i], order[j] = order[j], order[i]
  end
  return order
end

return serve
