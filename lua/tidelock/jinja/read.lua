--- jinja/read.lua - a chat template as a tree: the part of Jinja that chat templates are made of.
---
---     "{% for m in messages %}<{{ m.role | upper }}>{% endfor %}"
---     { { kind = "for", targets = { "m" }, list = .., body = { { kind = "text", "<" },
---         { kind = "print", value = .. }, { kind = "text", ">" } } } }
---
--- White space is Jinja's as transformers sets it up: trim_blocks, lstrip_blocks, - and + in tags.
--- What is not read here (macros, includes, filters that nobody wrote) raises its name and line:
--- a template is rendered as its author meant it, or not at all.
local jinja_read = {}

local Reader = {}
Reader.__index = Reader

local function line_of(text, at)
  local _, count = text:sub(1, at - 1):gsub("\n", "")
  return count + 1
end

function Reader:fail(format, ...)
  error({ template = ("line %d: "):format(line_of(self.text, self.at)) .. format:format(...) }, 0)
end

-- words ------------------------------------------------------------------------------------------

local two = { ["=="] = true, ["!="] = true, ["<="] = true, [">="] = true, ["//"] = true,
  ["**"] = true }
local escapes = { n = "\n", t = "\t", r = "\r", ["\\"] = "\\", ["'"] = "'", ['"'] = '"', a = "\a",
  b = "\b", f = "\f", v = "\v", ["\n"] = "" }

