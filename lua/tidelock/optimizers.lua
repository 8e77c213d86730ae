--- Optimizers: the numbers of a step that the host makes for the kernels.
--
-- Which optimizers there are, and their options, stands in fields.lua. AdamW reads three scalars a
-- step: the learning rate and the two bias corrections 1 / (1 - beta^t), t from 1. beta^t is made
-- by squaring in f64 (numbers.power), so it does not depend on where a run was resumed; each scalar
-- is rounded once to f32.
local numbers = require "tidelock.numbers"

local optimizers = {}

--- How many scalars a step needs for each optimizer.
optimizers.scalars_count = { adamw = 3 }

--- The scalars of step `step` (from 1): { lr, 1 / (1 - beta1^step), 1 / (1 - beta2^step) } in f32.
function optimizers.scalars(optimizer, lr, step)
  return {
    numbers.f32(lr),
    numbers.f32(1.0 / (1.0 - numbers.power(optimizer.beta1, step))),
    numbers.f32(1.0 / (1.0 - numbers.power(optimizer.beta2, step))),
  }
end

return optimizers
