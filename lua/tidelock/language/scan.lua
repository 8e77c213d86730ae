--- The lines of a table constructor's fields.
--
-- Lua forgets where a field of a table was written. This scanner reads the text of a recipe again
-- and finds out, so that an error can name the line of `tp` and not only that of `tl.recipe {`:
--
--     7  return tl.recipe {            find(tokens, 7, "recipe") gives
--     8    layout = { tp = 2,          { line = 7, fields = { layout = { line = 8, fields = {
--     9               dp = 4 },            tp = { line = 8 }, dp = { line = 9 } } } } }
--    10  }
--
-- It knows just enough Lua: strings, comments, brackets, and where a function body ends. A field
-- whose value is made elsewhere (`layout = wide`) has a line and no fields of its own.
local scan = {}

local openers = {
  ["("] = true, ["["] = true, ["{"] = true, ["function"] = true, ["if"] = true, ["do"] = true,
}
openers["repeat"] = true
local closers = { [")"] = true, ["]"] = true, ["}"] = true, ["end"] = true, ["until"] = true }

--- Where a long bracket that opens at `at` ends, or nil when there is none.
local function long_bracket(text, at)
  local level = text:match("^%[(=*)%[", at)
  if not level then return nil end
  local _, last = text:find("]" .. level .. "]", at, true)
  return last or #text
end

--- The token that starts at `at`: kind ("space", "name", "string", "number", "symbol"), last byte.
local function token_at(text, at)
  local last = select(2, text:find("^%s+", at))
  if last then return "space", last end
  if text:find("^%-%-", at) then
    return "space", long_bracket(text, at + 2) or select(2, text:find("^[^\n]*", at))
  end
  last = select(2, text:find("^[%a_][%w_]*", at))
  if last then return "name", last end
  last = select(2, text:find("^%.?%d[%w_.]*", at))
  if last then return "number", last end
  local quote = text:match("^[\"']", at)
  if quote then
    last = at + 1
    while last < #text and text:sub(last, last) ~= quote do
      last = last + (text:sub(last, last) == "\\" and 2 or 1)
    end
    return "string", last
  end
  last = long_bracket(text, at)
  if last then return "string", last end
  return "symbol", select(2, text:find("^[=~<>][=]", at)) or at
end

--- The tokens of a Lua text, without comments: { kind, text, line }; a string's text has no quotes.
function scan.tokens(text)
  local tokens, at, line = {}, 1, 1
  while at <= #text do
    local kind, last = token_at(text, at)
    local piece = text:sub(at, last)
    if kind == "string" then
      tokens[#tokens + 1] = {
        kind = kind, text = piece:match("^[\"'](.*)[\"']$") or piece, line = line,
      }
    elseif kind ~= "space" then
      tokens[#tokens + 1] = { kind = kind, text = piece, line = line }
    end
    line = line + select(2, piece:gsub("\n", ""))
    at = last + 1
  end
  return tokens
end

local function is(token, text)
  return token ~= nil and token.kind ~= "string" and token.text == text
end

local table_at

--- Skips one expression from `at` on and takes over the fields of the first table in it.
local function value_at(tokens, at)
  local node, depth = { line = tokens[at] and tokens[at].line }, 0
  while tokens[at] do
    local token = tokens[at]
    local plain = token.kind ~= "string"
    if depth == 0 and plain and (
      token.text == "," or token.text == ";" or token.text == "}"
    ) then break end
    if depth == 0 and is(token, "{") and not node.fields then
      local inner
      inner, at = table_at(tokens, at)
      node.fields = inner.fields
    else
      if plain and openers[token.text] then depth = depth + 1 end
      if plain and closers[token.text] then depth = depth - 1 end
      at = at + 1
    end
  end
  return node, at
end

--- The key that is written at `at`, or nil for a positional entry, and where its value begins.
local function key_at(tokens, at)
  local first, second = tokens[at], tokens[at + 1]
  if first.kind == "name" and is(second, "=") then return first.text, at + 2 end
  if is(first, "[") and second and is(tokens[at + 2], "]") and is(tokens[at + 3], "=") then
    return second.kind == "number" and tonumber(second.text) or second.text, at + 4
  end
  return nil, at
end

--- The table constructor that opens at `at` as { line, fields }, and the token behind it.
function table_at(tokens, at)
  local node, count = { line = tokens[at].line, fields = {} }, 0
  at = at + 1
  while tokens[at] and not is(tokens[at], "}") do
    local line = tokens[at].line
    local key, value = key_at(tokens, at)
    if key == nil then
      count = count + 1
      key = count
    end
    local child, after = value_at(tokens, value)
    child.line = line
    node.fields[key] = child
    at = after
    if is(tokens[at], ",") or is(tokens[at], ";") then at = at + 1 end
  end
  return node, at + 1
end

--- The constructor that the first call of `name` at or after `line` is given: `name {`, `name({`,
--- or, with `key`, `name("key", {`. Nil when the call is not written like that.
function scan.find(tokens, line, name, key)
  for at, token in ipairs(tokens) do
    if token.line >= line and token.kind == "name" and token.text == name then
      local open = at + 1
      if is(tokens[open], "(") then open = open + 1 end
      if key then
        local word = tokens[open]
        local matches = word and word.kind == "string" and word.text == key
        open = matches and is(tokens[open + 1], ",") and open + 2 or nil
      end
      if open and is(tokens[open], "{") then return (table_at(tokens, open)) end
    end
  end
  return nil
end

return scan
