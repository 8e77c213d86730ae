--- `./tl serve MODEL`: OpenAI's API over HTTP, for one model.
--
--     ./tl serve runs/quickstart-eaf6 --port 8000
--     curl localhost:8000/v1/completions -d '{"prompt": "You may copy", "seed": 1}'
--
--   server thread   protocol, limits, key, /health /metrics /v1/models      runtime/http.h
--   this loop       requests in -> engine:step() -> events out, until a signal comes
--
-- A request that waits for the engine has a place in its queue; what is more gets 429. Text, tokens
-- and log-probabilities are those of ./tl generate for the same (seed, request, position), whoever
-- else is served at the time.

local answers = require "tidelock.serve.answers"
local asked = require "tidelock.serve.asked"
local chat = require "tidelock.serve.chat"
local core = require "tidelock.core"
local engine = require "tidelock.serve.engine"
local loader = require "tidelock.run.loader"
local requests = require "tidelock.plan.requests"
local serve_metrics = require "tidelock.serve.metrics"

local serve = {}

local queue_default, body_default, timeout_default = 64, 4 << 20, 30
local metrics_every = 0.25 -- seconds, while the engine works

local function usage(format, ...)
  error({ status = 2, message = "tidelock: serve: " .. format:format(...) }, 0)
end

local paths = { ["/v1/completions"] = "completions", ["/v1/chat/completions"] = "chat",
  ["/tokenize"] = "tokenize", ["/detokenize"] = "detokenize" }
local pages = { ["/v1/models"] = true, ["/health"] = true, ["/metrics"] = true }

---@class tidelock.Server
---@field http tidelock.Http
---@field engine tidelock.Engine
---@field model table # name, context, tokenizer, stop, chat: what asked.read wants
---@field owners table<integer, tidelock.Choice> # by number of the engine's request
---@field jobs table<integer, table> # by number of the HTTP request
local Server = {}
Server.__index = Server

function Server:refuse(id, refusal)
  self.metrics:answered(refusal.status)
  self.http:reply(id, refusal.status, answers.error(refusal.status, refusal.message, refusal.param,
    refusal.code), "application/json", (refusal.status == 429 or refusal.status == 503) and 1 or 0,
    refusal.allow)
end

--- Ends the choices of a job that the engine still works for.
local function cancel(self, job)
  for _, choice in ipairs(job.choices) do
    if self.owners[choice.engine_id] then
      self.owners[choice.engine_id] = nil
      self.engine:cancel(choice.engine_id)
    end
  end
end

--- Whether so many choices more may wait; running ones do not count.
local function has_room(self, count)
  local stats = self.engine:stats()
  local free = self.engine.sizes.requests - stats.running
  return stats.waiting + count <= free + self.queue
end

