--- talk.lua - HTTP to a server on this machine, byte for byte: talk.c, and what it got.
---
---     local talk <close> = talks.start(port, { talks.get "/health", talks.post("/v1/x", body) })
---     local first, second = table.unpack(talk:wait())    { status =, headers =, body = }
---
--- All texts are sent at the same time, each on its own connection; `{ "-drop 50", text }` is
--- a text with options of talk.c for it.
local core = require "tidelock.core"
local new_folder = require "support.folder"
local support = require "support"

local talks = {}

--- A request as it is sent; the connection ends with the answer.
function talks.get(path, headers)
  return ("GET %s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n%s\r\n"):format(path, headers or "")
end

---@param body string|table # a table is sent as JSON
function talks.post(path, body, headers)
  if type(body) == "table" then body = core.json.encode(body) end
  return ("POST %s HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s")
    :format(path, #body, headers or "", body)
end

--- A body in chunks, as one text.
local function dechunk(text)
  local parts, at = {}, 1
  while true do
    local size, behind = text:match("^(%x+)\r\n()", at)
    if not size then return nil, "a chunk has no size" end
    size = tonumber(size, 16)
    if size == 0 then return table.concat(parts), behind + 2 end
    parts[#parts + 1] = text:sub(behind, behind + size - 1)
    at = behind + size + 2
  end
end

--- The first answer in `text` and what stands behind it; nil where there is none.
function talks.parse(text)
  local status, head, at = text:match "^HTTP/1%.%d (%d+)[^\r\n]*\r\n(.-\r\n)\r\n()"
  if not status then return nil, text end
  local answer = { status = tonumber(status), headers = {} }
  for name, value in head:gmatch "([^:\r\n]+): *([^\r\n]*)\r\n" do
    answer.headers[name:lower()] = value
  end
  local length = tonumber(answer.headers["content-length"])
  if answer.headers["transfer-encoding"] == "chunked" then
    local body, stop = dechunk(text:sub(at))
    answer.body, answer.whole = body, body ~= nil
    return answer, body and text:sub(at + stop - 1) or ""
  end
  answer.body = text:sub(at, length and at + length - 1 or -1)
  return answer, length and text:sub(at + length) or ""
end

local Talk = {}
Talk.__index = Talk

---@param port integer
---@param list (string|{ [1]: string, [2]: string })[]
function talks.start(port, list)
  local folder, words = new_folder(), {}
  for i, item in ipairs(list) do
    local text = type(item) == "table" and item[2] or item
    words[#words + 1] = type(item) == "table" and item[1] or ""
    words[#words + 1] = folder:write(("%03d"):format(i), text)
  end
  local program = support.program:gsub("[^/]*$", "support/talk")
  local pipe = assert(io.popen(("echo $$; exec %s %d %s 2>&1"):format(program, port,
    table.concat(words, " "))))
  return setmetatable({ folder = folder, pipe = pipe, pid = pipe:read "l", count = #list }, Talk)
end

--- Waits until all texts have been sent; each of them was given "-tell".
function Talk:sent()
  for _ = 1, self.count do assert(self.pipe:read "l" == "sent") end
end

--- Waits until all connections have ended; the bytes that each got.
function Talk:raw()
  local said = self.pipe:read "a"
  self.pipe:close()
  self.pipe = nil
  assert(said == "", said)
  local list = {}
  for i = 1, self.count do
    list[i] = core.files.read_all(self.folder:path(("%03d.got"):format(i)))
  end
  return list
end

--- The same as answers; false where there was none.
function Talk:wait()
  local list = self:raw()
  for i, text in ipairs(list) do list[i] = talks.parse(text) or false end
  return list
end

--- Ends it, whatever it still waits for.
function Talk:kill()
  os.execute("kill " .. self.pid)
end

--- The same, and nothing of it is left.
function Talk:leave()
  if self.pipe then
    self:kill()
    self.pipe:close()
  end
  self.folder:remove()
end
Talk.__close = Talk.leave

--- One request, its answer.
function talks.ask(port, text)
  local talk <close> = talks.start(port, { text })
  return talk:wait()[1]
end

--- What a stream of server-sent events says: the data of each.
function talks.events(body)
  local list = {}
  for data in body:gmatch "data: ([^\n]*)\n\n" do list[#list + 1] = data end
  return list
end

return talks
