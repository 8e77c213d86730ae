-- Chat templates: every one that is read renders as transformers renders it, and what is not read
-- is named. tests/golden/chat.json is made by tests/peers/make_chat.py.
local chat = require "tidelock.serve.chat"
local core = require "tidelock.core"
local jinja = require "tidelock.jinja"
local new_folder = require "support.folder"

local golden = core.json.decode(assert(core.files.read_all "tests/golden/chat.json"))

local function render(text, variables)
  local good, result = pcall(function() return jinja.open(text)(variables or {}) end)
  if good then return result end
  if type(result) ~= "table" then error(result, 0) end
  return nil, result.template
end

describe("a chat template", function()
  for _, case in ipairs(golden.cases) do
    it(("renders %s, %s, as transformers does"):format(case.template, case.talk), function()
      local variables = { messages = case.messages }
      for name, value in pairs(golden.variables) do variables[name] = value end
      for name, value in pairs(case.more) do variables[name] = value end
      local text, why = render(golden.templates[case.template], variables)
      if case.text then
        assert.equal(case.text, text, why)
      else
        assert.is_nil(text, case.refused)
        if case.template == "instructions" or case.template == "turns" then
          assert.equal(case.refused, why) -- the template's own words
        end
      end
    end)
  end

  it("is refused with the name and the line of what is not rendered", function()
    local function refused(pattern, text)
      local rendered, why = render(text, { x = "y", m = { a = 1, b = 2 } })
      assert.is_nil(rendered)
      assert.matches(pattern, why)
    end
    refused("line 2: the tag macro is not rendered", "\n{% macro f() %}{% endmacro %}")
    refused("line 1: the tag include is not", "{% include 'x' %}")
    refused("the filter pprint is not rendered", "{{ x | pprint }}")
    refused("the test sameas is not rendered", "{{ x is sameas 1 }}")
    refused("the function lipsum is not rendered", "{{ lipsum() }}")
    refused("the method encode is not rendered", "{{ x.encode() }}")
    refused("the operator %*%* is not rendered", "{{ 2 ** 3 }}")
    refused("a tuple is not read", "{{ (1, 2) }}")
    refused("a list is printed, which is not rendered", "{{ [1] }}")
    refused("a float is printed", "{{ 1 / 2 }}")
    refused("order of an object's fields", "{% set z = 1 %}{% for k in m %}{% endfor %}")
    refused("endif is missing", "{% if x %}")
    refused("a tag has no end", "{{ x ")
    refused("a text has no end", "{{ 'x }}")
    refused("a comment has no end", "{# x")
    refused("found y behind", "{{ x y }}")
    refused("upper of a text that is not ASCII", "{{ 'é'.upper() }}")
    refused("break outside of a loop", "{% break %}")
  end)

  it("that has no end, or doubles what it has, is stopped", function()
    local function stopped(text)
      assert.matches("it takes more than 2000000 steps", select(2, render(text)))
    end
    local twice = "{%% set n = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set n.x = %s %%}"
      .. "{%% endfor %%}{{ n.x %s }}"
    stopped("{% for i in range(100000) %}{% for k in range(100000) %}{% endfor %}{% endfor %}")
    stopped(twice:format("'abcd'", "n.x ~ n.x", ""))
    stopped(twice:format("'abcd'", "n.x + n.x", ""))
    stopped(twice:format("'abcd'", "n.x * 1000", ""))
    stopped(twice:format("'a'", "n.x.replace('a', 'aaaaaaaa')", ""))
    stopped(twice:format("'a'", "[n.x, n.x] | join(n.x)", ""))
    stopped(twice:format("[1]", "n.x + n.x", ""))
    stopped(twice:format("[1]", "[n.x, n.x]", "| tojson"))
    stopped(twice:format("[1]", "[n.x, n.x]", "== n.x"))
    assert.matches("range of this kind",
      select(2, render "{{ range(-9223372036854775807, 9223372036854775807) }}"))
    assert.equal("50", render "{{ range(5, 0, -1) | length }}{{ range(5, 0) | length }}")
    assert.matches("a bound that is a float", select(2, render "{{ 'abc'[1.5:] }}"))
  end)

  it("whose expressions fail is a refusal, not the server's end", function()
    local folder = new_folder()
    local messages = core.json.array { { role = "user", content = "Hi" } }
    local function refused(text)
      folder:write("chat_template.jinja", text)
      return select(2, chat.open(folder.root)(messages, {}))
    end
    local begin = "^the chat template of this model: an expression of it fails: "
    assert.matches(begin .. "attempt to compare", refused "{{ 'a'.split('b', 'c') }}")
    assert.matches(begin .. "invalid UTF%-8", refused "{{ '\xff' | trim }}")
    assert.matches("is not rendered: an expression of it fails: stack overflow.*; send a prompt, "
      .. "to /v1/completions or /tokenize$", refused("{{ " .. ("("):rep(100000)))
    folder:remove()
  end)

  it("comes from a file of its own, or from the tokenizer's", function()
    local folder = new_folder()
    local messages = core.json.array { { role = "user", content = "Hi" } }
    local render_none, none = chat.open(folder.root)
    assert.matches("has no chat template", none)
    assert.matches("has no chat template", select(2, render_none(messages, {})))
    render_none, none = chat.open(nil) -- of bytes, whatever folder is called so
    assert.equal("--tokenizer bytes has no chat template", none)
    assert.equal("this model has no chat template; send a prompt, to /v1/completions or /tokenize",
      select(2, render_none(messages, {})))
    folder:write("tokenizer_config.json", core.json.encode {
      bos_token = "<s>", eos_token = { content = "</s>" }, chat_template = core.json.array {
        { name = "tools", template = "no" },
        { name = "default", template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
          .. "{{ add_generation_prompt }}{{ more }}" } } })
    assert.equal("<s>Hi</s>True!", (chat.open(folder.root)(messages, { more = "!" })))
    folder:write("chat_template.jinja", "{{ raise_exception('not ' + messages[0].role) }}")
    assert.same({ nil, "the chat template of this model: not user" },
      { chat.open(folder.root)(messages, {}) })
    folder:write("chat_template.jinja", "\n{% macro x() %}")
    assert.matches("not rendered: line 2: the tag macro", select(2, chat.open(folder.root)))
    folder:remove()
  end)
end)
