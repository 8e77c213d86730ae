--- plan_file.lua - `./tl plan R --program FILE`: a planned run for programs in C without Lua.
---
---     the program of the one rank (runtime/program_file.h)  +  the numbers of every step
---
--- Data is not in it: whoever runs the program opens it (runtime/data.h), as examples/train.c does.
local core = require "tidelock.core"
local rates = require "tidelock.language.rates"
local states = require "tidelock.model.states"

local plan_file = {}

--- Bits of the numbers of every step, one after the other: learning rate, bias corrections, and
--- functions of the step. A step that is skipped is not foreseen.
---@param plan table
---@return integer[] bits
---@return integer width # numbers of a step
function plan_file.scalars(plan)
  local train, bits, width = plan.spec.train, core.json.array {}, 0
  local beta1, beta2 = core.f32(train.optimizer.beta1), core.f32(train.optimizer.beta2)
  local power1, power2 = 1, 1
  for step = 1, train.steps do
    power1, power2 = power1 * beta1, power2 * beta2
    local list = states.scalars(plan.graph, step, { rates.at(train.lr, step),
      core.f32(1 / (1 - power1)), core.f32(1 / (1 - power2)) })
    width = #list
    for _, value in ipairs(list) do
      bits[#bits + 1] = string.unpack("<I4", string.pack("<f", value))
    end
  end
  return bits, width
end

--- Writes the file.
---@param plan table # of one rank
---@param path string
function plan_file.write(plan, path)
  local spec = plan.spec
  if #plan.programs ~= 1 or spec.layout.tp * spec.layout.dp * spec.layout.pp ~= 1 then
    error({ status = 2, message = "tidelock: plan: --program: a file is of one rank; leave the "
      .. "layout out" }, 0)
  end
  local bits, width = plan_file.scalars(plan)
  local program <close> = core.program(plan.programs[1])
  program:save(path, core.json.encode {
    seed = spec.policy.seed, samples = spec.batch.samples, length = spec.batch.length,
    vocab = spec.model.vocab, scalar_count = width, scalars = bits,
  })
end

return plan_file
