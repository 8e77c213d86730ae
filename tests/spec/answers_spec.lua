-- What ./tl serve says of tokens, where each begins in the text of prompt and answer, and of time.
local answers = require "tidelock.serve.answers"
local core = require "tidelock.core"
local serve = require "tidelock.serve"
local serve_metrics = require "tidelock.serve.metrics"

local tokenizer = core.tokenizer "tests/golden/tokenizers/sentencepiece/tokenizer.json"

--- Tokens, their offsets and the text of an answer whose engine gives `made` behind `prompt`.
local function answer(prompt, made, more)
  local wanted = { kind = "completions", n = 1, stops = {}, logprobs = 0, made = #made }
  for key, value in pairs(more) do wanted[key] = value end
  local job = { wanted = wanted, id = "x", created = 0, choices = {},
    model = { tokenizer = tokenizer, name = "m", fingerprint = "f" } }
  local choice = answers.choice(job, 0, prompt)
  job.choices[1] = choice
  for i = 2, wanted.echo and #prompt or 0 do
    answers.take(choice, { token = prompt[i], prompt = true, logprob = -1, top = {} })
  end
  for i, id in ipairs(made) do
    answers.take(choice, { token = id, logprob = -1, top = {}, finish = i == #made and "length" })
  end
  local object = core.json.decode(answers.whole(job)).choices[1]
  return object.logprobs.text_offset, object.text
end

describe("offsets of tokens in a text", function()
  local prompt = tokenizer:encode("Tides come in.", true)
  local made = tokenizer:encode(" Tides go", false)
  local whole = table.move(made, 1, #made, #prompt + 1, { table.unpack(prompt) })

  --- Characters of the text of the first `count` tokens.
  local function characters(count)
    return utf8.len(tokenizer:decode { table.unpack(whole, 1, count) })
  end

  it("begin with the prompt, of which a special token and a dropped space are no part", function()
    local _, special = tokenizer:token(prompt[1])
    assert.is_true(special)
    local offsets, text = answer(prompt, made, { echo = true })
    assert.equal(tokenizer:decode(whole), text)
    assert.equal(#whole, #offsets)
    for i = 1, #whole do assert.equal(characters(i - 1), offsets[i], i) end
    assert.same({ 0, 0 }, { offsets[1], offsets[2] })
  end)

  it("count the prompt where it is not echoed", function()
    local offsets, text = answer(prompt, made, {})
    assert.equal(tokenizer:decode(whole), tokenizer:decode(prompt) .. text)
    assert.equal(#made, #offsets)
    for i = 1, #made do assert.equal(characters(#prompt + i - 1), offsets[i], i) end
  end)
end)

describe("a page that is asked for before there is one", function()
  it("is refused for a moment, not for its method", function()
    local asked, replies, open = { "GET /health", "HEAD /metrics", "PUT /health" }, {}, core.http
    local http = setmetatable({
      next = function()
        local method, path = (table.remove(asked, 1) or error "end"):match "(%a+) (.*)"
        return { id = #asked, method = method, path = path, body = "" }
      end,
      reply = function(_, _, status, _, _, seconds, allow)
        replies[#replies + 1] = ("%d %d %s"):format(status, seconds, allow)
      end,
    }, { __index = function() return function() return 0 end end })
    core.http = function() return http end
    local server = serve.open({ name = "m", context = 1 }, { sizes = { requests = 1 },
      idle = function() return true end,
      stats = function() return setmetatable({}, { __index = function() return 0 end }) end }, {})
    core.http = open
    assert.error_matches(function() server:run() end, "end$")
    assert.same({ "503 1 nil", "503 1 nil", "405 0 GET, HEAD" }, replies)
  end)
end)

describe("seconds that ./tl serve counts", function()
  it("are in every bucket whose bound they do not pass", function()
    local http = { refused = function() return 0 end }
    local seen = serve_metrics.new("m", http)
    for _, seconds in ipairs { 0.001, 0.002, 0.3, 61 } do seen:token(seconds) end
    seen:token() -- not the first of its request
    local text = seen:text { running = 0, waiting = 0, pages = 1, free = 1, kept = 0, hits = 0,
      steps = 0, rows = 0 }
    local counts = {}
    for bound, count in text:gmatch 'first_token_seconds_bucket{le="([^"]+)"} (%d+)\n' do
      counts[#counts + 1] = bound .. " " .. count
    end
    assert.equal("0.001 1, 0.0025 2, 0.005 2, 0.01 2, 0.025 2, 0.05 2, 0.1 2, 0.25 2, 0.5 3, 1 3, "
      .. "2.5 3, 5 3, 10 3, 25 3, 60 3, +Inf 4", table.concat(counts, ", "))
    local function has(line) assert.is_truthy(text:find("\n" .. line .. "\n", 1, true), line) end
    has "# TYPE tidelock_serve_first_token_seconds histogram"
    has("tidelock_serve_first_token_seconds_sum " .. ("%.17g"):format(0.001 + 0.002 + 0.3 + 61))
    has "tidelock_serve_first_token_seconds_count 4"
    has 'tidelock_serve_request_seconds_bucket{le="+Inf"} 0'
    has "tidelock_serve_tokens_total 5"
  end)
end)
