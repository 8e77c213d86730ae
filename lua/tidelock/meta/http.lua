---@meta
--- meta/http.lua - core.lua, continued: the HTTP server.
-- luacheck: ignore 212 241

---@class tidelock.core
local core = {}

---@class tidelock.Http # its thread reads and writes, refuses and answers pages while Lua is busy
local Http = {}
---@return integer # also where 0 was asked for
function Http:port() end
--- GET `path` is answered with `text` from now on.
---@param path string
---@param type string # "text/plain"
---@param text string
---@param open? boolean # without the key
function Http:page(path, type, text, open) end
--- Waits at most so long for a request, or for the news that the client of one has left.
---@param seconds number
---@return { id: integer, method: string?, path: string?, body: string?, gone: boolean? }?
function Http:next(seconds) end
--- Answers a request; nothing happens where its client has left.
---@param id integer
---@param status integer
---@param text string
---@param type? string # "application/json" unless given
---@param retry_after? integer # seconds
function Http:reply(id, status, text, type, retry_after) end
--- An answer in parts: begin, send as often as there is something, finish.
---@param id integer
---@param type string
function Http:begin(id, type) end
---@param id integer
---@param text string
function Http:send(id, text) end
---@param id integer
function Http:finish(id) end
--- How often the server's thread itself has answered so (400, 401, 413, 417, 429, 501, 503).
---@param status integer
---@return integer
function Http:refused(status) end
--- New requests are answered with 503 from now on; pages still work.
function Http:refuse() end
--- Sends what has been answered, for two seconds at most, and ends the thread.
function Http:close() end

--- nil and the reason when the address cannot be had.
---@param options { host: string?, port: integer?, body_bytes: integer?, header_bytes: integer?,
---  connections: integer?, open: integer?, timeout: integer?, key: string? }
---@return tidelock.Http? server
---@return string? message
function core.http(options) end

return core
