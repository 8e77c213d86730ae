--- `./tl generate MODEL PROMPT`: text after a prompt, as it is made.
--
--     ./tl generate runs/quickstart-eaf6 "You may copy" --tokens 200 --temperature 0.8 --seed 1
--     ./tl generate runs/quickstart-eaf6 - < prompt.txt            the prompt from stdin
--     ./tl generate runs/quickstart-eaf6 89,111,117 --ids          ids in, ids out
--
-- Prompt and text go to stdout, speed to stderr. The same words give the same text on every machine
-- and in any layout.

local core = require "tidelock.core"
local engine = require "tidelock.serve.engine"
local loader = require "tidelock.run.loader"
local pieces = require "tidelock.serve.pieces"
local requests = require "tidelock.plan.requests"
local screen = require "tidelock.text.screen"

local generate = {}

local function usage(format, ...)
  error({ status = 2, message = "tidelock: generate: " .. format:format(...) }, 0)
end

local function read_ids(text)
  local ids = {}
  for word in (text .. ","):gmatch "%s*([^,]*)," do
    local id = math.tointeger(tonumber(word))
    if not id then usage("--ids: the prompt is integers and commas, got %q", text) end
    ids[#ids + 1] = id
  end
  return ids
end

local function encode(tokenizer, prompt)
  local good, ids = pcall(tokenizer.encode, tokenizer, prompt, true)
  if good then return ids end
  usage("the tokenizer cannot read the prompt: %s; another prompt, or --ids with a prompt of ids",
    pieces.valid((ids:gsub("^[^\n]-%.lua:%d+: ", ""))))
end

--- The submission that the words and options mean.
local function submission_of(model, prompt, options)
  return {
    tokens = options.ids and read_ids(prompt) or encode(model.tokenizer, prompt),
    max_tokens = options.tokens or 100, temperature = options.temperature or 0,
    top_p = options.top_p, top_k = options.top_k, seed = options.seed, stop = model.stop,
  }
end

--- A function that gives what a token adds to the output: bytes of the text, or its id. Decoding
--- the whole text for each token would take the square of its length.
---@param tokenizer tidelock.Tokenizer
---@param prompt integer[]
---@param ids boolean?
---@return fun(id: integer): string
function generate.added(tokenizer, prompt, ids)
  local first, text = true, pieces.new(tokenizer, prompt, {})
  return function(id)
    local lead = first and "" or ","
    first = false
    return ids and lead .. id or text:bytes(id)
  end
end

--- Runs the request to its end or to a signal. Returns { made, first, seconds, stopped }.
local function stream(e, added)
  local begin, made, first = core.files.seconds(), 0, nil
  local stopped
  while not e:idle() and not stopped do
    for _, event in ipairs(e:step()) do
      made = made + 1
      first = first or core.files.seconds() - begin
      io.stdout:write(added(event.token))
      io.stdout:flush()
    end
    stopped = core.interrupted()
  end
  return { made = made, first = first or 0, seconds = core.files.seconds() - begin,
    stopped = stopped }
end

local function report(model, given, result, context)
  local after = result.seconds - result.first
  io.stderr:write(("%s: prompt of %s in %.0f ms, %s more at %s tokens/s; seed %d\n"):format(
    model.description, screen.plural(#given.tokens, "token"), result.first * 1000,
    screen.grouped(result.made), screen.short(after > 0 and (result.made - 1) / after or 0),
    given.seed or 0))
  if result.made < given.max_tokens and #given.tokens + result.made >= context then
    io.stderr:write(("note: %d of %d tokens were made: prompt and text fill serve.context, %d\n")
      :format(result.made, given.max_tokens, context))
  end
end

--- The command.
---@param request tidelock.Request
function generate.command(request)
  local options, prompt = request.options, request.words[2]
  if prompt == "-" then prompt = io.read "a" end
  local model = loader.open(request.words[1], request.overrides, options)
  if not options.ids then loader.needs_words(model) end
  local given = submission_of(model, prompt, options)
  local e <close> = requests.guarded(engine.open, model, { threads = options.threads })
  if not options.ids then loader.note_words(model, e.vocab) end
  local id, message = e:submit(given)
  if not id then usage("%s", message) end
  core.catch_interrupts()
  if not options.ids and not options.quiet then
    io.stdout:write(model.tokenizer:decode(given.tokens, false))
  end
  local result = stream(e, generate.added(model.tokenizer, given.tokens, options.ids))
  io.stdout:write "\n"
  io.stdout:flush() -- before the report, also where both streams go to one pipe
  if not options.quiet then report(model, given, result, e.context) end
  return result.stopped and requests.stopped or 0
end

return generate
