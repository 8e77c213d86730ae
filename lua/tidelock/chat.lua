--- chat.lua - the chat template of a model: from messages to the text of a prompt.
local chat = {}

---@param loaded tidelock.Model
---@return fun(messages: table, more: table): string?, string?
function chat.open(loaded)
  return function() return nil, loaded.path .. " has no chat template" end
end

return chat
