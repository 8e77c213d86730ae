--- answers.lua - what ./tl serve says: the objects of OpenAI's API, made from events of the engine.
---
---     job       one HTTP request: { wanted, choices, id, created }
---     choice    one engine request: its text, tokens and log-probabilities so far
---
--- Beside what the API has, a choice has token_ids, and in completions prompt_token_ids, where
--- return_token_ids asks for them. A log-probability is the f32 of the engine, exactly.
local core = require "tidelock.core"
local pieces = require "tidelock.serve.pieces"

local answers = {}

local json = core.json

--- An error as the API has it; `code` and `param` may be nil.
function answers.error(status, message, param, code)
  local kind = status == 429 and "rate_limit_error" or status >= 500 and "server_error"
    or "invalid_request_error"
  return json.encode { error = { message = pieces.valid(message), type = kind,
    param = param or json.null, code = code or json.null } } .. "\n"
end

--- The answer of /tokenize: ids, and where asked for the bytes of each as a text.
---@param asked { ids: integer[], strings: boolean }
---@param model table
function answers.tokens(asked, model)
  local strings = asked.strings and json.array {} or json.null
  for i, id in ipairs(asked.strings and asked.ids or {}) do
    strings[i] = pieces.valid((model.tokenizer:token(id)))
  end
  return json.encode { count = #asked.ids, max_model_len = model.context,
    tokens = json.array(asked.ids), token_strs = strings } .. "\n"
end

--- The answer of /detokenize: special tokens stand in the text, too.
---@param asked { ids: integer[] }
---@param model table
function answers.prompt(asked, model)
  return json.encode { prompt = pieces.valid(model.tokenizer:decode(asked.ids, true)) } .. "\n"
end

--- A token as a text; bytes that are no text as the API writes them.
local function token_text(tokenizer, id)
  local bytes = tokenizer:token(id)
  if utf8.len(bytes) then return bytes end
  return "bytes:" .. bytes:gsub(".", function(byte) return ("\\x%02x"):format(byte:byte()) end)
end

local function bytes_of(tokenizer, id)
  local list = json.array { tokenizer:token(id):byte(1, -1) }
  return list
end

--- Characters of a part of a text that may begin or end inside of one.
local function characters(bytes)
  local _, count = bytes:gsub("[^\128-\191]", "")
  return count
end

---@class tidelock.Choice
---@field index integer
---@field prompt integer[]
---@field made integer # tokens
---@field finish string?

---@param job table
---@param index integer # from 0
---@param prompt integer[]
---@return tidelock.Choice
function answers.choice(job, index, prompt)
  local wanted, tokenizer = job.wanted, job.model.tokenizer
  local self = {
    job = job, index = index, prompt = prompt, made = 0, text = {}, ids = json.array {}, offset = 0,
    pieces = pieces.new(tokenizer, prompt, wanted.stops), rows = {},
  }
  local text = (wanted.echo or wanted.logprobs) and pieces.valid(tokenizer:decode(prompt, false))
  if wanted.echo then
    self.text[1] = text
    if wanted.logprobs then
      self.echoed = pieces.new(tokenizer, {}, {})
      self.rows[1] = { token = prompt[1], bytes = self.echoed:bytes(prompt[1]) }
    end
  elseif text then
    self.offset = characters(text)
  end
  return self
end

--- Takes an event. Returns the text that is ready, and "stop" where a stop came.
---@param choice tidelock.Choice
---@param event tidelock.Event
function answers.take(choice, event)
  local wanted = choice.job.wanted
  local made = not event.prompt
  if made and wanted.made == 0 then -- the engine makes one at least; this one was not asked for
    choice.finish = "length"
    return ""
  end
  local ends = event.finish == "stop"
  local bytes = event.prompt and choice.echoed:bytes(event.token)
    or ends and "" or choice.pieces:bytes(event.token)
  if wanted.logprobs then
    table.insert(choice.rows, { token = event.token, bytes = bytes, logprob = event.logprob,
      top = event.top })
  end
  if not made then return "" end
  choice.made = choice.made + 1
  choice.ids[choice.made] = event.token
  choice.finish = event.finish
  local text = choice.pieces:add(bytes, event.finish ~= nil)
  if choice.pieces.stopped then choice.finish = "stop" end
  if text ~= "" then table.insert(choice.text, text) end
  return text
end

-- log-probabilities ------------------------------------------------------------------------------

