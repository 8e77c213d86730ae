--- words.lua - the words of a command line, read by the table of commands (init.lua).
---
--- What is wrong is collected, so that all of it is said at once; only a command that is not there
--- ends the reading, because nobody knows what its words are.
local hints = require "tidelock.language.hints"
local serving_hints = require "tidelock.commands.serving_hints"
local suggest = require "tidelock.text.suggest"

local words = {}

--- Kinds of option values: what is expected, and how the word becomes a value (nil when it cannot).
words.kinds = {
  text = { word = "TEXT", expected = "a word", read = function(word) return word end },
  file = { word = "FILE", expected = "a file name", read = function(word) return word end },
  folder = { word = "DIR", expected = "a folder", read = function(word) return word end },
  count = {
    word = "N", expected = "a positive integer",
    read = function(word)
      local n = math.tointeger(tonumber(word))
      return n and n > 0 and n or nil
    end,
  },
  workers = { -- what the pool can have
    word = "N", expected = "an integer from 1 to 1024",
    read = function(word)
      local n = math.tointeger(tonumber(word))
      return n and n > 0 and n <= 1024 and n or nil
    end,
  },
  index = {
    word = "N", expected = "an integer from 0",
    read = function(word)
      local n = math.tointeger(tonumber(word))
      return n and n >= 0 and n or nil
    end,
  },
  amount = {
    word = "X", expected = "a positive number",
    read = function(word)
      local n = tonumber(word)
      return n and n > 0 and n < math.huge and n or nil
    end,
  },
  number = {
    word = "X", expected = "a number from 0",
    read = function(word)
      local x = tonumber(word)
      return x and x >= 0 and x < math.huge and x or nil
    end,
  },
  share = {
    word = "X", expected = "a number above 0, up to 1",
    read = function(word)
      local x = tonumber(word)
      return x and x > 0 and x <= 1 and x or nil
    end,
  },
  shell = {
    word = "SHELL", expected = "bash, zsh or fish",
    read = function(word)
      return (word == "bash" or word == "zsh" or word == "fish") and word or nil
    end,
  },
  form = {
    word = "md|csv|json|jsonl", expected = "md, csv, json or jsonl",
    read = function(word)
      return ({ md = true, csv = true, json = true, jsonl = true })[word] and word or nil
    end,
  },
}

local function message(format, ...) return "tidelock: " .. format:format(...) end

function words.fail(format, ...) error({ status = 2, message = message(format, ...) }, 0) end

