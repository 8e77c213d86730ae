--- yarn.lua - how loud a model speaks whose rotary waves are stretched by the rule "yarn".
--
--     ms(s, m) = 0.1 m ln s + 1 for s > 1, else 1
--
--     magnitude   cosines and sines are multiplied by it: attention_factor where it is given, else
--                 ms(factor, mscale) / ms(factor, mscale_all_dim) where both are, else
--                 ms(factor, 1)
--     softness    latent attention multiplies the scale of its softmax by ms(factor,
--                 mscale_all_dim)^2 where that is given
--
-- Made of numbers.log, so the bits are the same on every machine. 0 counts as not given.
local numbers = require "tidelock.language.numbers"

local yarn = {}

local function given(value) return value and value ~= 0 and value or nil end

function yarn.mscale(factor, m)
  if factor <= 1 then return 1.0 end
  return 0.1 * m * numbers.log(factor) + 1.0
end

---@param scaling table # a checked section scaling.yarn
---@return number
function yarn.magnitude(scaling)
  if given(scaling.attention_factor) then return scaling.attention_factor end
  local m, all = given(scaling.mscale), given(scaling.mscale_all_dim)
  if m and all then return yarn.mscale(scaling.factor, m) / yarn.mscale(scaling.factor, all) end
  return yarn.mscale(scaling.factor, 1)
end

---@param scaling? table # of rope; of any rule
---@return number
function yarn.softness(scaling)
  local all = scaling and scaling.name == "yarn" and given(scaling.mscale_all_dim)
  local m = all and yarn.mscale(scaling.factor, all) or 1.0
  return m * m
end

return yarn
