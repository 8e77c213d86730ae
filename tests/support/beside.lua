--- beside.lua - requests to a small model on a GPU beside the same ones on the host: what the
--- scripts of tests/gpu that generate share. Needs no Lua packages.
---
---     local device, gpus = beside.device(arg[1])          ends the program where there is no GPU
---     beside.outcomes(recipe, read, requests, options)    what each request gave, as text
---     beside.compare(name, expected, got)                 prints what differs
---     beside.finish()                                     the count, and the exit status
local core = require "tidelock.core"
local engine = require "tidelock.serve.engine"
local tl = require "tidelock"

local nn = tl.nn
local beside = { passed = 0, failed = 0 }

beside.vocab = 333

---@class beside.Shape
---@field dim integer
---@field heads integer
---@field kv_heads integer
---@field window? integer
---@field hidden? integer # features of gate and up, 192 where it is not said
---@field vocab? integer # beside.vocab where it is not said
---@field leaves? integer # of tp, 4 where it is not said

--- A recipe of three layers of that shape; `settings` are fields of it.
---@param shape beside.Shape
---@param dtype string
---@param settings table<string, any>
---@return tidelock.Recipe
function beside.recipe(shape, dtype, settings)
  local function layer()
    return {
      nn.residual { nn.rms_norm {}, nn.attention { heads = shape.heads, kv_heads = shape.kv_heads,
        window = shape.window } },
      nn.residual { nn.rms_norm {}, nn.swiglu { hidden = shape.hidden or 192 } },
    }
  end
  return tl.recipe({
    model  = nn.decoder { vocab = shape.vocab or beside.vocab, dim = shape.dim, layers = 3,
      layer = layer },
    dtype  = dtype,
    data   = tl.data.given { { tokens = { 0 } } },
    batch  = { samples = 1, length = 64 },
    policy = { "layout", leaves = { tp = shape.leaves or 4, dp = 1 } },
    train  = { steps = 1, lr = 0 },
  }):with(settings)
end

--- What each request gave, as text. `late`: steps between two requests.
---@param recipe tidelock.Recipe
---@param read fun(param: table, row: integer, col: integer): tidelock.Tensor
---@param given tidelock.Submission[]
---@param options tidelock.EngineOptions?
---@param late integer?
---@return string[]
function beside.outcomes(recipe, read, given, options, late)
  local e <close> = engine.open({ recipe = recipe, read = read }, options)
  local owner, text, next_one, steps = {}, {}, 1, 0
  for i = 1, #given do text[i] = {} end
  while next_one <= #given or not e:idle() do
    while next_one <= #given and steps >= (late or 0) * (next_one - 1) do
      owner[assert(e:submit(given[next_one]))] = next_one
      next_one = next_one + 1
    end
    for _, event in ipairs(e:step()) do
      table.insert(text[owner[event.id]], ("%d:%d %08x"):format(event.position, event.token,
        event.logprob_bits))
    end
    steps = steps + 1
  end
  for i, list in ipairs(text) do text[i] = table.concat(list, " ") end
  return text
end

--- Counts one comparison, and prints the requests that differ.
---@param name string
---@param expected string[] # by request, of the host
---@param got string[]
---@return boolean # whether all are equal
function beside.compare(name, expected, got)
  local same = #expected == #got
  for i = 1, math.max(#expected, #got) do
    local one, other = expected[i] or "nothing", got[i] or "nothing"
    if one ~= other then
      same = false
      print(("%s: request %d differs\n  host %s\n  here %s"):format(name, i, one:sub(1, 70),
        other:sub(1, 70)))
    end
  end
  beside.passed = beside.passed + (same and 1 or 0)
  beside.failed = beside.failed + (same and 0 or 1)
  return same
end

--- The device to compare with, "cuda" unless `wanted`, and how many GPUs there are. "host" checks
--- the script itself. Without a GPU the program ends here, and says why.
---@param wanted string?
---@return string device, integer gpus
function beside.device(wanted)
  local device = wanted or "cuda"
  local count, why = core.cuda_count()
  if device == "cuda" and count == 0 then
    print("skipped: " .. why)
    beside.finish()
  end
  return device, count
end

--- Prints the count and ends the program.
function beside.finish()
  print(("%d passed, %d failed"):format(beside.passed, beside.failed))
  os.exit(beside.failed == 0)
end

return beside
