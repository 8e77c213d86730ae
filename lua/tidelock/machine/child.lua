--- child.lua - runs this program once more, under a time limit, and says how it ended.
--
--   child.run({ "sweep", "a.lua", "--row", "3" }, 60)
--     -> text of its stdout, { status = 0 } | { signal = 11 } | { timeout = 60 }, stderr
--
-- coreutils' timeout ends what takes too long (SIGTERM, five seconds later SIGKILL). util-linux'
-- setpriv ends the child when this process dies, however it dies; where setpriv is not installed
-- an orphan goes on to its own end or its time limit.

local core = require "tidelock.core"

local child = {}

child.grace = 5 -- seconds between SIGTERM and SIGKILL

local signals = {
  [4] = "SIGILL", [6] = "SIGABRT", [7] = "SIGBUS", [8] = "SIGFPE", [9] = "SIGKILL",
  [11] = "SIGSEGV", [15] = "SIGTERM",
}

--- A word as the shell takes it.
function child.quoted(word) return "'" .. tostring(word):gsub("'", "'\\''") .. "'" end

local function read_all(pipe)
  local parts = {}
  repeat
    local text, _, code = pipe:read(4096)
    parts[#parts + 1] = text
  until not text and code ~= 4 -- 4: EINTR, a signal that we catch
  return table.concat(parts)
end

--- How a child ended, in words; nil when it ended well.
function child.reason(ended)
  if ended.timeout then return ("no end within %g s"):format(ended.timeout) end
  if ended.signal then
    return ("killed by signal %d%s"):format(ended.signal,
      signals[ended.signal] and " (" .. signals[ended.signal] .. ")" or "")
  end
  return ended.status ~= 0 and ("exit status %d"):format(ended.status) or nil
end

---@param words string[] # behind the program's name
---@param seconds number? # time limit
---@param before string? # shell text in front of the program: "mpirun -np 2"
---@param variables string? # shell text: "TL_SIMD=avx2 "
---@return string stdout
---@return { status: integer?, signal: integer?, timeout: number? } ended
---@return string stderr
function child.run(words, seconds, before, variables)
  local errors, quoted = os.tmpname(), {}
  for i, word in ipairs(words) do quoted[i] = child.quoted(word) end
  local limit = seconds and ("timeout -k %d %.3f "):format(child.grace, seconds) or ""
  local export = variables and "export " .. variables .. "; " or ""
  local pipe = assert(io.popen(("%sexec $(command -v setpriv >/dev/null && echo setpriv "
    .. "--pdeathsig TERM) %s%s%s %s 2>%s"):format(export, limit, before and before .. " " or "",
    child.quoted(core.files.realpath "/proc/self/exe"), table.concat(quoted, " "),
    child.quoted(errors))))
  local text = read_all(pipe)
  local _, how, code = pipe:close()
  local complaint = core.files.read_all(errors) or ""
  os.remove(errors)
  if how == "signal" then return text, { signal = code }, complaint end
  if limit ~= "" and (code == 124 or code == 137) then
    return text, { timeout = seconds }, complaint
  end
  return text, code > 128 and { signal = code - 128 } or { status = code }, complaint
end

return child