--- Hands the choices to the engine. Returns nil and what is wrong when it wants none of them.
local function submit(self, job)
  local wanted, first = job.wanted, job.wanted.submission.request
  for _, prompt in ipairs(wanted.prompts) do
    for k = 0, wanted.n - 1 do
      local given = { tokens = prompt, request = first + k }
      for name, value in pairs(wanted.submission) do given[name] = given[name] or value end
      local id, message = self.engine:submit(given)
      if not id then
        cancel(self, job)
        return nil, { status = 400, message = message }
      end
      local choice = answers.choice(job, #job.choices, prompt)
      choice.engine_id = id
      table.insert(job.choices, choice)
      self.owners[id] = choice
    end
  end
  return true
end

local function begin(self, event, kind)
  local wanted, refusal = asked.read(kind, event.body, self.model)
  if not wanted then return self:refuse(event.id, refusal) end
  local count, all = #wanted.prompts * wanted.n, self.engine.sizes.requests + self.queue
  if count > all then
    return self:refuse(event.id, { status = 400, message = ("%d choices in one request; this "
      .. "server has room for %d"):format(count, all) })
  end
  if not has_room(self, count) then
    return self:refuse(event.id, { status = 429, message = ("%d more are too many: %d requests run "
      .. "and %d wait, of at most %d and %d"):format(count, self.engine:stats().running,
      self.engine:stats().waiting, self.engine.sizes.requests, self.queue) })
  end
  self.last_job = self.last_job + 1
  local job = { http_id = event.id, wanted = wanted, model = self.model, choices = {},
    created = os.time(), came = core.files.seconds(),
    id = (kind == "chat" and "chatcmpl-%d" or "cmpl-%d"):format(self.last_job) }
  local good, why = submit(self, job)
  if not good then return self:refuse(event.id, why) end
  self.jobs[event.id], job.open = job, #job.choices
  if not wanted.stream then return end
  self.http:begin(event.id, "text/event-stream")
  for _, choice in ipairs(job.choices) do
    local text = answers.opening(choice)
    if text ~= "" then self.http:send(event.id, text) end
  end
end

--- Answers what needs the tokenizer alone.
local function tell_words(self, event, kind)
  local wanted, refusal = asked.words(kind, event.body, self.model, self.engine.vocab)
  if not wanted then return self:refuse(event.id, refusal) end
  self.metrics:answered(200)
  self.http:reply(event.id, 200, kind == "tokenize" and answers.tokens(wanted, self.model)
    or answers.prompt(wanted, self.model))
end

--- A request, or the news that the client of one has left.
local function take(self, event)
  local job = self.jobs[event.id]
  if event.gone then
    if not job then return end
    cancel(self, job)
    self.jobs[event.id] = nil
    self.metrics:left()
    return
  end
  local kind = paths[event.path]
  local allow = kind and "POST" or pages[event.path] and "GET, HEAD"
  if pages[event.path] and (event.method == "GET" or event.method == "HEAD") then
    -- the server's thread answers these; it listens a moment before it has the pages
    return self:refuse(event.id, { status = 503, message = "this server begins; ask again" })
  end
  if allow and allow ~= event.method then
    return self:refuse(event.id, { status = 405, allow = allow,
      message = ("%s is answered to %s, not to %s"):format(event.path, allow:match "%a+",
        event.method) })
  end
  if not kind then
    return self:refuse(event.id, { status = 404, message = ("%s %s is not here; there are POST "
      .. "/v1/completions, /v1/chat/completions, /tokenize and /detokenize, GET /v1/models, "
      .. "/health and /metrics")
      :format(event.method, event.path) })
  end
  if kind == "tokenize" or kind == "detokenize" then return tell_words(self, event, kind) end
  begin(self, event, kind)
end

--- The job has all its choices.
local function complete(self, job)
  self.jobs[job.http_id] = nil
  self.metrics:answered(200)
  self.metrics:whole(core.files.seconds() - job.came)
  if job.wanted.stream then
    self.http:send(job.http_id, answers.closing(job))
    self.http:finish(job.http_id)
  else
    self.http:reply(job.http_id, 200, answers.whole(job))
  end
end

--- What an event of the engine means for the client that waits for it.
local function deliver(self, event)
  local choice = self.owners[event.id]
  if not choice or not event.token then return end -- its client has left, or it met its stop
  local job, made_before = choice.job, choice.made
  local text = answers.take(choice, event)
  local is_made = choice.made > made_before -- not of a prompt, and asked for
  if is_made then
    self.metrics:token(made_before == 0 and core.files.seconds() - job.came)
  end
  if job.wanted.stream and (text ~= "" or choice.finish or #choice.rows > 0 or job.wanted.ids) then
    local ids = core.json.array { is_made and event.token or nil }
    self.http:send(job.http_id, answers.part(choice, text, ids))
  end
  if not choice.finish then return end
  self.owners[event.id] = nil
  if not event.finish then self.engine:cancel(event.id) end
  job.open = job.open - 1
  if job.open == 0 then complete(self, job) end
end

--- One step of the engine. A failure of the program is told to everybody who waits, and raised.
local function step(self)
  local good, events = pcall(self.engine.step, self.engine)
  if not good then
    local message = tostring(type(events) == "table" and events.message or events)
    for id, job in pairs(self.jobs) do
      self.metrics:answered(500)
      if job.wanted.stream then
        self.http:send(id, answers.broken(message))
        self.http:finish(id)
      else
        self.http:reply(id, 500, answers.error(500, message))
      end
    end
    error(events, 0)
  end
  for _, event in ipairs(events) do deliver(self, event) end
end

local function show_metrics(self)
  self.shown = core.files.seconds()
  self.http:page("/metrics", "text/plain; version=0.0.4; charset=utf-8",
    self.metrics:text(self.engine:stats()))
end

local function show_health(self, state)
  self.http:page("/health", "application/json", core.json.encode { status = state } .. "\n", true)
end

--- Serves until a signal comes, then answers what it has.
function Server:run()
  local ending
  while true do
    local idle = self.engine:idle()
    if idle or core.files.seconds() - self.shown > metrics_every then show_metrics(self) end
    if core.interrupted() and not ending then
      ending = true
      self.http:refuse()
      show_health(self, "ending")
    end
    local event = self.http:next(idle and not ending and 0.25 or 0)
    if ending and idle and not event then return end
    while event do
      take(self, event)
      event = self.http:next(0)
    end
    if not self.engine:idle() then step(self) end
  end
end

local function models_page(model)
  return core.json.encode { object = "list", data = core.json.array { { id = model.name,
    object = "model", created = os.time(), owned_by = "tidelock",
    max_model_len = model.context } } } .. "\n"
end

--- Everything but the loop. `options` has host, port, key, queue, body, timeout.
---@param model table
---@param e tidelock.Engine
---@return tidelock.Server
function serve.open(model, e, options)
  local queue = options.queue or queue_default
  local http, message = core.http {
    host = options.host or "127.0.0.1", port = options.port, key = options.key,
    body_bytes = options.body or body_default, timeout = options.timeout or timeout_default,
    open = e.sizes.requests + queue, connections = 2 * (e.sizes.requests + queue) + 64,
  }
  if not http then usage("%s", message) end
  local self = setmetatable({ http = http, engine = e, model = model, owners = {}, jobs = {},
    queue = queue, last_job = 0, metrics = serve_metrics.new(model.name, http) }, Server)
  http:page("/v1/models", "application/json", models_page(model))
  show_health(self, "ok")
  show_metrics(self)
  return self
end

function Server:close() self.http:close() end
Server.__close = Server.close

--- The first line of a file: a key on the command line would be seen by everybody here.
local function read_key(path)
  if not path then return nil end
  local text, message = core.files.read_all(path)
  if not text then usage("--key-file: %s", message) end
  local key = text:match "^[^\r\n]*"
  if #key < 8 or key:find "[^\33-\126]" then
    usage("--key-file: %s: its first line is to be a key of 8 characters or more, without spaces",
      path)
  end
  return key
end

local most = { port = 65535, queue = 100000, body = 1 << 30, timeout = 86400 }

local function check_sizes(options)
  for _, name in ipairs { "port", "queue", "body", "timeout" } do
    if options[name] and options[name] > most[name] then
      usage("--%s %d: at most %d", name, options[name], most[name])
    end
  end
end

local function is_loopback(host) return host == "::1" or host:find "^127%." ~= nil end

--- Whoever reaches the server can use it: from elsewhere only with a key, or where that is wanted.
local function check_key(options, key, host)
  if key and options.no_key then usage("--key-file and --no-key: one of them") end
  local in_numbers = host:find ":" or not host:find "[^%d.]" -- else it is refused as no address
  if key or options.no_key or is_loopback(host) or not in_numbers then return end
  usage("--host %s can be reached from elsewhere, and everybody there could use the model; "
    .. "--key-file FILE: clients need its first line; --no-key: they need none", host)
end

--- The command.
---@param request tidelock.Request
function serve.command(request)
  local options = request.options
  check_sizes(options)
  local key, host = read_key(options.key_file), options.host or "127.0.0.1"
  if host == "localhost" then host = "127.0.0.1" end
  check_key(options, key, host)
  local loaded = loader.open(request.words[1], request.overrides, options)
  loader.needs_words(loaded)
  local e <close> = requests.guarded(engine.open, loaded, { threads = options.threads })
  loader.note_words(loaded, e.vocab)
  collectgarbage "generational" -- the model stays, events go: else one long pause looks at all
  local words = (options.tokenizer or loaded.path):gsub("/tokenizer%.json$", "")
  local render, no_chat = chat.open(options.tokenizer ~= "bytes" and words or nil)
  local model = {
    name = options.name or loaded.path:match "[^/]+$", context = e.context,
    stop = loaded.stop or {}, tokenizer = loaded.tokenizer, chat = render,
    fingerprint = "tidelock-" .. core.build().version,
  }
  local server <close> = serve.open(model, e, { host = host, port = options.port or 8000,
    key = key, queue = options.queue, body = options.body, timeout = options.timeout })
  core.catch_interrupts()
  if not key and not is_loopback(host) then
    io.stderr:write(("serve: %s can be reached from elsewhere, and no key is needed\n")
      :format(host))
  end
  print(("%s: http://%s:%d/v1, %d request%s at a time, context %d"):format(loaded.description,
    host:find ":" and "[" .. host .. "]" or host, server.http:port(), e.sizes.requests,
    e.sizes.requests == 1 and "" or "s", e.context))
  if no_chat then print("no /v1/chat/completions: " .. no_chat) end
  io.stdout:flush()
  server:run()
  print(("serve: %s"):format(server.metrics:summary()))
  return 0
end

return serve
