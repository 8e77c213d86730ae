--- names.lua - the one pattern language for weights and values: `*` is any run of characters.
local names = {}

--- A function that tells whether a name matches `pattern` whole.
---@param pattern string
---@return fun(name: string): boolean
function names.matcher(pattern)
  local lua = "^" .. pattern:gsub("[%^%$%(%)%%%.%[%]%+%-%?]", "%%%0"):gsub("%*", ".*") .. "$"
  return function(name) return name:find(lua) ~= nil end
end

--- The names of `list` that match, in the order of the list.
---@param pattern string
---@param list string[]
---@return string[]
function names.select(pattern, list)
  local matches, found = names.matcher(pattern), {}
  for _, name in ipairs(list) do
    if matches(name) then found[#found + 1] = name end
  end
  return found
end

return names
