--- chat.lua - the chat template of a model: from messages to the text of a prompt.
---
---     chat_template.jinja, or tokenizer_config.json: chat_template, bos_token, eos_token, ..
---
--- transformers renders it with Jinja; jinja/ does as far as chat templates go. A template that
--- it cannot read is refused with what stands in its way: no other is put in its place.
local core = require "tidelock.core"
local jinja = require "tidelock.jinja"

local chat = {}

local function read_json(path)
  local text = core.files.exists(path) and core.files.read_all(path)
  local good, value = pcall(core.json.decode, text or "")
  return good and type(value) == "table" and value or {}
end

--- The text of the template, if there is one: of several the one called "default".
local function text_of(folder, config)
  local path = folder .. "/chat_template.jinja"
  if core.files.exists(path) then return core.files.read_all(path) end
  local found = config.chat_template
  if type(found) == "string" then return found end
  for _, entry in ipairs(type(found) == "table" and found or {}) do
    if entry.name == "default" and type(entry.template) == "string" then return entry.template end
  end
end

--- Variables that every rendering has: bos_token and its kin.
local function tokens_of(config)
  local tokens = {}
  for _, name in ipairs { "bos", "eos", "unk", "sep", "pad", "cls", "mask" } do
    local value = config[name .. "_token"]
    if type(value) == "table" then value = value.content end
    if type(value) == "string" then tokens[name .. "_token"] = value end
  end
  return tokens
end

--- What stands in the way, of the error that a template raised. Lua's own errors come from what a
--- template does to values of the wrong kind, or from parentheses without end: a client's messages
--- must not end the server either way.
local function reason_of(problem)
  if type(problem) == "table" and problem.template then return problem.template end
  if type(problem) == "table" and not problem.message then error(problem, 0) end
  local text = tostring(type(problem) == "table" and problem.message or problem)
  return "an expression of it fails: " .. (text:match "^[^\n]*%.lua:%d+: ([^\n]*)" or text)
end

--- A function from messages to a prompt, or nil and why there is none for them. The second result
--- says what stands in the way of all messages.
---@param folder? string # of the tokenizer; nil: ids are bytes
---@return fun(messages: table, more: table): string?, string?
---@return string?
function chat.open(folder)
  local config = folder and read_json(folder .. "/tokenizer_config.json")
  local text, why, render = folder and text_of(folder, config), nil, nil
  if not folder then
    why = "--tokenizer bytes has no chat template"
  elseif not text then
    why = folder .. " has no chat template; it is chat_template in tokenizer_config.json"
  else
    local good, result = pcall(jinja.open, text)
    if good then
      render = result
    else
      why = "the chat template of this model is not rendered: " .. reason_of(result)
    end
  end
  if why then -- the folder is nobody's business outside
    local told = (text and why or "this model has no chat template")
      .. "; send a prompt, to /v1/completions or /tokenize"
    return function() return nil, told end, why
  end
  return function(messages, more)
    local variables = tokens_of(config)
    for name, value in pairs(more) do variables[name] = value end
    variables.messages, variables.add_generation_prompt = messages, true
    local good, result = pcall(render, variables)
    if good then return result end
    return nil, "the chat template of this model: " .. reason_of(result)
  end
end

return chat
