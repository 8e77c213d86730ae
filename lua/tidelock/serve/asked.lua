--- asked.lua - what the body of a request to ./tl serve asks for, or all that is wrong with it.
---
---     asked.read("completions", '{"prompt":"Tide","seed":1}', model)
---         -> { prompts = { { 84, .. } }, n = 1, submission = { seed = 1, .. }, .. }
---         -> nil, { status = 400, message = "..; ..", param = "seed" }
---
--- A field that this server does not act on is refused by name, unless its value asks for nothing:
--- frequency_penalty 0, logit_bias {}. Null is the same as absent.
local core = require "tidelock.core"
local pieces = require "tidelock.serve.pieces"
local sorted_keys = require "tidelock.text.sorted_keys"
local suggest = require "tidelock.text.suggest"

local asked = {}

local array_of_json = getmetatable(core.json.array {})
local completion_tokens = 16 -- OpenAI's, where max_tokens is absent
local choices_most, stops_most, prompts_most = 16, 4, 64

local function is_list(value)
  return type(value) == "table" and getmetatable(value) == array_of_json
end

--- A value as a message shows it, short.
local function shown(value)
  if value == nil then return "absent" end
  local good, text = pcall(core.json.encode, value)
  if not good then text = "nested too deep to be shown" end
  return #text > 40 and text:sub(1, 40):gsub("[\128-\255]+$", "") .. ".." or text
end

-- kinds of values: each gives the value, or nil and what would be right ---------------------------

local function whole(least, most)
  return function(value)
    if math.type(value) == "integer" and value >= least and value <= most then return value end
    return nil, ("a whole number from %d to %d"):format(least, most)
  end
end

local function number(least, most)
  return function(value)
    if type(value) == "number" and value >= least and value <= most then return value end
    return nil, ("a number from %g to %g"):format(least, most)
  end
end

local function share(value)
  if type(value) == "number" and value > 0 and value <= 1 then return value end
  return nil, "a number above 0, up to 1"
end

local any_whole = whole(math.mininteger, math.maxinteger)

local function flag(value)
  if type(value) == "boolean" then return value end
  return nil, "true or false"
end

local function text(value)
  if type(value) == "string" then return value end
  return nil, "a text"
end

--- Asks for nothing: one of these values.
local function only(...)
  local good = { ... }
  return function(value)
    for _, one in ipairs(good) do
      if value == one then return value end
    end
    return nil, "absent: this server does not do it"
  end
end

local function nothing_in(value)
  if type(value) == "table" and next(value) == nil then return value end
  return nil, "absent or empty: this server does not do it"
end

local function stops(value)
  local list = type(value) == "string" and { value } or value
  local good = type(value) == "string" or is_list(value) and #list <= stops_most
  for _, one in ipairs(good and list or {}) do
    good = good and type(one) == "string" and one ~= ""
  end
  if good then return list end
  return nil, ("a text that is not empty, or a list of at most %d"):format(stops_most)
end

local function stream_options(value)
  local fine = type(value) == "table" and not is_list(value)
  for key, one in pairs(fine and value or {}) do
    fine = fine and key == "include_usage" and type(one) == "boolean"
  end
  if fine then return value end
  return nil, '{"include_usage": true or false}'
end

local function plain_format(value)
  if type(value) == "table" and value.type == "text" and next(value, next(value)) == nil then
    return value
  end
  return nil, '{"type": "text"}; this server does no other'
end

local function map_of_scalars(value)
  local good = type(value) == "table" and not is_list(value)
  for _, one in pairs(good and value or {}) do
    good = good and (type(one) ~= "table" and type(one) ~= "userdata")
  end
  if good then return value end
  return nil, "an object of texts, numbers, true and false"
end

local function anything(value) return value end

local shared = {
  model = text, max_tokens = whole(0, 0x7fffffff), temperature = number(0, 2),
  top_p = share, top_k = whole(0, 0x7fffffff), n = whole(1, choices_most), stream = flag,
  stream_options = stream_options, stop = stops, presence_penalty = only(0, 0.0),
  frequency_penalty = only(0, 0.0), logit_bias = nothing_in, user = text, seed = any_whole,
  request = any_whole, ignore_eos = flag, return_token_ids = flag,
}

