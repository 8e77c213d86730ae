--- `./tl bench serve`: how fast a model of this recipe generates, and how steadily under load.
--
--   speed   prompts in tokens a second; decoding with 1, 4, 16 requests at a time (on a GPU 1, 8,
--           64, 256, beside the time that weights and pages of a step take at its copy speed)
--   load    requests that arrive by a Poisson process (a seed decides when, how long their prompts
--           are and how much they want), or as a file says; twice: as it is, and plainly: one
--           request after the other, no prefix kept, no graph captured, each step's memory
--           allocated for it and freed behind it
--
--   {"at": 0.02, "prompt": 17, "max_tokens": 30}        a line of --requests FILE: seconds from the
--                                                       start, tokens of the prompt, tokens to make
--
-- Weights are the recipe's initial ones: no time depends on their values. Tokens are sampled, so
-- that the two ways must give the same ones.

local core = require "tidelock.core"
local engine = require "tidelock.serve.engine"
local requests = require "tidelock.plan.requests"
local screen = require "tidelock.text.screen"

local serve = {}

local init_kinds = { constant = 0, normal = 1, uniform = 2, ["function"] = 0 }

--- Reads the initial values of the part of a weight that a rank holds; those of functions are 0.
local function initial(device)
  return function(param, row, col)
    local init, part = param.fields.init, core.tensor("f32", { param.rows, param.cols })
    core.call("init", {}, { part }, {
      kind = init_kinds[init.kind], first = init.first or 0, second = init.second or 0,
      name_hash = core.hash_int(param.name), row_first = row, col_first = col,
      cols_full = param.full_cols,
    }, { seed = 0, device = device })
    return part
  end
end

