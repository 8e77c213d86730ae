--- function_pages.lua - `./tl help g.matmul`: what a recipe or a script calls, from the types that
--- editors read (meta/api.lua, meta/core.lua), so that there is one list of them.
---
---     --- Sums over the dims that both have.
---     ---@param a tidelock.Value                 g.matmul(a, b) -> Value
---     ---@return tidelock.Value           ->       Sums over the dims that both have.
---     function g.matmul(a, b) end
---
--- A topic may leave out tl., write a dot for a colon, or be the last word alone.
local core = require "tidelock.core"

local function_pages = {}

local width = 100
local few = 3 -- functions on a page that are shown with their arguments

--- What the files call a table, and what recipes and scripts call it.
local shown_as = {
  ["nn."] = "nn.", ["g."] = "g.", ["tl."] = "tl.", ["data."] = "tl.data.", ["core."] = "tl.",
  ["Recipe:"] = "recipe:", ["Run:"] = "run:", ["Source:"] = "source:", ["Tensor:"] = "t:",
  ["Lane:"] = "lane:", ["Group:"] = "group:",
}

---@class tidelock.FunctionPage
---@field name string # "run:step"
---@field arguments string
---@field doc string
---@field params { name: string, text: string }[]
---@field returns string[]

local function plain(text) return (text:gsub("tidelock%.", "")) end

--- Name and type of "x? tidelock.Value # what", with what is said of it.
local function param_of(text)
  local name, rest = text:match "^([%w_.]+%??)%s+(.*)$"
  return { name = name, text = (plain(rest):gsub(" # ", "; ")) }
end

--- Reads one line of comments into what stands above the next function.
local function read_comment(above, line)
  local kind, rest = line:match "^%-%-%-@(%a+) ?(.*)$"
  local last, more = above.params[#above.params], line:match "^%-%-%-  %s*(.*)$"
  if kind == "param" then
    above.params[#above.params + 1] = param_of(rest)
  elseif kind == "return" then
    above.returns[#above.returns + 1] = plain(rest):match "^(.-)%s*#" or plain(rest)
  elseif more and #above.returns > 0 then -- the rest of a type that fills its line
    above.returns[#above.returns] = above.returns[#above.returns] .. " "
      .. (plain(more):match "^(.-)%s*#" or plain(more))
  elseif more and last then
    last.text = last.text .. " " .. plain(more)
  elseif not kind then
    above.doc[#above.doc + 1] = line:match "^%-%-%-%s*(.*)$"
  end
end

local function nothing() return { doc = {}, params = {}, returns = {} } end

--- Adds the functions of a file's text to `list`.
---@param text string
---@param list tidelock.FunctionPage[]
local function read(text, list)
  local above = nothing()
  for line in text:gmatch "[^\n]*" do
    local lead, last, arguments = line:match "^function (%a+[.:])([%w_]+)%((.-)%) end$"
    local unary, about = line:match "^%-%-%-@field (%a+) tidelock%.unary ?#? ?(.*)$"
    if lead and shown_as[lead] then
      list[#list + 1] = { name = shown_as[lead] .. last, arguments = arguments,
        doc = table.concat(above.doc, " "), params = above.params, returns = above.returns }
    elseif unary then
      list[#list + 1] = { name = "g." .. unary, arguments = "x", doc = about,
        params = { { name = "x", text = "Value" } }, returns = { "Value" } }
    end
    if line:find "^%-%-%-" and not unary then read_comment(above, line) else above = nothing() end
  end
end

--- All functions, in the order of the files.
---@return tidelock.FunctionPage[]
function function_pages.list()
  local list = {}
  for _, name in ipairs { "tidelock.meta.api", "tidelock.meta.core" } do
    read(assert(core.files.read_all(assert(package.searchpath(name, package.path)))), list)
  end
  return list
end

--- A name without what may be written in two ways.
local function key_of(name) return (name:gsub("^tl%.", ""):gsub(":", "."):lower()) end

--- The functions that a topic means: one, all of a table ("g", "tl.data"), all of one last word.
---@param topic string
---@return tidelock.FunctionPage[]
function function_pages.find(topic)
  local key, exact, table_of, last = key_of(topic), {}, {}, {}
  for _, entry in ipairs(function_pages.list()) do
    local own = key_of(entry.name)
    local lead, word = own:match "^(.-)%.?([^.]+)$"
    if own == key and (key:find(".", 1, true) or topic:find "^tl%.") then
      exact[#exact + 1] = entry
    end
    if lead == (key == "tl" and "" or key) and topic ~= "" then table_of[#table_of + 1] = entry end
    if word == key and not topic:find "^tl%." then last[#last + 1] = entry end
  end
  return #exact > 0 and exact or #table_of > 0 and table_of or last
end

--- Names of all, for "did you mean".
---@return string[]
function function_pages.names()
  local names = {}
  for i, entry in ipairs(function_pages.list()) do names[i] = entry.name end
  return names
end

local function head_of(entry)
  local returns = #entry.returns > 0 and " -> " .. table.concat(entry.returns, ", ") or ""
  return ("%s(%s)%s"):format(entry.name, entry.arguments, returns)
end

--- The page of a topic, or nil. `wrapped(text, room)` gives lines.
---@param topic string
---@param wrapped fun(text: string, room: integer): string[]
---@return string[]? lines
function function_pages.page(topic, wrapped)
  local lines, found = {}, function_pages.find(topic)
  if #found == 0 then return nil end
  local function add(lead, text)
    for i, line in ipairs(wrapped(text, width - #lead)) do
      lines[#lines + 1] = ((i == 1 and lead or (" "):rep(#lead)) .. line):gsub("%s+$", "")
    end
  end
  for _, entry in ipairs(found) do
    add("", head_of(entry))
    if entry.doc ~= "" then add("  ", entry.doc) end
    local room, params = 0, #found <= few and entry.params or {}
    for _, param in ipairs(params) do room = math.max(room, #param.name) end
    for _, param in ipairs(params) do
      add(("    %-" .. room .. "s  "):format(param.name), param.text)
    end
  end
  return lines
end

return function_pages
