--- names.lua - the one pattern language for weights and values: `*` is any run of characters.
local names = {}

--- A function that tells whether a name matches `pattern` whole. What stands between two stars is
--- looked for once, from left to right, so the time grows with the name and not with the stars.
---@param pattern string
---@return fun(name: string): boolean
function names.matcher(pattern)
  local pieces = {}
  for piece in (pattern .. "*"):gmatch "([^*]*)%*" do pieces[#pieces + 1] = piece end
  local first, last = pieces[1], pieces[#pieces]
  if #pieces == 1 then return function(name) return name == pattern end end
  return function(name)
    local at, stop = #first + 1, #name - #last
    if stop < #first or name:sub(1, #first) ~= first or name:sub(stop + 1) ~= last then
      return false
    end
    for i = 2, #pieces - 1 do
      local from, to = name:find(pieces[i], at, true)
      if not from or to > stop then return false end
      at = to + 1
    end
    return true
  end
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
