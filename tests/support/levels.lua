--- levels.lua - prints a hash of the outputs of every row-wise case; run once for each TL_SIMD.
package.path = "tests/?.lua;tests/?/init.lua;" .. package.path
local promises = require "support.promises"

local families = { "norm", "elementwise", "rope", "embedding", "loss", "reduce", "optimizer" }

for _, family in ipairs(families) do
  for _, case in ipairs(require("support." .. family .. "_cases").cases) do
    for _, dtype in ipairs(case.dtypes or { "f32", "bf16" }) do
      print(case.op, case.name, dtype, promises.hash(case, dtype))
    end
  end
end
