--- count_gpus.lua - prints how many GPUs can be used, and why there are none.
local core = require "tidelock.core"

local count, why = core.cuda_count()
io.write(count, " ", why or "", "\n")
