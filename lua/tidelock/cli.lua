--- The program's command line: words in, exit status out. runtime/main.c runs this file.
--
--   0 good    1 the run or a check failed    2 usage, recipe or layout
--   75 "resume me": a signal ended it at a step, before its end, or a rank was lost
--
-- A module that knows its status raises { status, message }; any other error is a failed run, 1, or
-- the loss of a rank, 75.
-- Results go to stdout, messages to stderr.

local commands = require "tidelock.commands"
local requests = require "tidelock.plan.requests"
local variables = require "tidelock.commands.variables"

--- What `help` prints: a page, the manual as troff, or a script for a shell.
local function help(request)
  local options = request.options
  if options.man then
    local version = require("tidelock.core").build().version
    io.stdout:write(require("tidelock.commands.manual").roff(version))
  elseif options.completion then
    io.stdout:write(require("tidelock.commands.shells").script(options.completion))
  else
    print(commands.help(request.topic))
  end
  return 0
end

local function main(words)
  local request = commands.parse(words)
  if request.command.name == "help" then
    return help(request)
  elseif request.command.name == "version" then
    print(require("tidelock.run.header").build_text())
    return 0
  elseif request.command.name ~= "run" then
    require("tidelock.run.launch").refuse(request.command.name)
  end
  return require(request.command.module).command(request)
end

--- Turns whatever was raised into a table; a bug also shows where it happened.
local function describe(problem)
  if type(problem) == "table" and problem.message then return problem end
  local text = tostring(problem)
  if os.getenv "TIDELOCK_TRACEBACK" then text = debug.traceback(text, 2) end
  return { status = requests.failed(problem), message = text }
end

variables.tell()
local ok, result = xpcall(main, describe, { ... })
if ok then return result end
-- Where memory ends, Lua asks no handler: what comes is a text.
if type(result) ~= "table" then result = describe(result) end
io.stdout:flush()
if result.message ~= "" then io.stderr:write(result.message, "\n") end -- "": another rank says it
return result.status
