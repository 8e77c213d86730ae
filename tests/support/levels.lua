--- levels.lua - prints a hash of the outputs of every case of every operator; run once for each
--- TL_SIMD.
package.path = "tests/?.lua;tests/?/init.lua;" .. package.path
local core = require "tidelock.core"
local operators = require "support.operators"
local promises = require "support.promises"

local by_op = operators.cases()
for _, row in ipairs(core.ops()) do
  for _, case in ipairs(by_op[row.name] or {}) do
    for _, dtype in ipairs(case.dtypes or { "f32", "bf16" }) do
      print(case.op, case.name, dtype, promises.hash(case, dtype))
    end
  end
end
