-- layers.lua - what planning costs by the depth of a model: ./tl lua docs/layers.lua 64 128 256
-- Its table: docs/performance/processor.md. Seconds of one thread, of a whole plan.
local planner = require "tidelock.plan"
local tl = require "tidelock"
local nn = tl.nn

local function recipe(layers)
  return tl.recipe {
    model = nn.decoder { vocab = 256, dim = 128, layers = layers, layer = function()
      return {
        nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 4 } },
        nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 384 } },
      }
    end },
    data = tl.data.text { "LICENSE" },
    batch = { samples = 16, micro = 4, length = 256 },
    train = { steps = 10, lr = 1e-3 },
  }
end

print "| layers | instructions | seconds |\n| ---: | ---: | ---: |"
for _, word in ipairs(arg) do
  local begin, layers = os.clock(), assert(math.tointeger(tonumber(word)), "a number of layers")
  local plan = planner(recipe(layers))
  print(("| %d | %d | %.1f |"):format(layers, #plan.programs[1].instructions, os.clock() - begin))
end