local function read_string(self, quote)
  local parts, at = {}, self.at + 1
  while true do
    local stop = self.text:find("[\\" .. quote .. "]", at)
    if not stop then self:fail("a text has no end") end
    parts[#parts + 1] = self.text:sub(at, stop - 1)
    if self.text:sub(stop, stop) == quote then
      self.at = stop + 1
      return { kind = "string", value = table.concat(parts) }
    end
    local letter = self.text:sub(stop + 1, stop + 1)
    local hex = letter == "x" and self.text:match("^%x%x", stop + 2)
      or letter == "u" and self.text:match("^%x%x%x%x", stop + 2)
    if hex then
      parts[#parts + 1] = utf8.char(tonumber(hex, 16))
    elseif escapes[letter] then
      parts[#parts + 1] = escapes[letter]
    else
      self:fail("the escape \\%s is not read", letter)
    end
    at = stop + 2 + (hex and #hex or 0)
  end
end

--- The next word of a tag; the end of the tag is { kind = "end" }.
local function read_word(self)
  local text = self.text
  self.at = text:find("%S", self.at) or #text + 1
  if #self.open == 0 then
    local sign, stop = text:match("^([-+]?)" .. self.closing .. "()", self.at)
    if stop then
      self.at = stop
      return { kind = "end", sign = sign }
    end
  end
  local first = text:sub(self.at, self.at)
  if first == "" then self:fail("a tag has no end") end
  if first == "'" or first == '"' then return read_string(self, first) end
  local name = text:match("^[%a_][%w_]*", self.at)
  local number = not name and (text:match("^%d+%.%d+", self.at) or text:match("^%d+", self.at))
  local word
  if name then
    word = { kind = "name", value = name }
  elseif number then
    word = { kind = "number", value = math.tointeger(tonumber(number)) or tonumber(number) }
  else
    local pair = text:sub(self.at, self.at + 1)
    word = { kind = two[pair] and pair or first, value = two[pair] and pair or first }
  end
  self.at = self.at + #(name or number or word.value)
  if word.kind:find "^[%(%[{]$" then table.insert(self.open, word.kind) end
  if word.kind:find "^[%)%]}]$" then table.remove(self.open) end
  return word
end

function Reader:advance()
  local word = self.word
  self.word = read_word(self)
  return word
end

--- Whether the next word is this one, which then has been read. Names: is("name", "in").
function Reader:is(kind, value)
  if self.word.kind ~= kind or value and self.word.value ~= value then return false end
  self:advance()
  return true
end

function Reader:need(kind, value)
  local word = self.word
  if not self:is(kind, value) then
    self:fail("expected %s, found %s", value or kind, tostring(word.value or "the end of the tag"))
  end
  return word
end

-- expressions ------------------------------------------------------------------------------------

local constants = { ["true"] = true, ["True"] = true, ["false"] = false, ["False"] = false }

local function read_arguments(self)
  local list, named = {}, {}
  while not self:is(")") do
    local value = self:expression()
    if value.kind == "variable" and self:is("=") then
      named[#named + 1] = { name = value.name, value = self:expression() }
    else
      list[#list + 1] = value
    end
    if self.word.kind ~= ")" then self:need(",") end
  end
  return list, named
end

local function read_list(self, closing)
  local list = {}
  while not self:is(closing) do
    list[#list + 1] = self:expression()
    if self.word.kind ~= closing then self:need(",") end
  end
  return { kind = "list", items = list }
end

local function read_map(self)
  local keys, values = {}, {}
  while not self:is("}") do
    keys[#keys + 1] = self:expression()
    self:need(":")
    values[#values + 1] = self:expression()
    if self.word.kind ~= "}" then self:need(",") end
  end
  return { kind = "map", keys = keys, values = values }
end

local function read_primary(self)
  local word = self:advance()
  if word.kind == "string" then
    local value = word.value
    while self.word.kind == "string" do value = value .. self:advance().value end
    return { kind = "constant", value = value }
  elseif word.kind == "number" then
    return { kind = "constant", value = word.value }
  elseif word.kind == "name" and constants[word.value] ~= nil then
    return { kind = "constant", value = constants[word.value] }
  elseif word.kind == "name" and (word.value == "none" or word.value == "None") then
    return { kind = "none" }
  elseif word.kind == "name" then
    return { kind = "variable", name = word.value }
  elseif word.kind == "(" then
    local value = self:expression()
    if self.word.kind == "," then self:fail("a tuple is not read") end
    self:need(")")
    return value
  elseif word.kind == "[" then
    return read_list(self, "]")
  elseif word.kind == "{" then
    return read_map(self)
  end
  self:fail("expected a value, found %s", tostring(word.value or "the end of the tag"))
end

local function read_index(self, value)
  local bounds, colons = {}, 0
  while self.word.kind ~= "]" do
    if self:is(":") then
      colons = colons + 1
    else
      bounds[colons + 1] = self:expression()
    end
  end
  self:need("]")
  if colons == 0 then return { kind = "index", value = value, key = bounds[1] } end
  if colons > 2 then self:fail("a slice with %d colons", colons) end
  return { kind = "slice", value = value, first = bounds[1], last = bounds[2], step = bounds[3] }
end

local function read_call(self, value)
  local list, named = read_arguments(self)
  local call = { kind = "call", list = list, named = named, line = line_of(self.text, self.at) }
  if value.kind == "variable" then
    if not self.known.functions[value.name] then
      self:fail("the function %s is not rendered by this server", value.name)
    end
    call.name = value.name
  elseif value.kind == "attribute" then
    if not self.known.methods[value.key] then
      self:fail("the method %s is not rendered by this server", value.key)
    end
    call.kind, call.value, call.name = "method", value.value, value.key
  else
    self:fail("a call of something without a name")
  end
  return call
end

local function read_postfix(self, value)
  while true do
    if self:is(".") then
      value = { kind = "attribute", value = value, key = self:need("name").value }
    elseif self:is("[") then
      value = read_index(self, value)
    elseif self:is("(") then
      value = read_call(self, value)
    else
      return value
    end
  end
end

local function read_test(self, value)
  local negated = self:is("name", "not")
  local name = self:need("name").value
  if not self.known.tests[name] then
    self:fail("the test %s is not rendered by this server", name)
  end
  local list = {}
  if self:is("(") then
    list = read_arguments(self)
  elseif self.known.tests_with[name] then
    list = { read_postfix(self, read_primary(self)) }
  end
  value = { kind = "test", value = value, name = name, list = list }
  return negated and { kind = "not", value = value } or value
end

local function read_filters(self, value)
  while true do
    if self:is("|") then
      local name = self:need("name").value
      if not self.known.filters[name] then
        self:fail("the filter %s is not rendered by this server", name)
      end
      local list, named = {}, {}
      if self:is("(") then list, named = read_arguments(self) end
      value = { kind = "filter", value = value, name = name, list = list, named = named }
    elseif self:is("name", "is") then
      value = read_test(self, value)
    elseif self:is("(") then
      value = read_call(self, value)
    else
      return value
    end
  end
end

local function read_unary(self, plain)
  local value
  if self.word.kind == "-" or self.word.kind == "+" then
    local sign = self:advance().kind
    value = { kind = "sign", sign = sign, value = read_unary(self, true) }
  else
    value = read_primary(self)
  end
  value = read_postfix(self, value)
  return plain and value or read_filters(self, value)
end

--- A reader of left-associative operators above `inner`.
local function level(inner, ...)
  local operators = {}
  for _, word in ipairs { ... } do operators[word] = true end
  return function(self)
    local value = inner(self)
    while operators[self.word.kind] do
      value = { kind = "operator", operator = self:advance().kind, value, inner(self) }
    end
    if self.word.kind == "**" then self:fail("the operator ** is not rendered by this server") end
    return value
  end
end

local read_product = level(read_unary, "*", "/", "//", "%")
local read_joined = level(read_product, "~")
local read_sum = level(read_joined, "+", "-")

local comparisons = { ["=="] = true, ["!="] = true, ["<"] = true, [">"] = true, ["<="] = true,
  [">="] = true }

local function read_comparison(self)
  local value = read_sum(self)
  local list = {}
  while true do
    if comparisons[self.word.kind] then
      list[#list + 1] = { self:advance().kind, read_sum(self) }
    elseif self:is("name", "in") then
      list[#list + 1] = { "in", read_sum(self) }
    elseif self.word.kind == "name" and self.word.value == "not" then
      self:advance()
      self:need("name", "in")
      list[#list + 1] = { "not in", read_sum(self) }
    else
      break
    end
  end
  return #list == 0 and value or { kind = "compare", value = value, list = list }
end

local function read_not(self)
  if self:is("name", "not") then return { kind = "not", value = read_not(self) } end
  return read_comparison(self)
end

local function read_and(self)
  local value = read_not(self)
  while self:is("name", "and") do value = { kind = "and", value, read_not(self) } end
  return value
end

local function read_or(self)
  local value = read_and(self)
  while self:is("name", "or") do value = { kind = "or", value, read_and(self) } end
  return value
end

function Reader:expression()
  local value = read_or(self)
  while self:is("name", "if") do
    local condition, other = read_or(self), nil
    if self:is("name", "else") then other = self:expression() end
    value = { kind = "choose", condition = condition, value, other }
  end
  return value
end

-- tags -------------------------------------------------------------------------------------------

local function add_text(body, text)
  if text ~= "" then body[#body + 1] = { kind = "text", text } end
end

--- Text up to the next tag, stripped as this and the last tag say. Returns the tag's first letter.
local function read_text(self, body)
  local start = self.text:find("{[{%%#]", self.at)
  local text = self.text:sub(self.at, (start or #self.text + 1) - 1)
  if self.strip == "-" then
    local blank, rest = text:match "^(%s*)(.*)$"
    text, self.line_begins = rest, blank:sub(-1) == "\n"
  elseif self.strip == "line" and text:sub(1, 1) == "\n" then
    text, self.line_begins = text:sub(2), true
  end
  local kind = start and self.text:sub(start + 1, start + 1)
  local sign = start and self.text:match("^[-+]?", start + 2)
  if sign == "-" then
    text = text:gsub("%s+$", "")
  elseif kind and kind ~= "{" and sign ~= "+" then
    local lead, last = text:match "^(.*\n)([^\n]*)$"
    if not lead and self.line_begins then lead, last = "", text end
    if lead and last:find "^%s+$" then text = lead end
  end
  add_text(body, text)
  self.at = start and start + 2 + #sign or #self.text + 1
  self.line_begins = false
  return kind
end

local function skip_comment(self)
  local sign, stop = self.text:match("([-+]?)#}()", self.at)
  if not stop then self:fail("a comment has no end") end
  self.at, self.strip = stop, sign == "-" and "-" or sign == "" and "line" or nil
end

--- Begins a tag: its first word is next.
local function enter(self, closing)
  self.closing, self.open = closing, {}
  self.word = read_word(self)
end

--- Ends it: what stands behind it is text again.
local function leave(self, block)
  if self.word.kind ~= "end" then
    self:fail("found %s behind what was read", tostring(self.word.value))
  end
  self.strip = self.word.sign == "-" and "-" or block and self.word.sign == "" and "line" or nil
end

local statements = {}

statements["if"] = function(self)
  local node = { kind = "if", list = {} }
  local ended
  repeat
    local condition = self:expression()
    leave(self, true)
    local body, tag = self:body({ "elif", "else", "endif" })
    node.list[#node.list + 1], ended = { condition, body }, tag
  until ended ~= "elif"
  if ended == "else" then
    leave(self, true)
    node.other = self:body({ "endif" })
  end
  return node
end

statements["for"] = function(self)
  local node = { kind = "for", targets = { self:need("name").value } }
  while self:is(",") do table.insert(node.targets, self:need("name").value) end
  self:need("name", "in")
  node.list = read_or(self)
  if self:is("name", "if") then node.condition = self:expression() end
  leave(self, true)
  local ended
  self.loops = self.loops + 1
  node.body, ended = self:body({ "else", "endfor" })
  self.loops = self.loops - 1
  if ended == "else" then
    leave(self, true)
    node.other = self:body({ "endfor" })
  end
  return node
end

statements["set"] = function(self)
  local node = { kind = "set", name = self:need("name").value }
  if self:is(".") then node.field = self:need("name").value end
  if self.word.kind == "," then self:fail("set of several names is not read") end
  if self:is("=") then
    node.value = self:expression()
    if self.word.kind == "," then self:fail("a tuple is not read") end
    return node
  end
  leave(self, true)
  node.body = self:body({ "endset" })
  return node
end

for _, word in ipairs { "break", "continue" } do
  statements[word] = function(self)
    if self.loops == 0 then self:fail("%s outside of a loop", word) end
    return { kind = word }
  end
end

--- transformers marks the assistant's words with it, and renders what is inside.
statements["generation"] = function(self)
  leave(self, true)
  return { kind = "group", body = (self:body({ "endgeneration" })) }
end

local function is_one_of(word, list)
  for _, item in ipairs(list) do
    if item == word then return true end
  end
  return false
end

--- Nodes up to one of the tags of `ends`, whose name is returned; it is left to the caller.
function Reader:body(ends)
  local body = {}
  while true do
    local kind = read_text(self, body)
    if not kind then
      if #ends > 0 then self:fail("%s is missing", ends[#ends]) end
      return body
    elseif kind == "#" then
      skip_comment(self)
    elseif kind == "{" then
      enter(self, "}}")
      body[#body + 1] = { kind = "print", value = self:expression() }
      leave(self)
    else
      enter(self, "%%}")
      local name = self:need("name").value
      if is_one_of(name, ends) then return body, name end
      if not statements[name] then
        self:fail("the tag %s is not rendered by this server", name)
      end
      body[#body + 1] = statements[name](self)
      leave(self, true)
    end
  end
end

--- The tree of a template; raises { template = "line 3: the filter pprint is not .." }.
---@param text string
---@param known { functions: table, methods: table, filters: table, tests: table,
---  tests_with: table } # names that can be rendered
---@return table[]
function jinja_read.tree(text, known)
  text = text:gsub("\r\n?", "\n"):gsub("\n$", "")
  local self = setmetatable({ text = text, at = 1, known = known, loops = 0, line_begins = true },
    Reader)
  return (self:body({}))
end

return jinja_read
