--- Broken recipes that carry their expected messages.
---
---     layout = { tp = 3 }, -- error: layout.tp: tp 3 does not divide heads 8
---                          --   (tests/errors/heads.lua:8); allowed: 1, 2, 4, 8; try tp = 4
---
--- A comment "error:" says what is wrong with its line, or, on a line of its own, with the code
--- line above; "--" and three blanks continue it. "-- ranks: 16" in the first lines is the world's
--- size.
local broken = {}

--- The text of a comment that opens a message, and of one that continues it.
local function comment_of(line)
  local first = line:match "%-%- error: (.*)$"
  if first then return first, nil end
  return nil, line:match "^%s*%-%-   +(.*)$"
end

--- What a file says about itself: expected messages "path:line: text" and the number of ranks.
function broken.read(path)
  local expected, ranks, number, code, open = {}, nil, 0, 0, false
  for line in io.lines(path) do
    number = number + 1
    if not line:find "^%s*%-%-" then code = number end
    ranks = ranks or tonumber(line:match "^%-%- ranks: (%d+)$")
    local first, more = comment_of(line)
    if first then
      expected[#expected + 1] = ("%s:%d: %s"):format(path, code, first)
    elseif more and open then
      expected[#expected] = expected[#expected] .. " " .. more
    end
    open = first ~= nil or more ~= nil and open
  end
  return expected, ranks
end

--- What loading the recipe and planning it, but for memory, says: the lines of the message, the
--- count left out.
function broken.run(path, ranks)
  local recipe = require "tidelock.language.recipe"
  local plan = require "tidelock.plan"
  local requests = require "tidelock.plan.requests"
  local good, message = pcall(requests.guarded, function()
    local options = { world = ranks }
    for _, point in ipairs(recipe.load(path):points()) do plan(point, "pipeline", options) end
  end)
  message = not good and type(message) == "table" and message.message or tostring(message)
  local lines = {}
  for line in (good and "" or message):gmatch "[^\n]+" do lines[#lines + 1] = line end
  local count = table.remove(lines)
  return lines, count
end

return broken
