--- `require "tidelock"`: what a recipe, a script or the REPL sees.
--
--     tl.recipe { .. }  tl.params { .. }  tl.load(path)     recipes
--     recipe:start { keep = { .. } }                        a run, for scripts
--     tl.nn  tl.data                                        modules and data
--     tl.memory(), tl.memory.span { .. }                    what is taken; GPUs as one range
--     tl.tensor  tl.equal  tl.call  tl.matmul ...           the C half, for scripts that run things
--
-- Parts are opened when first used, so that a recipe loads and plans without the C half.
local recipe = require "tidelock.language.recipe"
local sorted_keys = require "tidelock.text.sorted_keys"
local suggest = require "tidelock.text.suggest"
local where = require "tidelock.language.where"

local tidelock = { recipe = recipe.new, params = recipe.params, load = recipe.load_from }

--- What start takes, and what each is.
local start_options = { keep = "table", threads = "number", poison = "number", check = "boolean",
  resume = "string", forks = "table" }

--- Raises at the line that calls start, with all that is wrong with its options.
local function check_start(options)
  local names, known, wrong = {}, sorted_keys(start_options), {}
  for name in pairs(options) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for _, name in ipairs(names) do
    local kind, got = start_options[name], type(options[name])
    local near = suggest.nearest(name, known)
    if not kind then
      wrong[#wrong + 1] = ("no option %s; %sit takes %s"):format(name,
        near and ("did you mean %s? "):format(near) or "", table.concat(known, ", "))
    elseif got ~= kind then
      wrong[#wrong + 1] = ("%s: expected a %s, got a %s"):format(name, kind, got)
    end
  end
  if #wrong > 0 then error("start: " .. table.concat(wrong, "; "), 4) end
end

--- recipe:start { keep = { "layers.*.out" } }: the recipe on ranks of this process, ready for its
--- first step; `local run <close> = ...`. For scripts: a recipe that loads runs nothing.
---@param options? { keep?: string[], threads?: integer, poison?: integer, check?: boolean,
---  resume?: string, forks?: string[] }
---@return tidelock.Run
function recipe.methods.start(self, options)
  if where.context() then
    error((where.here() or "recipe") .. ": start: a recipe only describes; a script starts it", 0)
  end
  check_start(options or {})
  return require("tidelock.run.driver").start(self, options)
end

local parts = { nn = "tidelock.model.nn", data = "tidelock.language.data",
  memory = "tidelock.machine.memory" }

--- a (rows, n) times b (n, columns): for each element one chain over n, ascending, rounded once.
function tidelock.matmul(a, b)
  local core = require "tidelock.core"
  local outer, inner = a:shape(), b:shape()
  if #outer ~= 2 or #inner ~= 2 or outer[2] ~= inner[1] then
    error(("matmul: a is (%s), b is (%s); wanted (rows, n) and (n, columns)"):format(
      table.concat(outer, ", "), table.concat(inner, ", ")), 2)
  end
  local y = core.tensor(a:dtype(), { outer[1], inner[2] })
  core.call(
    "linear_grad_input", { a, b }, { y }, { parts = 1, leaves = 1, ranges = { 0, inner[1] } }
  )
  return y
end

--- "tidelock has no recip; did you mean recipe?"
local function missing(self, key)
  local names = {}
  for _, set in ipairs { self, parts, require "tidelock.core" } do
    for name in pairs(set) do names[#names + 1] = name end
  end
  local near = suggest.nearest(key, names)
  return ("tidelock has no %s%s"):format(key, near and ("; did you mean %s?"):format(near) or "")
end

return setmetatable(tidelock, {
  __index = function(self, key)
    local value
    if parts[key] then
      value = require(parts[key])
    else
      value = require("tidelock.core")[key]
      if value == nil then error(missing(self, tostring(key)), 2) end
    end
    rawset(self, key, value)
    return value
  end,
})
