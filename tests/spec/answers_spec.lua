-- What ./tl serve says of tokens: where each begins in the text of prompt and answer.
local answers = require "tidelock.serve.answers"
local core = require "tidelock.core"

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
