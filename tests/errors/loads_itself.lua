-- A recipe cannot load itself.
local tl = require "tidelock"

return tl.load "loads_itself.lua" -- error: tl.load: tests/errors/loads_itself.lua loads itself
