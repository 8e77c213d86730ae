--- server.lua - a small model that was trained for three steps, and ./tl serve for it.
---
---     local model <close> = servers.train()
---     local server <close> = servers.start(model.path, "serve.requests=3 --queue 2")
---     server:ask("/v1/completions", { prompt = "Ti" })       -> { status =, headers =, body = }
local core = require "tidelock.core"
local new_folder = require "support.folder"
local support = require "support"
local talks = require "support.talk"

local servers = {}

local recipe = [[
local tl = require "tidelock"
local nn = tl.nn
local function layer()
  return {
    nn.residual { nn.rms_norm {}, nn.attention { heads = 4, kv_heads = 2 } },
    nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 48 } },
  }
end
return tl.recipe {
  model = nn.decoder { vocab = 256, dim = 32, layers = 2, layer = layer },
  data = tl.data.text { "TEXT" },
  batch = { samples = 4, length = 32 },
  train = { steps = 3, lr = 0.01 },
}
]]

function servers.train()
  local folder = new_folder()
  local text = folder:write("text.txt", ("Tides come and go. "):rep(40))
  local file = folder:write("tide.lua", (recipe:gsub("TEXT", text)))
  local out, status = support.run(("run %s --runs %s --quiet"):format(file, folder:path "runs"))
  assert(status == 0, out)
  local path = folder:path "runs/" .. core.files.list(folder:path "runs")[1]
  return setmetatable({ path = path, folder = folder },
    { __close = function() folder:remove() end })
end

local Server = {}
Server.__index = Server

---@param model string
---@param words? string
function servers.start(model, words)
  local pipe = assert(io.popen(("echo $$; exec %s serve %s --port 0 %s 2>&1"):format(
    support.program, model, words or "")))
  local self = setmetatable({ pipe = pipe, pid = tonumber(pipe:read "l"), said = {} }, Server)
  while not self.port do
    local line = pipe:read "l"
    if not line then error("no server: " .. table.concat(self.said, "\n"), 0) end
    table.insert(self.said, line)
    self.port = tonumber(line:match "http://[%d.]+:(%d+)/v1" or line:match "]:(%d+)/v1")
  end
  return self
end

function Server:ask(path, body, headers)
  return talks.ask(self.port, body and talks.post(path, body, headers)
    or talks.get(path, headers))
end

--- The choices of a completion; fails with the answer where there are none.
function Server:choices(body)
  local answer = self:ask("/v1/completions", body)
  assert(answer and answer.status == 200, answer and answer.body)
  return core.json.decode(answer.body).choices
end

--- The value of a metric; `name` may have labels, as they are written.
function Server:metric(name)
  local text = self:ask("/metrics").body
  local _, at = text:find("\ntidelock_serve_" .. name .. " ", 1, true)
  return at and tonumber(text:match("%S+", at + 1))
end

--- Waits until the metric has the value; fails after 120 s: a build with a sanitizer is slow.
function Server:await(name, value)
  local begin = core.files.seconds()
  while self:metric(name) ~= value do
    if core.files.seconds() - begin > 120 then
      error(("%s is %s, not %s"):format(name, self:metric(name), value), 0)
    end
    core.files.sleep(0.05)
  end
end

function Server:signal(name) os.execute(("kill -%s %d"):format(name, self.pid)) end

--- Waits for the end; what was said, and the exit status.
function Server:wait()
  local rest = self.pipe:read "a"
  local _, how, status = self.pipe:close()
  self.pipe = nil
  return rest, status, how
end

function Server:stop()
  self:signal "TERM"
  return self:wait()
end

function Server:__close()
  if self.pipe then self:stop() end
end

return servers
