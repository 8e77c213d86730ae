--- Recipes written by a spec: a file with the given text, and the recipe or plan that it gives.
---
---     local path = written.file(written.recipe { extra = "layout = { tp = 2 }," })
local written = {}

local known = {}

--- A new file with `text`, its path. Files are removed by written.clean().
function written.file(text)
  local path = os.tmpname() .. ".lua"
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
  known[#known + 1] = path
  return path
end

function written.clean()
  for _, path in ipairs(known) do
    os.remove(path)
    os.remove((path:gsub("%.lua$", "")))
  end
  known = {}
end

--- The text of a small recipe. options: head (before the layer), dim, layers, extra (fields), tail.
function written.recipe(options)
  options = options or {}
  return ([[
local tl = require "tidelock"
local nn = tl.nn
%s
local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 96 } },
  }
end
return tl.recipe {
  model = nn.decoder { vocab = 256, dim = %s, layers = %s, layer = layer },
  data  = tl.data.text { "README.md" },
  batch = { samples = 8, micro = 2, length = 32 },
  train = { steps = 10, lr = 1e-3 },
  %s
}%s
]]):format(options.head or "", options.dim or 64, options.layers or 4, options.extra or "",
    options.tail or "")
end

--- The recipe of a text, with overrides.
function written.load(text, words)
  return require("tidelock.language.recipe").load(written.file(text), words)
end

--- plan.spec of a recipe, or nil and the message.
function written.spec(recipe, world)
  local good, result = pcall(require "tidelock.plan", recipe, "check", { world = world })
  if good then return result.spec end
  return nil, tostring(result)
end

return written
