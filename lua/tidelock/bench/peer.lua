--- Programs that bench measures beside itself: tests/peers/*.py, driven over two pipes.
--
--   bench  -- {"size":1024} -->  peer      one line, one measurement
--          <-- {"seconds": ..} --
--
-- One process lives through all rounds, so rounds of both sides alternate. A peer that cannot run
-- here says why, and bench goes on without it. TIDELOCK_PYTHON names another python3.

local core = require "tidelock.core"

---@class tidelock.Peer
---@field about string # its name and versions
local Peer = {}
Peer.__index = Peer

local peers = {}

local folder = debug.getinfo(1, "S").source:match "^@(.*)lua/tidelock/bench/[^/]*$"

local function quoted(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

--- One message of the peer; nil and a reason when it has ended or cannot go on.
local function read(self)
  local line = self.input:read "l"
  if not line then return nil, self.script .. " ended without an answer" end
  local ok, message = pcall(core.json.decode, line)
  if not ok then return nil, ("%s wrote %q"):format(self.script, line) end
  if message.skip then return nil, message.skip end
  return message
end

--- Start tests/peers/`script`. `settings` are words for env(1), `argument` becomes JSON.
---@return tidelock.Peer? # nil and the reason when it cannot run here
function peers.open(script, settings, argument)
  local python = os.getenv "TIDELOCK_PYTHON" or "python3"
  local fifo = os.tmpname()
  local made = os.remove(fifo) and os.execute("mkfifo -m 600 " .. quoted(fifo))
  if not made then return nil, "mkfifo " .. fifo .. " failed" end
  local command = ("env %s %s %s %s > %s"):format(settings or "", quoted(python),
    quoted((folder or "") .. "tests/peers/" .. script),
    argument and quoted(core.json.encode(argument)) or "", quoted(fifo))
  local self = setmetatable({ script = script, output = io.popen(command, "w") }, Peer)
  self.input = io.open(fifo, "r")
  os.remove(fifo)
  local message, reason = read(self)
  if not message then
    self:close()
    return nil, reason
  end
  self.about = message.about
  return self
end

--- One measurement: { seconds, cpu, .. }, or nil and a reason.
function Peer:ask(request)
  self.output:write(core.json.encode(request), "\n")
  self.output:flush()
  return read(self)
end

function Peer:close()
  if self.output then self.output:close() end
  if self.input then self.input:close() end
  self.output, self.input = nil, nil
end
Peer.__close = Peer.close

return peers