local forms = {
  completions = {
    prompt = anything, echo = flag, logprobs = whole(0, 20), best_of = whole(1, choices_most),
    suffix = only(""),
  },
  chat = {
    messages = anything, max_completion_tokens = whole(1, 0x7fffffff), logprobs = flag,
    top_logprobs = whole(0, 20), response_format = plain_format, tools = nothing_in,
    tool_choice = only("none"), store = only(false), chat_template_kwargs = map_of_scalars,
  },
}

for _, form in pairs(forms) do
  for name, kind in pairs(shared) do form[name] = kind end
end

-- of /tokenize and /detokenize
forms.tokenize = {
  model = text, prompt = text, messages = anything, add_special_tokens = flag,
  return_token_strs = flag, chat_template_kwargs = map_of_scalars,
}
forms.detokenize = { model = text, tokens = anything }

--- Collects what is wrong: all of it is said at once, the first gives `param`.
local Problems = {}
Problems.__index = Problems

function Problems:add(param, format, ...)
  self.param = self.param or param
  self[#self + 1] = format:format(...)
end

function Problems:refusal(status, code)
  if #self == 0 then return nil end
  return { status = status or 400, message = table.concat(self, "; "), param = self.param,
    code = code }
end

--- The fields that are known and right; others become problems.
local function read_fields(form, given, problems)
  local names, fields, known = {}, {}, sorted_keys(form)
  for name, value in pairs(given) do
    if value ~= core.json.null then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local kind = form[name]
    if not kind then
      local near = suggest.nearest(name, known)
      problems:add(name, "%s is no field of this request%s", shown(name),
        near and "; did you mean " .. near .. "?" or "")
    else
      local value, wanted = kind(given[name])
      if value == nil then
        problems:add(name, "%s is %s; it can be %s", name, shown(given[name]), wanted)
      end
      fields[name] = value
    end
  end
  return fields
end

-- prompts ----------------------------------------------------------------------------------------

local function all_of(list, test)
  for _, item in ipairs(list) do
    if not test(item) then return false end
  end
  return #list > 0
end

local function is_id(value) return math.type(value) == "integer" end

--- The ids of a text; a text that the tokenizer cannot read is a problem of the one who sent it.
local function encoded(model, given, special, param, problems)
  local good, ids = pcall(model.tokenizer.encode, model.tokenizer, given, special)
  if good then return ids end
  local why = tostring(ids):gsub("^[^\n]-%.lua:%d+: ", "")
  problems:add(param, "the tokenizer cannot read it: %s", pieces.valid(why))
  return {}
end

--- Lists of ids: of a text, texts, ids, or lists of ids.
local function read_prompts(prompt, model, problems)
  local list = prompt
  local single = type(prompt) == "string" or is_list(prompt) and all_of(prompt, is_id)
  if single then list = { prompt } end
  if not is_list(list) and list == prompt or #list == 0 then
    problems:add("prompt", "prompt is %s; it can be a text, texts, token ids, or lists of them",
      shown(prompt))
    return {}
  end
  if #list > prompts_most then
    problems:add("prompt", "%d prompts; a request has at most %d", #list, prompts_most)
    return {}
  end
  local prompts = {}
  for i, one in ipairs(list) do
    if type(one) == "string" then
      prompts[i] = encoded(model, one, true, "prompt", problems)
    elseif is_list(one) and (#one == 0 or all_of(one, is_id)) then
      prompts[i] = table.move(one, 1, #one, 1, {})
    else
      problems:add("prompt", "prompt %d is %s; it can be a text or token ids", i - 1, shown(one))
      return {}
    end
  end
  return prompts
end

--- Texts of a message's content: a text, or parts of which each is one.
local function content_of(content)
  if type(content) == "string" then return content end
  if not is_list(content) then return nil end
  local parts = {}
  for i, part in ipairs(content) do
    local good = type(part) == "table" and part.type == "text" and type(part.text) == "string"
    if not good then return nil end
    parts[i] = part.text
  end
  return table.concat(parts)
end

local function read_messages(given, problems)
  local messages = core.json.array {}
  if not is_list(given) or #given == 0 then
    problems:add("messages", "messages is %s; it can be a list of {\"role\", \"content\"}",
      shown(given))
    return messages
  end
  for i, message in ipairs(given) do
    local fine = type(message) == "table" and not is_list(message)
    local content = fine and content_of(message.content)
    if not fine or type(message.role) ~= "string" or not content then
      problems:add("messages", "message %d is %s; it can be {\"role\": a text, \"content\": a "
        .. "text, or parts of type text}", i - 1, shown(message))
      return messages
    end
    for name, value in pairs(message) do
      if name ~= "role" and name ~= "content" and name ~= "name" and value ~= core.json.null then
        problems:add("messages", "message %d has %s, which this server does not do", i - 1,
          shown(name))
      end
    end
    messages[i] = { role = message.role, content = content, name = text(message.name) }
  end
  return messages
end

-- the whole --------------------------------------------------------------------------------------

--- Most tokens to make: as many as asked for, if the context has room for them.
local function most_tokens(kind, fields, prompts, model, problems)
  local most = fields.max_completion_tokens or fields.max_tokens
  local left = model.context
  for i, tokens in ipairs(prompts) do
    left = math.min(left, model.context - #tokens)
    if most and most > model.context - #tokens and #tokens < model.context then
      problems:add("max_tokens", "max_tokens is %d, and prompt %d of %d tokens leaves %d of the "
        .. "context of %d", most, i - 1, #tokens, model.context - #tokens, model.context)
    end
  end
  if most == 0 and not (fields.echo and kind == "completions") then
    problems:add("max_tokens", "max_tokens is 0, which means something with echo only")
  end
  if most then return most end
  return math.max(1, kind == "chat" and left or math.min(left, completion_tokens))
end

--- The refusal of a model that is another one; nil: it is this one, or none is named.
local function other_model(fields, model)
  if not fields.model or fields.model == model.name then return nil end
  return { status = 404, code = "model_not_found", param = "model",
    message = ("the model %s is not here; this server has %s"):format(shown(fields.model),
      shown(model.name)) }
end

local function check_together(kind, fields, model, problems)
  if fields.max_tokens and fields.max_completion_tokens then
    problems:add("max_tokens", "max_tokens and max_completion_tokens are both given; one is enough")
  end
  if fields.best_of and fields.best_of ~= (fields.n or 1) then
    problems:add("best_of", "best_of is %d and n is %d; this server gives all that it makes",
      fields.best_of, fields.n or 1)
  end
  if kind == "chat" and fields.top_logprobs and not fields.logprobs then
    problems:add("top_logprobs", "top_logprobs needs \"logprobs\": true")
  end
  if fields.stream_options and not fields.stream then
    problems:add("stream_options", "stream_options needs \"stream\": true")
  end
  return other_model(fields, model)
end

---@class tidelock.Wanted
---@field kind "completions"|"chat"
---@field prompts integer[][]
---@field n integer # choices of each prompt
---@field submission table # as tidelock.Submission, without tokens
---@field stream boolean
---@field usage boolean # a stream ends with the counts of tokens
---@field echo boolean
---@field logprobs integer? # so many of the likeliest tokens beside each
---@field stops string[]
---@field ids boolean # token ids are given, too

--- How many of the likeliest tokens are wanted beside each; nil: no log-probabilities.
local function logprobs_of(kind, fields)
  if kind == "completions" then return fields.logprobs end
  return fields.logprobs and (fields.top_logprobs or 0) or nil
end

--- The object that `body` is; or nil and the refusal.
local function object_of(body)
  if not body:find "%S" then
    return nil, { status = 400, message = "the body is empty; it can be a JSON object" }
  end
  local good, given = pcall(core.json.decode, body)
  if good and type(given) == "table" and not is_list(given) then return given end
  local why = good and "the body is no JSON object" or tostring(given):gsub("^[^\n]-: JSON", "JSON")
  return nil, { status = 400, message = why }
end

--- The ids of rendered messages; nil and the refusal where they cannot be rendered.
local function read_chat(fields, model, problems)
  local messages = read_messages(fields.messages, problems)
  if #problems > 0 then return {} end
  local rendered, why = model.chat(messages, fields.chat_template_kwargs or {})
  if not rendered then return nil, { status = 400, message = why, param = "messages" } end
  return encoded(model, rendered, false, "messages", problems)
end

--- Checks ids that are to become a text.
local function check_ids(list, vocab, problems)
  if not is_list(list) or #list > 0 and not all_of(list, is_id) then
    return problems:add("tokens", "tokens is %s; it can be a list of token ids", shown(list))
  end
  for i, id in ipairs(list) do
    if id < 0 or id >= vocab then
      return problems:add("tokens", "token %d is %d; ids are 0 to %d", i - 1, id, vocab - 1)
    end
  end
end

--- What /tokenize or /detokenize is asked: { ids, strings } of a text or of messages, or { ids };
--- or nil and { status, message, param, code }.
---@param kind "tokenize"|"detokenize"
---@param body string
---@param model table # as of asked.read
---@param vocab integer
---@return { ids: integer[], strings: boolean }?
---@return table?
function asked.words(kind, body, model, vocab)
  local given, refusal = object_of(body)
  if not given then return nil, refusal end
  local problems = setmetatable({}, Problems)
  local fields = read_fields(forms[kind], given, problems)
  refusal = other_model(fields, model)
  if refusal then return nil, refusal end
  local ids = fields.tokens
  if kind == "detokenize" then
    check_ids(ids, vocab, problems)
  elseif (fields.prompt == nil) == (fields.messages == nil) then
    problems:add("prompt", "one of prompt and messages is what is made to tokens")
  elseif fields.prompt then
    ids = encoded(model, fields.prompt, fields.add_special_tokens ~= false, "prompt", problems)
  else
    ids, refusal = read_chat(fields, model, problems)
    if refusal then return nil, refusal end
  end
  if #problems > 0 then return nil, problems:refusal() end
  return { ids = ids, strings = fields.return_token_strs or false }
end

--- What `body` asks for; or nil and { status, message, param, code }.
---@param kind "completions"|"chat"
---@param body string
---@param model { name: string, context: integer, tokenizer: tidelock.Tokenizer, stop: integer[],
---  chat: fun(messages: table, more: table): string?, string? }
---@return tidelock.Wanted?
---@return table?
function asked.read(kind, body, model)
  local given, unread = object_of(body)
  if not given then return nil, unread end
  local problems, prompts = setmetatable({}, Problems), {}
  local fields = read_fields(forms[kind], given, problems)
  local refusal = check_together(kind, fields, model, problems)
  if refusal then return nil, refusal end
  if kind == "completions" then
    prompts = read_prompts(fields.prompt, model, problems)
  else
    prompts[1], refusal = read_chat(fields, model, problems)
    if refusal then return nil, refusal end
  end
  local most = most_tokens(kind, fields, prompts, model, problems)
  if #problems > 0 then return nil, problems:refusal() end
  local count = logprobs_of(kind, fields)
  return {
    kind = kind, prompts = prompts, n = fields.n or 1, stream = fields.stream or false,
    usage = fields.stream_options and fields.stream_options.include_usage or false,
    echo = fields.echo or false, logprobs = count, stops = fields.stop or {},
    ids = fields.return_token_ids or false, made = most,
    submission = {
      max_tokens = math.max(1, most), temperature = fields.temperature or 1, top_p = fields.top_p,
      top_k = fields.top_k, seed = fields.seed, request = fields.request or 0,
      stop = fields.ignore_eos and {} or model.stop, echo = fields.echo and count ~= nil or nil,
      top = count and count > 0 and count or nil,
    },
  }
end

return asked
