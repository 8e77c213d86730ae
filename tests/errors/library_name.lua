-- What tidelock has not.
local tl = require "tidelock"

return tl.recip { model = 1 } -- error: tidelock has no recip; did you mean recipe?
