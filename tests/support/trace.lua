--- The bits of a small model, from a process of its own: tests/support/trace.lua DTYPE.
package.path = "tests/?.lua;tests/?/init.lua;" .. package.path
local models = require "support.models"

print(models.trace { dtype = arg[1] })
