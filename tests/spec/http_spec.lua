-- The HTTP server: requests go to their owner one by one, limits and refusals are its own, and
-- clients that are slow, broken or gone do no harm. Over real sockets, by tests/support/talk.c.
local core = require "tidelock.core"
local support = require "support"
local talks = require "support.talk"

local function open(more)
  local options = { port = 0 }
  for name, value in pairs(more or {}) do options[name] = value end
  return assert(core.http(options))
end

--- The next request or farewell; fails after 20 s.
local function take(server)
  local begin = core.files.seconds()
  while core.files.seconds() - begin < 20 do
    local event = server:next(0.5)
    if event then return event end
  end
  error "nothing came"
end

--- Answers `count` requests with what they said.
local function echo(server, count)
  for _ = 1, count do
    local r = take(server)
    server:reply(r.id, 200, ("%s %s %s"):format(r.method, r.path, r.body), "text/plain")
  end
end

local function message_of(answer) return core.json.decode(answer.body).error.message end

describe("the HTTP server", function()
  it("gives method, path and body to its owner, and its owner's answer to the client", function()
    local server <close> = open()
    local talk <close> = talks.start(server:port(), {
      talks.post("/v1/x?y=1", "tide\0s"), talks.get "/a", "DELETE /b HTTP/1.0\r\n\r\n",
      "HEAD /c HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
    })
    echo(server, 4)
    local answers = talk:wait()
    assert.equal("POST /v1/x tide\0s", answers[1].body)
    assert.equal("text/plain", answers[1].headers["content-type"])
    assert.equal("GET /a ", answers[2].body)
    assert.equal("DELETE /b ", answers[3].body)
    assert.equal("", answers[4].body)
    assert.equal(200, answers[4].status)
    assert.is_nil(server:next(0))
  end)

  it("answers pages while its owner is busy", function()
    local server <close> = open { key = "wave" }
    server:page("/health", "text/plain", "well", true)
    server:page("/metrics", "text/plain", "level 1")
    server:page("/metrics", "text/plain", "level 2")
    local talk <close> = talks.start(server:port(), { talks.get "/health", talks.get "/metrics",
      talks.get("/metrics", "Authorization: Bearer wave\r\n") })
    local answers = talk:wait() -- nobody calls next
    assert.equal("well", answers[1].body)
    assert.equal(401, answers[2].status)
    assert.equal("level 2", answers[3].body)
  end)

  it("wants the whole key", function()
    local server <close> = open { key = "wave" }
    local list = {}
    for _, given in ipairs { "Bearer wav", "Bearer wavewave", "Bearer ", "wave", "Basic wave",
      "Bearer waves", "bearer Wave" } do
      list[#list + 1] = talks.get("/x", ("Authorization: %s\r\n"):format(given))
    end
    local talk <close> = talks.start(server:port(), list)
    for _, answer in ipairs(talk:wait()) do
      assert.equal(401, answer.status)
      assert.equal("Bearer", answer.headers["www-authenticate"])
      assert.matches("wants its key", message_of(answer))
    end
    assert.equal(7, server:refused(401))
    local good <close> = talks.start(server:port(), {
      talks.get("/x", "Authorization: bearer wave\r\n") })
    echo(server, 1)
    assert.equal("GET /x ", good:wait()[1].body)
  end)

  it("has limits of body, header and unanswered requests", function()
    local server <close> = open { body_bytes = 100, header_bytes = 2000, open = 2 }
    local function ask(text) return talks.ask(server:port(), text) end
    local answer = ask(talks.post("/x", ("a"):rep(101)))
    assert.equal(413, answer.status)
    assert.matches("101 bytes, and at most 100", message_of(answer))
    answer = ask(talks.post("/x", ("a"):rep(5000)))
    assert.equal(413, answer.status)
    assert.matches("more than 100 bytes", message_of(answer))
    answer = ask(talks.get("/x", "X: " .. ("a"):rep(3000) .. "\r\n"))
    assert.equal(400, answer.status)
    assert.matches("its headers have more than 2000 bytes", message_of(answer))
    assert.equal(2, server:refused(413))
    assert.equal(1, server:refused(400))
    local two <close> = talks.start(server:port(), { talks.get "/1", talks.get "/2" })
    local first, second = take(server), take(server)
    answer = ask(talks.get "/3")
    assert.equal(429, answer.status)
    assert.equal("1", answer.headers["retry-after"])
    assert.matches("2 requests are unanswered", message_of(answer))
    server:reply(first.id, 200, "one")
    server:reply(second.id, 200, "two")
    two:wait()
    local after <close> = talks.start(server:port(), { talks.get "/4" })
    echo(server, 1)
    assert.equal(200, after:wait()[1].status)
  end)

  it("says as JSON what the library refuses by itself", function()
    local server <close> = open { body_bytes = 100 }
    for i, case in ipairs {
      { 400, "GET\r\n\r\n" }, { 400, ("A"):rep(40000) }, { 400, "GET / HTTP/9.9\r\n\r\n" },
      { 400, "GET /a HTTP/1.1\r\nno colon\r\n\r\n" },
      { 400, "POST /x HTTP/1.1\r\nContent-Length: -5\r\n\r\nabc" },
      { 413, "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc" },
      { 417, "POST /x HTTP/1.1\r\nContent-Length: 9\r\nExpect: magic\r\n\r\n" },
      { 501, "BREW /pot HTTP/1.1\r\n\r\n" }, { 501, "TRACE /x HTTP/1.1\r\n\r\n" },
    } do
      local answer = talks.ask(server:port(), case[2])
      assert.equal(case[1], answer.status, i)
      assert.equal("application/json", answer.headers["content-type"])
      assert.equal("close", answer.headers.connection)
      local problem = core.json.decode(answer.body).error
      assert.equal(case[1] < 500 and "invalid_request_error" or "server_error", problem.type)
      assert.is_true(#problem.message > 20)
    end
    assert.equal(5, server:refused(400))
    assert.equal(2, server:refused(501))
  end)

  it("leaves an answer as it is, whatever it looks like", function()
    local server <close> = open()
    local page = "HTTP/1.1 400 Bad Request\r\n\r\n<HTML></HTML>\n"
    local talk <close> = talks.start(server:port(), { talks.get "/x", talks.get "/y" })
    for _ = 1, 2 do
      local r = take(server)
      if r.path == "/x" then
        server:reply(r.id, 200, page, "text/html")
      else
        server:begin(r.id, "text/html")
        server:send(r.id, page)
        server:finish(r.id)
      end
    end
    for _, answer in ipairs(talk:wait()) do assert.equal(page, answer.body) end
  end)

  it("sends an answer in parts", function()
    local server <close> = open()
    local talk <close> = talks.start(server:port(), { talks.get "/x", "GET /y HTTP/1.0\r\n\r\n" })
    for _ = 1, 2 do
      local r = take(server)
      server:begin(r.id, "text/event-stream")
      for i = 1, 3 do server:send(r.id, ("data: %d\n\n"):format(i)) end
      server:finish(r.id)
    end
    local new, old = table.unpack(talk:wait())
    assert.equal("chunked", new.headers["transfer-encoding"])
    assert.same({ "1", "2", "3" }, talks.events(new.body))
    assert.is_nil(old.headers["transfer-encoding"])
    assert.same({ "1", "2", "3" }, talks.events(old.body))
  end)

  it("says who has left, also where nothing is sent", function()
    local server <close> = open()
    local talk <close> = talks.start(server:port(), { { "-drop 0", talks.get "/x" } })
    local r = take(server)
    local event = take(server)
    assert.same({ id = r.id, gone = true }, event)
    server:reply(r.id, 200, "too late") -- no error, and no other request gets it
    talk:raw()
    local second <close> = talks.start(server:port(), { { "-drop 300", talks.get "/y" } })
    r = take(server)
    server:begin(r.id, "text/plain")
    server:send(r.id, "part")
    assert.same({ id = r.id, gone = true }, take(server))
    server:send(r.id, "more")
    server:finish(r.id)
    second:raw()
  end)

  it("takes pipelined requests one after the other", function()
    local server <close> = open()
    local function plain(path, rest)
      return ("GET %s HTTP/1.1\r\nHost: t\r\n%s\r\n"):format(path, rest or "")
    end
    local talk <close> = talks.start(server:port(), {
      plain "/1" .. plain "/2" .. plain("/3", "Connection: close\r\n"),
    })
    for i = 1, 3 do
      local r = take(server)
      assert.equal("/" .. i, r.path)
      assert.is_nil(server:next(0.05))
      server:reply(r.id, 200, r.path)
    end
    local text = talk:raw()[1]
    for i = 1, 3 do
      local answer
      answer, text = talks.parse(text)
      assert.equal("/" .. i, answer.body)
    end
    assert.equal("", text)
  end)

  it("outlives broken, slow and silent clients", function()
    local server <close> = open { timeout = 1, body_bytes = 1000, header_bytes = 4000 }
    local list = { "", "\r\n\r\n", "\0\255\1", "GET\r\n\r\n", ("A"):rep(9000),
      "GET / HTTP/9.9\r\n\r\n",
      "POST /x HTTP/1.1\r\nContent-Length: 50\r\n\r\nhalf", "POST /x HTTP/1.1\r\nContent-Le",
      "POST /x HTTP/1.1\r\nContent-Length: -5\r\n\r\nabc",
      "POST /x HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
      "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
      "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc",
      "BREW /pot HTTP/1.1\r\n\r\n", "GET http:// HTTP/1.1\r\nConnection: close\r\n\r\n",
      { "-drop 0", "POST /x HTTP/1.1\r\nContent-Length: 500\r\n\r\n" .. ("x"):rep(400) },
      { "-drop -1 -half", "POST /x HTTP/1.1\r\nContent-Length: 50\r\n\r\nhalf" } }
    for i = 1, 60 do -- bytes that no rule chose
      local bytes = {}
      for j = 1, 40 do bytes[j] = math.floor((support.fill_value(i, j) + 1) * 128) & 255 end
      list[#list + 1] = "GET /" .. string.char(table.unpack(bytes)) .. "\r\n\r\n"
    end
    local talk <close> = talks.start(server:port(), list)
    local begin = core.files.seconds()
    while core.files.seconds() - begin < 2.5 do
      local r = server:next(0.1)
      if r and not r.gone then server:reply(r.id, 404, "{}") end
    end
    for i, text in ipairs(talk:raw()) do
      assert.is_true(text == "" or text:find "^HTTP/1" ~= nil, i .. text)
      assert.is_nil(text:find "<HTML>", i)
    end
    local slow <close> = talks.start(server:port(), {
      { "-pace 9 5", talks.post("/slow", ("s"):rep(700)) } })
    echo(server, 1)
    assert.equal("POST /slow " .. ("s"):rep(700), slow:wait()[1].body)
  end)

  it("keeps a stream that is silent for longer than a client may be", function()
    local server <close> = open { timeout = 1 }
    local talk <close> = talks.start(server:port(), { talks.get "/x" })
    local r = take(server)
    server:begin(r.id, "text/plain")
    for i = 1, 2 do
      assert.is_nil(server:next(1.3)) -- nobody has left
      server:send(r.id, "part " .. i)
    end
    server:finish(r.id)
    local answer = talk:wait()[1]
    assert.is_true(answer.whole)
    assert.equal("part 1part 2", answer.body)
    local idle <close> = talks.start(server:port(), { "GET /y HTTP/1.1\r\nHost: t\r\n\r\n" })
    r = take(server)
    server:begin(r.id, "text/plain")
    server:finish(r.id)
    assert.is_true(talks.parse(idle:raw()[1]).whole) -- and ends the connection then
  end)

  it("has so many connections, and lets others wait", function()
    local server <close> = open { connections = 4, timeout = 1 }
    server:page("/health", "text/plain", "well", true)
    local list = {}
    for i = 1, 12 do list[i] = i % 2 == 0 and "" or talks.get "/health" end
    local talk <close> = talks.start(server:port(), list)
    for i, text in ipairs(talk:raw()) do
      if i % 2 == 1 then assert.equal("well", talks.parse(text).body) end
    end
  end)

  it("has no connection more than that, and takes the next in when one ends", function()
    local server <close> = open { connections = 3, open = 8 }
    local early, ids, gets = {}, {}, {}
    for i = 1, 3 do
      early[i] = talks.start(server:port(), { talks.get "/early" })
      ids[i], gets[i] = take(server).id, { "-tell", talks.get "/late" }
    end
    local talk <close> = talks.start(server:port(), gets)
    talk:sent() -- they are there: one more than the limit would come in at once, before the news
    for i = 1, 3 do
      early[i]:leave()
      assert.same({ id = ids[i], gone = true }, take(server))
      local late = take(server)
      assert.equal("/late", late.path)
      ids[i] = late.id
    end
    for i = 1, 3 do server:reply(ids[i], 200, "well", "text/plain") end
    for _, answer in ipairs(talk:wait()) do assert.equal("well", answer.body) end
  end)

  it("refuses before it ends, and sends what it has", function()
    local server = open()
    server:page("/health", "text/plain", "well", true)
    local talk <close> = talks.start(server:port(), { talks.get "/x" })
    local r = take(server)
    server:refuse()
    assert.equal(503, talks.ask(server:port(), talks.get "/y").status)
    assert.equal("well", talks.ask(server:port(), talks.get "/health").body)
    local long = ("tide "):rep(200000)
    server:reply(r.id, 200, long, "text/plain")
    server:close()
    assert.equal(#long, #talk:wait()[1].body)
    assert.has_error(function() server:next(0) end)
  end)

  it("drops those who wait when it is closed", function()
    local server = open()
    local talk <close> = talks.start(server:port(), { talks.get "/x" })
    take(server)
    server:close()
    assert.same({ "" }, talk:raw())
  end)

  it("says why it cannot have an address", function()
    local server <close> = open()
    local other, message = core.http { port = server:port() }
    assert.is_nil(other)
    assert.equal(("127.0.0.1, port %d: Address already in use"):format(server:port()), message)
    assert.matches("tide.example is no address in numbers",
      select(2, core.http { host = "tide.example", port = 0 }))
    assert.has_error(function() core.http { port = 70000 } end, "port: an integer from 0 to 65535")
    assert.has_error(function() core.http { key = 7 } end, "key: a text")
    local six, why = core.http { host = "::1", port = 0 }
    if six then
      assert.is_true(six:port() > 0)
      six:close()
    else
      assert.matches("::1", why)
    end
  end)
end)