--- Offsets count characters of prompt and answer together, also where the prompt is not echoed, and
--- only what a token adds to the text: of a special token nothing.
local function completion_logprobs(choice, rows)
  local tokenizer, list = choice.job.model.tokenizer, {}
  for _, name in ipairs { "tokens", "token_logprobs", "top_logprobs", "text_offset" } do
    list[name] = json.array {}
  end
  for i, row in ipairs(rows) do
    list.tokens[i] = token_text(tokenizer, row.token)
    list.token_logprobs[i] = row.logprob or json.null
    list.text_offset[i] = choice.offset
    choice.offset = choice.offset + characters(row.bytes)
    local top = json.null
    if row.top then
      top = {}
      for _, entry in ipairs(row.top) do
        top[token_text(tokenizer, entry.token)] = entry.logprob
      end
      top[token_text(tokenizer, row.token)] = row.logprob
    end
    list.top_logprobs[i] = top
  end
  if choice.job.wanted.logprobs == 0 then list.top_logprobs = json.null end
  return list
end

local function chat_logprobs(choice, rows)
  local tokenizer, content = choice.job.model.tokenizer, json.array {}
  local function entry(token, logprob)
    return { token = token_text(tokenizer, token), logprob = logprob,
      bytes = bytes_of(tokenizer, token) }
  end
  for i, row in ipairs(rows) do
    content[i] = entry(row.token, row.logprob)
    content[i].top_logprobs = json.array {}
    for k, other in ipairs(row.top or {}) do
      content[i].top_logprobs[k] = entry(other.token, other.logprob)
    end
  end
  return { content = content }
end

--- Of all rows that have not been told yet; null where none are wanted.
local function logprobs_of(choice)
  if not choice.job.wanted.logprobs then return json.null end
  local rows = choice.rows
  choice.rows = {}
  local chat = choice.job.wanted.kind == "chat"
  return (chat and chat_logprobs or completion_logprobs)(choice, rows)
end

-- objects ----------------------------------------------------------------------------------------

local function head(job, kind)
  return { id = job.id, object = kind, created = job.created, model = job.model.name,
    system_fingerprint = job.model.fingerprint }
end

--- Counts of tokens; a prompt is counted once, however many choices it has.
function answers.usage(job)
  local prompt, made = 0, 0
  for i, choice in ipairs(job.choices) do
    if (i - 1) % job.wanted.n == 0 then prompt = prompt + #choice.prompt end
    made = made + choice.made
  end
  return { prompt_tokens = prompt, completion_tokens = made, total_tokens = prompt + made }
end

local function add_ids(entry, choice, ids)
  if not choice.job.wanted.ids then return entry end
  entry.token_ids = ids
  if choice.job.wanted.kind == "completions" and ids == choice.ids then
    entry.prompt_token_ids = json.array(table.move(choice.prompt, 1, #choice.prompt, 1, {}))
  end
  return entry
end

--- The answer as a whole.
function answers.whole(job)
  local chat = job.wanted.kind == "chat"
  local object = head(job, chat and "chat.completion" or "text_completion")
  object.usage, object.choices = answers.usage(job), json.array {}
  for i, choice in ipairs(job.choices) do
    local text = table.concat(choice.text)
    local entry = { index = choice.index, finish_reason = choice.finish,
      logprobs = logprobs_of(choice) }
    if chat then
      entry.message = { role = "assistant", content = text }
    else
      entry.text = text
    end
    object.choices[i] = add_ids(entry, choice, choice.ids)
  end
  return json.encode(object) .. "\n"
end

local function event_text(object) return "data: " .. json.encode(object) .. "\n\n" end

--- One part of a stream; `ids` are those of its tokens.
function answers.part(choice, text, ids)
  local job, chat = choice.job, choice.job.wanted.kind == "chat"
  local object = head(job, chat and "chat.completion.chunk" or "text_completion")
  local entry = { index = choice.index, finish_reason = choice.finish or json.null,
    logprobs = logprobs_of(choice) }
  if chat then
    entry.delta = { content = text }
  else
    entry.text = text
  end
  object.choices = json.array { add_ids(entry, choice, ids) }
  if job.wanted.usage then object.usage = json.null end
  return event_text(object)
end

--- What a stream begins with, if anything: the role, or the prompt that is echoed.
function answers.opening(choice)
  local job = choice.job
  if job.wanted.kind == "chat" then
    local object = head(job, "chat.completion.chunk")
    object.choices = json.array { { index = choice.index, delta = { role = "assistant",
      content = "" }, finish_reason = json.null, logprobs = json.null } }
    return event_text(object)
  end
  if job.wanted.echo then return answers.part(choice, choice.text[1], json.array {}) end
  return ""
end

--- What a stream ends with.
function answers.closing(job)
  local text = ""
  if job.wanted.usage then
    local object = head(job, job.wanted.kind == "chat" and "chat.completion.chunk"
      or "text_completion")
    object.choices, object.usage = json.array {}, answers.usage(job)
    text = event_text(object)
  end
  return text .. "data: [DONE]\n\n"
end

--- An error in the middle of a stream.
function answers.broken(message)
  return "data: " .. answers.error(500, message) .. "\n"
end

return answers