local function open(options, how)
  local words = table.move(options.overrides, 1, #options.overrides, 1, {})
  local recipe = requests.recipe(options.recipe, words)
  how.threads = options.threads
  local device = requests.plan(recipe, "check").spec.device
  return requests.guarded(engine.open, { recipe = recipe, read = initial(device) }, how)
end

--- Numbers in [0, 1) by name and index: the same on every machine.
local function unit(name, index)
  return (core.random_words(1, core.hash_int(name), index, 0) >> 8) * 2.0 ^ -24
end

local function prompt_of(index, count, vocab)
  local tokens = {}
  for i = 1, count do tokens[i] = math.floor(unit("bench/token " .. index, i) * vocab) end
  return tokens
end

--- Requests with their times of arrival, at 1 a second on average: { at, prompt, max_tokens }.
local function poisson(count, context)
  local list, at = {}, 0.0
  for i = 1, count do
    at = at - core.math.log(1 - unit("bench/arrival", i))
    list[i] = {
      at = at, prompt = 1 + math.floor(unit("bench/prompt", i) * math.min(64, context // 2)),
      max_tokens = 1 + math.floor(unit("bench/made", i) * math.min(48, context // 3)),
    }
  end
  return list
end

-- A sum of two of them is a number, too.
local function is_count(x) return math.type(x) == "integer" and x > 0 and x <= 0x7fffffff end

--- What is wrong with a line of a file of requests; nil when it is one, which comes second.
local function read_line(line, context)
  local good, entry = pcall(core.json.decode, line)
  if not good or type(entry) ~= "table" or type(entry.at) ~= "number" or entry.at < 0
    or not is_count(entry.prompt) or not is_count(entry.max_tokens) then
    return 'expected {"at": seconds, "prompt": tokens, "max_tokens": tokens}, from 0, 1 and 1 on'
  elseif entry.prompt > context or entry.max_tokens > context - entry.prompt then
    return ("prompt %d and max_tokens %d are more than the context of %d; fewer, or "
      .. "serve.context=%d"):format(entry.prompt, entry.max_tokens, context,
      entry.prompt + entry.max_tokens)
  end
  return nil, entry
end

--- The requests of a file, in order of arrival. Raises with all lines that are none.
local function from_file(path, context)
  local text, message = core.files.read_all(path)
  if not text then error({ status = 2, message = "tidelock: --requests: " .. message }, 0) end
  local list, wrong, number = {}, {}, 0
  for line in (text .. "\n"):gmatch "([^\n]*)\n" do
    number = number + 1
    local problem, entry
    if line:find "%S" then problem, entry = read_line(line, context) end
    if problem then
      wrong[#wrong + 1] = ("tidelock: --requests: %s:%d: %s"):format(path, number, problem)
    elseif entry then
      entry.line, list[#list + 1] = number, entry
    end
  end
  if #list + #wrong == 0 then wrong[1] = ("tidelock: --requests: %s: no request"):format(path) end
  if #wrong > 0 then
    local shown = table.concat(wrong, "\n", 1, math.min(#wrong, 8))
    if #wrong > 8 then shown = ("%s\nand %d more like this"):format(shown, #wrong - 8) end
    error({ status = 2, message = shown }, 0)
  end
  table.sort(list, function(x, y)
    if x.at ~= y.at then return x.at < y.at end
    return x.line < y.line
  end)
  return list
end

local function percentile(list, share)
  local sorted = table.move(list, 1, #list, 1, {})
  table.sort(sorted)
  return sorted[math.max(1, math.ceil(share * #sorted))] or 0
end

local function deviation(list)
  local sum, squares = 0.0, 0.0
  for _, x in ipairs(list) do sum = sum + x end
  local mean = sum / math.max(1, #list)
  for _, x in ipairs(list) do squares = squares + (x - mean) ^ 2 end
  return math.sqrt(squares / math.max(1, #list))
end

--- Submits what has arrived by `now`. Returns the index of the next one.
local function arrive(e, list, state, next_one, now)
  while list[next_one] and list[next_one].at * state.scale <= now do
    local wanted = list[next_one]
    local id, message = e:submit {
      tokens = prompt_of(next_one, wanted.prompt, e.vocab), max_tokens = wanted.max_tokens,
      temperature = 1, seed = next_one,
    }
    if not id then
      error({ status = 2, message = "tidelock: bench serve: " .. message }, 0)
    end
    state.index[id], state.last[id], state.tokens[next_one] = next_one, list[next_one].at
      * state.scale, {}
    next_one = next_one + 1
  end
  return next_one
end

--- Runs the list, its times multiplied by `scale`: what happened when.
local function run_load(e, list, scale)
  local state = { scale = scale, index = {}, last = {}, tokens = {}, first = {}, gaps = {},
    whole = {}, made = 0 }
  local begin, next_one = core.files.seconds(), 1
  while list[next_one] or not e:idle() do
    next_one = arrive(e, list, state, next_one, core.files.seconds() - begin)
    if e:idle() then
      local wait = list[next_one].at * scale - (core.files.seconds() - begin)
      if wait > 0 then core.files.sleep(wait) end
    end
    for _, event in ipairs(e:step()) do
      local now, index = core.files.seconds() - begin, state.index[event.id]
      local gap = now - state.last[event.id]
      table.insert(#state.tokens[index] == 0 and state.first or state.gaps, gap * 1000)
      table.insert(state.tokens[index], event.token)
      state.last[event.id], state.made = now, state.made + 1
      if event.finish then
        state.whole[#state.whole + 1] = (now - list[index].at * scale) * 1000
      end
    end
    if core.interrupted() then break end
  end
  state.seconds = core.files.seconds() - begin
  return state
end

-- tables -----------------------------------------------------------------------------------------

--- Seconds of `count` requests that decode together, and of their prompts.
local function speed(e, count, prompt, made)
  for i = 1, count do
    assert(e:submit { tokens = prompt_of(i, prompt, e.vocab), max_tokens = made })
  end
  local begin, waiting = core.files.seconds(), count
  while waiting > 0 do
    for _, event in ipairs(e:step()) do
      if event.position == prompt then waiting = waiting - 1 end
    end
  end
  local first = core.files.seconds() - begin
  while not e:idle() do e:step() end
  return first, core.files.seconds() - begin - first
end

local copy_bytes = 4.24e12 -- a second: a copy within one H200 (docs/performance/generation.md)

--- Bytes that a step of one rank must read: its weights (of a table that is no head a few rows),
--- and the pages of `count` requests of `length` tokens.
local function bytes_read(e, count, length)
  local bytes, low = 0, e.plan.ranks[1]
  for key, view in pairs(low.persistent) do
    local buffer, tied = view.buffer, e.plan.spec.model.tied
    if buffer.kind == "weights" and (tied or key ~= "weight embed") then
      bytes = bytes + buffer.bytes
    end
    if buffer.kind == "cache" then
      bytes = bytes + buffer.bytes // (e.sizes.pages * e.sizes.page) * count * length
    end
  end
  return bytes
end

local function speed_table(options)
  local e <close> = open(options, { prefix = false })
  local on_gpu = e.plan.spec.device == "cuda"
  if e.context < 2 then
    error({ status = 2, message = "tidelock: bench serve: a context of 1 has no room for a prompt "
      .. "and a token; serve.context=2 or more" }, 0)
  end
  local prompt = math.max(1, math.min(256, e.context // 2))
  local made = math.max(2, math.min(100, e.context - prompt))
  local result = {
    title = ("Generation on %s: %s"):format(on_gpu and "a GPU" or options.threads .. " threads",
      options.recipe:match "[^/]+$"),
    columns = { "requests", "prompt tok/s", "decode tok/s", "ms/token",
      on_gpu and "of bound" or nil },
    rows = {},
    notes = { ("prompts of %d tokens, then %d tokens each; the best of %s"):format(prompt,
      made, screen.plural(options.rounds, "round")) },
  }
  for _, count in ipairs(on_gpu and { 1, 8, 64, 256 } or { 1, 4, 16 }) do
    if count <= e.sizes.requests then
      local first, rest = math.huge, math.huge
      for _ = 1, options.rounds do
        local a, b = speed(e, count, prompt, made)
        first, rest = math.min(first, a), math.min(rest, b)
      end
      table.insert(result.rows, { count, screen.short(count * prompt / first),
        screen.short(count * (made - 1) / rest), ("%.2f"):format(1000 * rest / (made - 1)),
        on_gpu and ("%.2f"):format(bytes_read(e, count, prompt + made // 2) / copy_bytes
          / (rest / (made - 1))) or nil })
    end
  end
  if on_gpu then
    table.insert(result.notes, "of bound: time of the bytes of weights, keys and values at "
      .. "4.24 TB/s")
  end
  return result
end

local function load_row(name, state)
  return {
    name, screen.short(state.made / state.seconds), ("%.1f"):format(#state.whole / state.seconds),
    ("%.1f"):format(percentile(state.first, 0.5)), ("%.1f"):format(percentile(state.first, 0.99)),
    ("%.2f"):format(percentile(state.gaps, 0.5)), ("%.2f"):format(percentile(state.gaps, 0.99)),
    ("%.2f"):format(deviation(state.gaps)), ("%.0f"):format(percentile(state.whole, 0.99)),
    ("%.0f"):format(deviation(state.whole)),
  }
end

local function same_tokens(a, b, count)
  for i = 1, count do
    if table.concat(a.tokens[i] or {}, ",") ~= table.concat(b.tokens[i] or {}, ",") then
      return false
    end
  end
  return true
end

--- Seconds that the list takes when all of it is there at once: what the machine can do.
local function capacity(e, list)
  local clock = core.files.seconds()
  run_load(e, list, 0)
  return core.files.seconds() - clock
end

--- The requests that a file asks for; the recipe says how long they may be.
local function given_load(options)
  local words = table.move(options.overrides, 1, #options.overrides, 1, {})
  local spec = requests.plan(requests.recipe(options.recipe, words), "check").spec
  return from_file(options.requests, spec.serve and spec.serve.context or spec.batch.length)
end

local function load_table(options, given)
  local batched <close> = open(options, {})
  local plain <close> = open(options, { plain = true })
  local list = given or poisson(options.count, batched.context)
  local scale = 1
  if not given then -- 0.7 of what it can do, unless told
    local rate = options.rate or 0.7 * #list / capacity(batched, list)
    scale = 1 / rate
  end
  local a = run_load(batched, list, scale)
  local b = run_load(plain, list, scale)
  local same = same_tokens(a, b, #list)
  local function ratio(x, y) return ("%.1f"):format(y / math.max(x, 1e-9)) end
  return {
    title = given and ("Load of %s"):format(options.requests)
      or ("Load of %.1f requests/s (Poisson), %d requests"):format(1 / scale, #list),
    columns = { "mode", "tok/s", "req/s", "first p50 ms", "p99", "token p50 ms", "p99", "jitter",
      "request p99 ms", "jitter" },
    rows = { load_row("batched", a), load_row("plain", b) },
    notes = {
      ("plain / batched: request p99 %s, jitter of requests %s, first token p99 %s, token p99 %s, "
        .. "jitter of tokens %s"):format(
        ratio(percentile(a.whole, 0.99), percentile(b.whole, 0.99)),
        ratio(deviation(a.whole), deviation(b.whole)),
        ratio(percentile(a.first, 0.99), percentile(b.first, 0.99)),
        ratio(percentile(a.gaps, 0.99), percentile(b.gaps, 0.99)),
        ratio(deviation(a.gaps), deviation(b.gaps))),
      "plain: one request after the other, no prefixes, no captured graphs, memory of each step "
        .. "allocated for it; jitter: standard deviation",
      same and "both gave the same tokens" or "THE TOKENS DIFFER",
    },
    differs = not same,
  }
end

---@param options table # recipe, overrides, rounds, threads, count, rate, requests
function serve.tables(options)
  options.count = options.count or 64
  local given = options.requests and given_load(options) -- what is wrong with it is said at once
  local result = { speed_table(options), load_table(options, given) }
  if result[2].differs then
    error("bench serve: batched and plain requests gave other tokens", 0)
  end
  return result
end

return serve
