-- ./tl serve over real sockets: what a request gives does not depend on who else asks, and nobody
-- can break it for others.
local core = require "tidelock.core"
local servers = require "support.server"
local support = require "support"
local talks = require "support.talk"

local model, server

setup(function()
  model = servers.train()
  server = servers.start(model.path, "serve.requests=5 serve.page=4 serve.context=256 --queue 40")
end)
teardown(function()
  server:stop()
  model.folder:remove()
end)

local function decode(answer) return core.json.decode(answer.body) end

--- Tokens and log-probabilities as one text: what may not differ in a bit.
local function bits(choice)
  return core.json.encode { choice.text, choice.token_ids, choice.logprobs.token_logprobs }
end

local function refused(status, pattern, body, path)
  local answer = server:ask(path or "/v1/completions", body)
  assert.equal(status, answer.status, answer.body)
  local problem = decode(answer).error
  assert.matches(pattern, problem.message)
  assert.is_string(problem.type)
  return problem
end

describe("words", function()
  local function asked(path, body)
    local answer = server:ask(path, body)
    assert.equal(200, answer.status, answer.body)
    return decode(answer)
  end

  it("are made to tokens and back, whatever they are (H29)", function()
    for _, text in ipairs { "Tides", "", "\0", "a\u{20AC}b\u{FFFD}", (" "):rep(1 << 20) } do
      local answer = asked("/tokenize", { prompt = text })
      assert.equal(#text, answer.count)
      assert.equal(256, answer.max_model_len)
      assert.is_true(answer.token_strs == core.json.null)
      local tokens = core.json.array(answer.tokens)
      assert.is_true(asked("/detokenize", { tokens = tokens }).prompt == text)
    end
    local answer = asked("/tokenize", { prompt = "T\u{E9}", return_token_strs = true })
    assert.same({ 84, 0xC3, 0xA9 }, answer.tokens)
    assert.same({ "T", "\u{FFFD}", "\u{FFFD}" }, answer.token_strs)
    local cut = asked("/detokenize", { tokens = core.json.array { 84, 0xC3 } })
    assert.equal("T\u{FFFD}", cut.prompt)
  end)

  it("that are none are refused with the place and the vocabulary (H29)", function()
    local function ids(...) return { tokens = core.json.array { 84, ... } } end
    for _, id in ipairs { -1, 256, 1 << 31 } do
      local text = ("^token 1 is %d; ids are 0 to 255$"):format(id):gsub("-", "%%-")
      local problem = refused(400, text, ids(id), "/detokenize")
      assert.equal("tokens", problem.param)
    end
    refused(400, "tokens is %[84,\"T\"%]; it can be a list of token ids", ids "T", "/detokenize")
    refused(400, "tokens is absent; it can be a list", {}, "/detokenize")
    refused(400, "one of prompt and messages", {}, "/tokenize")
    refused(400, "\"promt\" is no field of this request; did you mean prompt?", { promt = "x" },
      "/tokenize")
    refused(400, "has no chat template", { messages = core.json.array { { role = "user",
      content = "Hi" } } }, "/tokenize")
    refused(404, "this server has", { prompt = "x", model = "gpt-9" }, "/tokenize")
    refused(405, "is answered to POST", nil, "/detokenize")
  end)
end)

describe("a completion", function()
  it("is the text of ./tl generate", function()
    local text, status = support.run(("generate %s 'Ti des' --tokens 20 --quiet --temperature 0.8 "
      .. "--top-p 0.9 --seed 7"):format(model.path))
    assert.equal(0, status, text)
    local ids = support.run(("generate %s 84,105 --ids --tokens 20 --quiet --temperature 0.8 "
      .. "--top-p 0.9 --seed 7"):format(model.path))
    local asked = { max_tokens = 20, temperature = 0.8, top_p = 0.9, seed = 7 }
    asked.prompt, asked.return_token_ids = core.json.array { 84, 105 }, true
    assert.equal(ids, table.concat(server:choices(asked)[1].token_ids, ",") .. "\n")
    asked.prompt = "Ti des"
    local choice = server:choices(asked)[1]
    assert.equal("length", choice.finish_reason)
    if utf8.len(text) then assert.equal(text, choice.text .. "\n") end
  end)

  it("has the same bits alone, among sixteen others, and as a stream", function()
    local asked = { prompt = "The tide comes and goes", max_tokens = 60, temperature = 1, seed = 3,
      logprobs = 0, return_token_ids = true }
    local alone = bits(server:choices(asked)[1])
    local list = {}
    for i = 1, 17 do
      list[i] = talks.post("/v1/completions", { prompt = ("The tide comes "):rep(i % 4 + 1) .. i,
        max_tokens = 20 + 7 * i, temperature = i % 3, seed = i, n = i % 5 == 0 and 2 or 1 })
    end
    list[9] = talks.post("/v1/completions", asked)
    local crowd <close> = talks.start(server.port, list)
    local answers = crowd:wait()
    for i, answer in ipairs(answers) do assert.equal(200, answer.status, i .. answer.body) end
    assert.equal(alone, bits(decode(answers[9]).choices[1]))
    asked.stream = true
    local text, ids, logprobs = {}, core.json.array {}, core.json.array {}
    local events = talks.events(server:ask("/v1/completions", asked).body)
    assert.equal("[DONE]", table.remove(events))
    for _, event in ipairs(events) do
      local choice = core.json.decode(event).choices[1]
      text[#text + 1] = choice.text
      table.move(choice.token_ids, 1, #choice.token_ids, #ids + 1, ids)
      local new = choice.logprobs.token_logprobs
      table.move(new, 1, #new, #logprobs + 1, logprobs)
    end
    assert.equal(alone, bits { text = table.concat(text), token_ids = ids,
      logprobs = { token_logprobs = logprobs } })
  end)

  it("streams no token that was not asked for", function()
    local asked = { prompt = "Ti", max_tokens = 0, echo = true, return_token_ids = true }
    assert.same({}, server:choices(asked)[1].token_ids)
    asked.stream = true
    local events = talks.events(server:ask("/v1/completions", asked).body)
    assert.equal("[DONE]", table.remove(events))
    local finish
    for _, event in ipairs(events) do
      local choice = core.json.decode(event).choices[1]
      assert.same({}, choice.token_ids)
      finish = choice.finish_reason
    end
    assert.equal("length", finish)
  end)

  it("takes texts, ids, and lists of them; n choices of each", function()
    local one = server:choices { prompt = "Tide", seed = 2, n = 3 }
    assert.equal(3, #one)
    assert.not_equal(one[1].text, one[2].text)
    assert.equal(one[2].text, server:choices { prompt = "Tide", seed = 2, request = 1 }[1].text)
    local many = server:choices { prompt = core.json.array { "Sea", "Tide" }, seed = 2, n = 3 }
    for i = 0, 5 do assert.equal(i, many[i + 1].index) end
    for i = 1, 3 do assert.equal(one[i].text, many[3 + i].text) end
    local ids = core.json.array { core.json.array { 83, 101, 97 },
      core.json.array { 84, 105, 100, 101 } }
    local same = server:choices { prompt = ids, seed = 2, n = 3 }
    for i = 1, 6 do assert.equal(many[i].text, same[i].text) end
  end)

  it("echoes the prompt, with its log-probabilities", function()
    local asked = { prompt = "Tides come", echo = true, logprobs = 2, max_tokens = 0,
      temperature = 0 }
    local choice = server:choices(asked)[1]
    assert.equal("Tides come", choice.text)
    assert.equal(10, #choice.logprobs.tokens)
    assert.equal(core.json.null, choice.logprobs.token_logprobs[1])
    assert.equal("T", choice.logprobs.tokens[1])
    assert.same({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }, { table.unpack(choice.logprobs.text_offset) })
    asked.max_tokens = 3
    local more = server:choices(asked)[1]
    assert.equal(13, #more.logprobs.tokens)
    for i = 2, 10 do
      assert.equal(choice.logprobs.token_logprobs[i], more.logprobs.token_logprobs[i])
    end
    assert.equal("Tides come", more.text:sub(1, 10))
    local best = more.logprobs.top_logprobs[12]
    assert.equal(more.logprobs.token_logprobs[12], best[more.logprobs.tokens[12]])
  end)

  it("ends in front of a stop, in one piece and as a stream", function()
    local asked = { prompt = "Tides come and go.", max_tokens = 40, seed = 4 }
    local whole = server:choices(asked)[1].text
    local first = utf8.offset(whole, 12)
    local stop = whole:sub(first, utf8.offset(whole, 3, first) - 1)
    if stop:find "\u{FFFD}" then stop = whole:match("[\1-\127][\1-\127]", 9) end
    local expected = whole:sub(1, whole:find(stop, 1, true) - 1)
    asked.stop = stop
    local choice = server:choices(asked)[1]
    assert.equal(expected, choice.text)
    assert.equal("stop", choice.finish_reason)
    asked.stop, asked.stream = core.json.array { "never there", stop }, true
    local text = {}
    for _, event in ipairs(talks.events(server:ask("/v1/completions", asked).body)) do
      if event ~= "[DONE]" then table.insert(text, core.json.decode(event).choices[1].text) end
    end
    assert.equal(expected, table.concat(text))
    server:await("running", 0)
  end)

  it("counts tokens", function()
    local answer = decode(server:ask("/v1/completions", { n = 2, max_tokens = 5,
      prompt = core.json.array { "Sea", "Tide" } }))
    assert.same({ prompt_tokens = 7, completion_tokens = 20, total_tokens = 27 }, answer.usage)
    local events = talks.events(server:ask("/v1/completions", { prompt = "Sea", max_tokens = 5,
      stream = true, stream_options = { include_usage = true } }).body)
    assert.same({ prompt_tokens = 3, completion_tokens = 5, total_tokens = 8 },
      core.json.decode(events[#events - 1]).usage)
  end)
end)

describe("a chat", function()
  it("is the completion of what its template makes of it", function()
    local config = "runs/" .. model.path:match "[^/]+$" .. "/tokenizer_config.json"
    model.folder:write(config, core.json.encode { chat_template = "{% for m in messages %}"
      .. "{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:{% if messages[0].role == 'tool' %}"
      .. "{{ raise_exception('no tools') }}{% endif %}{% if shout %}!{% endif %}" })
    local one <close> = servers.start(model.path, "serve.context=256")
    os.remove(model.folder:path(config))
    local messages = core.json.array { { role = "user", content = "Hi" } }
    local asked = { messages = messages, max_completion_tokens = 8, seed = 5, temperature = 1,
      logprobs = true, top_logprobs = 2, return_token_ids = true }
    local given = decode(one:ask("/v1/chat/completions", asked))
    local plain = one:choices { prompt = "u:Hi\na:", max_tokens = 8, seed = 5, logprobs = 2,
      return_token_ids = true }[1]
    assert.same({ ("u:Hi\na:"):byte(1, -1) },
      decode(one:ask("/tokenize", { messages = messages })).tokens)
    local choice = given.choices[1]
    assert.equal("assistant", choice.message.role)
    assert.equal(plain.text, choice.message.content)
    assert.same({ table.unpack(plain.token_ids) }, { table.unpack(choice.token_ids) })
    for i, entry in ipairs(choice.logprobs.content) do
      assert.equal(plain.logprobs.token_logprobs[i], entry.logprob)
      assert.equal(2, #entry.top_logprobs)
    end
    asked.stream, asked.chat_template_kwargs = true, { shout = true }
    local text = {}
    for _, event in ipairs(talks.events(one:ask("/v1/chat/completions", asked).body)) do
      local delta = event ~= "[DONE]" and core.json.decode(event).choices[1].delta or {}
      text[#text + 1] = delta.content
    end
    assert.equal(one:choices { prompt = "u:Hi\na:!", max_tokens = 8, seed = 5 }[1].text,
      table.concat(text))
    asked.messages[1].role = "tool"
    local answer = one:ask("/v1/chat/completions", asked)
    assert.equal(400, answer.status)
    assert.matches("the chat template of this model: no tools", decode(answer).error.message)
    asked.messages[1] = { role = "user", content = core.json.array { { type = "image_url" } } }
    answer = one:ask("/v1/chat/completions", asked)
    assert.matches("message 0 is .*parts of type text", decode(answer).error.message)
  end)

  it("is refused where there is no template", function()
    local answer = server:ask("/v1/chat/completions", { messages = core.json.array {
      { role = "user", content = "Hi" } } })
    assert.equal(400, answer.status)
    assert.matches("has no chat template; send a prompt, to /v1/completions or /tokenize$",
      decode(answer).error.message)
  end)
end)

describe("a bad request", function()
  it("is refused with all its reasons", function()
    local problem = refused(400, "max_tokens is %-5; .*n is 99; .*promt.*did you mean prompt%?",
      { promt = "x", max_tokens = -5, n = 99 })
    assert.equal("max_tokens", problem.param)
    refused(400, "prompt is absent", {})
    refused(400, "empty prompt", { prompt = "" })
    refused(400, "prompt is %[%]", { prompt = core.json.array {} })
    refused(400, "the prompt has 300 tokens, and a request 256", { prompt = ("x"):rep(300) })
    refused(400, "max_tokens is 300, and prompt 0 of 1 tokens leaves 255 of the context of 256",
      { prompt = "x", max_tokens = 300 })
    refused(400, "token 1 of the prompt is 256; ids are 0 to 255",
      { prompt = core.json.array { 1, 256 } })
    refused(400, "token 0 of the prompt is %-1", { prompt = core.json.array { -1 } })
    refused(400, "token 0 of the prompt is 2147483648", { prompt = core.json.array { 1 << 31 } })
    refused(400, "prompt 1 is {}", { prompt = core.json.array { "x", {} } })
    refused(400, "prompt 0 is 1; it can be a text or token ids",
      { prompt = core.json.array { 1, "x" } })
    refused(400, "temperature is \"warm\"; it can be a number",
      { prompt = "x", temperature = "warm" })
    for _, share in ipairs { 0, -1, 2 } do
      refused(400, ("top_p is %d; it can be a number above 0, up to 1"):format(share)
        :gsub("%-", "%%-"), { prompt = "x", top_p = share })
    end
    refused(400, "seed is 1.5; it can be a whole number", { prompt = "x", seed = 1.5 })
    refused(400, "stop is %[\"\"%]", { prompt = "x", stop = core.json.array { "" } })
    refused(400, "frequency_penalty is 1; .*does not do it",
      { prompt = "x", frequency_penalty = 1 })
    refused(400, "best_of is 3 and n is 2", { prompt = "x", best_of = 3, n = 2 })
    refused(400, "stream_options needs",
      { prompt = "x", stream_options = { include_usage = true } })
    refused(400, "max_tokens is 0, which means something with echo only",
      { prompt = "x", max_tokens = 0 })
    assert.equal("model_not_found", refused(404, "this server has", { prompt = "x",
      model = "gpt-9" }).code)
  end)

  it("is refused where it is no JSON", function()
    refused(400, "JSON, line 1", "{\"prompt\":")
    refused(400, "prompt 0 is nested too deep to be shown; it can be a text",
      "{\"prompt\":" .. ("["):rep(1900) .. ("]"):rep(1900) .. "}")
    refused(400, "no JSON object", "[1]")
    refused(400, "the body is empty; it can be a JSON object", "")
    refused(400, "JSON, line 1, column 11: unable to decode byte 0xff", "{\"prompt\":\"\xff\xfe\"}")
    refused(400, "JSON", ("["):rep(100000))
    refused(400, "JSON", "{\"seed\":99999999999999999999999}")
    refused(400, "JSON", "{\"prompt\":\"a\",\"prompt\":\"b\"}")
    refused(400, "JSON", "{\"prompt\":\"\\ud800\"}")
    refused(400, "messages is absent", {}, "/v1/chat/completions")
    refused(404, "POST /v2 is not here", {}, "/v2")
    refused(400, "no JSON object", "[1]", "/tokenize")
    for path, allow in pairs { ["/v1/models"] = "GET, HEAD", ["/v1/completions"] = "POST" } do
      local answer = talks.ask(server.port, (talks.get(path):gsub("^GET", "DELETE")))
      assert.same({ 405, allow }, { answer.status, answer.headers.allow }, answer.body)
      assert.matches(path .. " is answered to " .. allow:match "%a+", decode(answer).error.message)
    end
  end)

  it("leaves nothing behind, whatever its bytes are", function()
    local list = {}
    local whole = core.json.encode { prompt = "Tide", max_tokens = 3, seed = 1, n = 2, stop = "x" }
    for i = 1, 120 do -- one byte of a good body becomes another
      local at = math.floor((support.fill_value(i, 1) + 1) * 0.5 * #whole) + 1
      local byte = math.floor((support.fill_value(i, 2) + 1) * 128) & 255
      list[i] = talks.post("/v1/completions", whole:sub(1, at - 1) .. string.char(byte)
        .. whole:sub(at + 1))
    end
    for first = 1, #list, 30 do
      local talk <close> = talks.start(server.port, table.move(list, first, first + 29, 1, {}))
      for _, answer in ipairs(talk:wait()) do
        assert.is_true(answer.status == 200 or answer.status == 400 or answer.status == 404
          or answer.status == 429, answer.body)
      end
    end
    server:await("running", 0)
    assert.equal(server:metric "pages", server:metric "pages_free" + server:metric "pages_kept")
  end)
end)

describe("the server", function()
  it("says what it is and how it is", function()
    assert.same({ status = "ok" }, decode(server:ask "/health"))
    local models = decode(server:ask "/v1/models")
    assert.equal(model.path:match "[^/]+$", models.data[1].id)
    assert.equal(256, models.data[1].max_model_len)
    refused(400, "JSON", "")
    for _ = 1, 2400 do -- the page is made anew four times a second
      if server:metric 'answers_total{status="400"}' then break end
      core.files.sleep(0.05)
    end
    local text = server:ask("/metrics").body
    local page = core.files.read_all "docs/operations.md"
    for _, family in ipairs(require "tidelock.serve.metrics".families) do
      assert.is_truthy(page:find("`" .. family[1] .. "`", 1, true), family[1])
      local line = ("\n# TYPE %s %s\n"):format(family[1], family[2])
      assert.is_truthy(text:find(line, 1, true), family[1])
    end
    assert.matches('tidelock_serve_answers_total{status="400"} %d+', text)
  end)

  it("frees what belongs to clients that leave, asks no more than it can, and ends well", function()
    local one <close> = servers.start(model.path, -- so long that none comes to its end here
      "serve.requests=2 serve.context=200000 --queue 2 --timeout 600")
    local long = { prompt = "Tides", max_tokens = 190000, n = 2 }
    local streamed = { prompt = "Tides", max_tokens = 190000, n = 2, stream = true }
    local gone <close> = talks.start(one.port, {
      { "-drop 100", talks.post("/v1/completions", long) } })
    one:await("left_total", 1)
    gone:raw()
    local gone_too <close> = talks.start(one.port, {
      { "-drop 100", talks.post("/v1/completions", streamed) } })
    one:await("left_total", 2)
    gone_too:raw()
    one:await("running", 0)
    assert.equal(one:metric "pages", one:metric "pages_free" + one:metric "pages_kept")

    -- Two that run until they are told to leave; then two have room to wait, and others have not.
    streamed.n = 1
    local function hold(count)
      local list = {}
      for i = 1, count do
        list[i] = { "-drop 600000", talks.post("/v1/completions", streamed) }
      end
      return talks.start(one.port, list)
    end
    local running <close> = hold(2)
    one:await("running", 2)
    local many = one:ask("/v1/completions", { prompt = "Tides", n = 3 })
    assert.equal(429, many.status)
    assert.equal("1", many.headers["retry-after"])
    assert.matches("3 more are too many: 2 requests run and 0 wait, of at most 2 and 2",
      decode(many).error.message)
    many = one:ask("/v1/completions", { prompt = "Tides", n = 5 })
    assert.equal(400, many.status)
    assert.matches("5 choices in one request; this server has room for 4",
      decode(many).error.message)
    long.n, long.max_tokens = 1, 3
    local list = {}
    for i = 1, 7 do list[i] = talks.post("/v1/completions", long) end
    local crowd <close> = talks.start(one.port, list)
    one:await('answers_total{status="429"}', 6)
    assert.equal(2, one:metric "waiting")
    running:kill()
    one:await("left_total", 4)
    local counts = { [200] = 0, [429] = 0 }
    for _, answer in ipairs(crowd:wait()) do counts[answer.status] = counts[answer.status] + 1 end
    assert.same({ [200] = 2, [429] = 5 }, counts)

    local again <close> = hold(2)
    one:await("running", 2)
    local waits <close> = talks.start(one.port, {
      { "-drop 0", talks.post("/v1/completions", streamed) } })
    waits:raw()
    one:await("left_total", 5) -- it only waited
    again:kill()
    one:await("left_total", 7)

    local first <close> = hold(1)
    local second <close> = hold(1)
    one:await("running", 2)
    streamed.max_tokens = 200
    local last <close> = talks.start(one.port, { talks.post("/v1/completions", streamed) })
    one:await("waiting", 1)
    one:signal "TERM"
    while decode(one:ask "/health").status ~= "ending" do core.files.sleep(0.05) end
    assert.equal(503, one:ask("/v1/completions", { prompt = "Tides" }).status)
    first:kill() -- now it is the turn of the last one that was taken
    local events = talks.events(last:wait()[1].body)
    assert.equal("[DONE]", events[#events])
    assert.equal("length", core.json.decode(events[#events - 1]).choices[1].finish_reason)
    second:kill()
    local said, status = one:wait()
    assert.equal(0, status)
    assert.matches("serve: %d+ answers with 200, .*tokens made", said)
  end)

  it("goes on when a token has no text, and when a text has no tokens", function()
    local file = model.folder:write("few.json", core.json.encode { -- 11 of the model's 256 ids
      model = { type = "BPE", vocab = { a = 0, b = 1, ab = 10 }, merges = { "a b" } },
    })
    local one <close> = servers.start(model.path, "--tokenizer " .. file)
    for _, stream in ipairs { false, true } do
      local answer = one:ask("/v1/completions", { prompt = "abab", max_tokens = 20, temperature = 1,
        logprobs = 2, stream = stream })
      assert.equal(200, answer.status, answer.body)
    end
    local ids = core.json.array { 200, 10, 255 }
    assert.equal(200, one:ask("/v1/completions", { prompt = ids, echo = true }).status)
    for _, text in ipairs { "abc", "ab\u{20AC}" } do
      local answer = one:ask("/v1/completions", { prompt = text })
      assert.equal(400, answer.status, answer.body)
      assert.matches("the tokenizer cannot read it: .*no token for",
        core.json.decode(answer.body).error.message)
    end
    assert.equal(200, one:ask("/health").status)
  end)

  it("drops a client that does not read, and frees what it had", function()
    local one <close> = servers.start(model.path, "serve.context=30000 --timeout 1")
    local talk <close> = talks.start(one.port, { { "-drop 600000", talks.post("/v1/completions",
      { prompt = "Tides", max_tokens = 29000, n = 4, stream = true, logprobs = 0 }) } })
    one:await("left_total", 1) -- the client is connected all the time
    one:await("running", 0)
    talk:kill()
  end)

  it("wants the key of its file", function()
    local path = model.folder:write("key", "tide-tide-tide\n")
    local one <close> = servers.start(model.path, "--key-file " .. path)
    assert.equal(401, one:ask("/v1/completions", { prompt = "x" }).status)
    assert.equal(401, one:ask("/metrics").status)
    assert.equal(200, one:ask("/health").status)
    local key = "Authorization: Bearer tide-tide-tide\r\n"
    assert.equal(200, one:ask("/v1/completions", { prompt = "x" }, key).status)
    assert.equal(200, one:ask("/metrics", nil, key).status)
  end)

  it("needs no key beyond this machine where it is told so, and says it", function()
    local one <close> = servers.start(model.path, "--host 0.0.0.0 --no-key")
    assert.matches("serve: 0%.0%.0%.0 can be reached from elsewhere, and no key is needed",
      table.concat(one.said, "\n"))
    assert.equal(200, one:ask("/v1/completions", { prompt = "x" }).status)
  end)

  it("says why it cannot start", function()
    local function fails(pattern, words)
      local text, status = support.run(("serve %s %s"):format(model.path, words))
      assert.equal(2, status, text)
      assert.matches(pattern, text)
    end
    fails("127.0.0.1, port %d+: Address already in use", "--port " .. server.port)
    fails("%-%-port 65536: at most 65535", "--port 65536")
    fails("%-%-queue 100001: at most 100000", "--queue 100001")
    fails("%-%-body 1073741825: at most 1073741824", "--body 1073741825")
    fails("%-%-timeout 86401: at most 86400", "--timeout 86401")
    fails("tide.example is no address in numbers", "--host tide.example")
    fails("key of 8 characters or more", "--key-file " .. model.folder:write("short", "abc"))
    fails("%-%-key%-file: .*nowhere", "--key-file nowhere")
    fails("serve.pages: 1 pages of", "serve.pages=1 serve.context=1000")
    fails("%-%-host 0%.0%.0%.0 can be reached from elsewhere, .*%-%-key%-file FILE.*%-%-no%-key",
      "--host 0.0.0.0")
    fails("%-%-host :: can be reached from elsewhere", "--host ::")
    fails("%-%-key%-file and %-%-no%-key: one of them",
      "--no-key --key-file " .. model.folder:write("long", "tide-tide-tide"))
    local text, status = support.run "serve runs/none"
    assert.equal(2, status)
    assert.matches("there is no folder runs/none", text)
  end)
end)