function words.names_of(list, prefix)
  local names = {}
  for _, item in ipairs(list) do names[#names + 1] = prefix .. item.name end
  table.sort(names)
  return names
end

function words.find(list, name)
  for _, item in ipairs(list) do
    if item.name == name then return item end
  end
end

--- "did you mean run? ", or nothing.
function words.did_you_mean(near) return near and ("did you mean %s? "):format(near) or "" end

local find = words.find

local function is_one_of(word, list)
  for _, item in ipairs(list) do
    if item == word then return true end
  end
  return false
end

--- Whether the word alone asks for help or for the version, also behind another command.
local function asks(word, long, short) return word == "--" .. long or word == "-" .. short end

---@class tidelock.Words # words that are being read
---@field list string[]
---@field at integer # of the next one
---@field problems string[]
---@field request tidelock.Request
---@field commands table
local Words = {}
Words.__index = Words

function Words:add(format, ...)
  self.problems[#self.problems + 1] = message("%s: " .. format, self.request.command.name, ...)
end

--- An option that is not there. The word behind it may be its value: then nothing else is.
function Words:unknown_option(name, word)
  local command = self.request.command
  local known = words.names_of(command.options, "--")
  local foreign = name and (command.recipe and hints.on_command_line(name)
    or serving_hints.of(command.name, name))
  if foreign then
    self:add("no option %s; %s", word, foreign)
  else
    local near = suggest.nearest("--" .. (name or word:gsub("^%-+", "")), known)
    self:add("no option %s; %s%s has %s", word, words.did_you_mean(near), command.name,
      #known > 0 and table.concat(known, ", ") or "no options")
  end
  local behind = self.list[self.at]
  local is_value = behind and not word:find("=", 1, true) and not behind:find "^%-"
    and not behind:find("=", 1, true)
  if is_value and (self.request.recipe or not behind:find "%.lua$") then self.at = self.at + 1 end
end

--- The value of an option, or nil; and what was expected.
local function read_value(option, word)
  local kind, choices = words.kinds[option.kind], option.choices
  if choices and option.value == table.concat(choices, "|") then
    local first = table.concat(choices, ", ", 1, #choices - 1)
    local expected = (first ~= "" and first .. " or " or "") .. choices[#choices]
    return is_one_of(word, choices) and word or nil, expected
  end
  return word ~= nil and word ~= "" and kind.read(word) or nil, kind.expected
end

--- Option `word` ("--name" or "--name=value") and perhaps the word behind it.
function Words:option(word)
  local command, options = self.request.command, self.request.options
  for _, known in ipairs(command.options) do
    if known.short and word == "-" .. known.short then word = "--" .. known.name end
  end
  local name, value = word:match "^%-%-([^=]+)=?(.*)$"
  local inline = word:find("=", 1, true) ~= nil
  local option = name and find(command.options, name)
  if not option then return self:unknown_option(name, word) end
  local key = option.name:gsub("-", "_")
  local twice = options[key] ~= nil
  if twice then self:add("--%s is given twice", name) end
  if not option.kind then
    if inline then self:add("--%s takes no value", name) end
    options[key] = true
    return
  end
  if not inline then
    value = self.list[self.at]
    if value and value:find "^%-%-" then value = nil end
    if value then self.at = self.at + 1 end
  end
  local read, expected = read_value(option, value)
  if not read then
    local got = value and '"' .. value .. '"' or "nothing"
    self:add("--%s: expected %s, got %s", name, expected, got)
  end
  options[key] = read or options[key] or false
end

--- Blanks around "=": layout.tp = 2 are three words.
function Words:spaced_override(word)
  local sign, value = self.list[self.at], self.list[self.at + 1]
  if not word:find "^[%a_][%w_.]*$" or not sign or sign:sub(1, 1) ~= "=" then return false end
  if sign ~= "=" then value = sign:sub(2) end
  self:add("%s %s: write %s=%s, without blanks", word, sign, word, value or "..")
  self.at = self.at + (sign == "=" and value and 2 or 1)
  return true
end

--- A word of a command that takes a recipe, or may: topic, recipe or override.
function Words:recipe_word(word)
  local request = self.request
  local command = request.command
  if word:find "^[^=/]+=" then
    if command.recipe == true and not request.recipe then
      self:add("the recipe comes before %s; e.g. ./tl %s", word, command.example)
    end
    table.insert(request.overrides, word)
  elseif request.recipe then
    if self:spaced_override(word) then return end
    self:add("%s is neither an option nor an override, as layout.tp=2; the recipe is %s", word,
      request.recipe)
  elseif command.topics and not word:find "[./]" then
    self:add("%s is neither a recipe file nor one of %s%s", word,
      table.concat(command.topics, ", "),
      suggest.nearest(word, command.topics)
        and "; did you mean " .. suggest.nearest(word, command.topics) .. "?" or "")
  else
    request.recipe = word:gsub("(.)/+$", "%1") -- a shell completes a folder with its slash
  end
end

--- A word that is no option: topic, recipe or override, in this order.
function Words:word(word)
  local request, commands = self.request, self.commands
  local command = request.command
  if command.name == "help" and not request.topic then
    request.topic = commands.topic(word)
  elseif command.topics and not request.topic and is_one_of(word, command.topics) then
    request.topic = word
  elseif command.words and (command.words_more or #request.words < #command.words) then
    table.insert(request.words, word)
  elseif not command.recipe and not (command.overrides and word:find "^[^=/]+=") then
    local text = command.words and (command.words[#command.words]):match "^%u+$"
    self:add("%s is one word too many%s", word, (text == "PROMPT" or text == "TEXT")
      and "; a text of several words stands in quotes" or "")
  elseif not command.recipe then
    table.insert(request.overrides, word)
  else
    self:recipe_word(word)
  end
end

--- What is not there and has to be.
function Words:missing()
  local request = self.request
  local command = request.command
  if command.recipe == true and not request.recipe and #request.overrides == 0 then
    self:add("a recipe is missing; e.g. ./tl %s", command.example)
  end
  local needed = command.words and (command.words_needed or #command.words) or 0
  for i = #request.words + 1, needed do
    self:add("%s is missing; e.g. ./tl %s", command.words[i], command.example)
  end
end

--- Understand the words after the program's name.
---@param commands table
---@param list string[]
---@return tidelock.Request
function words.parse(commands, list)
  local name = list[1]
  if not name or asks(name, "help", "h") then name = "help" end
  if asks(name, "version", "V") then name = "version" end
  local function help(topic)
    return { command = commands.find "help", overrides = {}, options = {}, topic = topic }
  end
  local outside = find(commands.outside, name)
  if outside and list[2] and asks(list[2], "help", "h") then return help(name) end
  local request = { command = commands.find(name), overrides = {}, options = {}, words = {} }
  local self = setmetatable(
    { list = list, at = 2, problems = {}, request = request, commands = commands }, Words
  )
  while self.at <= #list do
    local word = list[self.at]
    if asks(word, "help", "h") then return help(name ~= "help" and name or nil) end
    self.at = self.at + 1
    if word:sub(1, 1) == "-" and #word > 1 then
      self:option(word)
    else
      self:word(word)
    end
  end
  self:missing()
  if #self.problems > 0 then
    error({ status = 2, message = table.concat(self.problems, "\n") }, 0)
  end
  return request
end

return words
