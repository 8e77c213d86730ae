local fields = require "tidelock.language.fields"
local hints = require "tidelock.language.hints"
local scan = require "tidelock.language.scan"
local schema = require "tidelock.language.schema"
local suggest = require "tidelock.text.suggest"
local types = require "tidelock.language.types"

describe("the options of a module", function()
  it("get their defaults", function()
    local options = schema.check("nn.attention", { heads = 8 }, "a.lua:1")
    assert.same({ heads = 8, bias = false, qk_norm = false,
      rope = { base = 10000, interleaved = false } }, options)
    assert.is_false(schema.check("nn.attention", { heads = 8, rope = false }, "a.lua:1").rope)
    assert.equal(1e-6, schema.check("nn.rms_norm", {}, "a.lua:1").eps)
    assert.equal(1e-5, schema.check("nn.layer_norm", {}, "a.lua:1").eps)
  end)

  it("raise at once, all mistakes together, where no recipe is loading", function()
    local good, problem = pcall(schema.check, "nn.swiglu", { hiden = 3, bias = 1 }, "a.lua:7")
    assert.is_false(good)
    assert.equal(2, problem.status)
    assert.equal([[
a.lua:7: nn.swiglu.bias: expected true or false, got 1
a.lua:7: nn.swiglu.hiden: no such key; did you mean hidden? nn.swiglu has bias, hidden, name
2 errors; nothing was started]], problem.message)
  end)

  it("take whole floats for integers and nothing else", function()
    assert.equal("integer", math.type(schema.check("nn.linear", { out = 8.0 }, "a.lua:1").out))
    for _, value in ipairs { 8.5, 0, -1, "8", true, 1e300, 0 / 0 } do
      assert.is_false(pcall(schema.check, "nn.linear", { out = value }, "a.lua:1"))
    end
  end)

  it("take numbers that are what they should be in f32, too", function()
    local function message(name, options)
      local _, problem = pcall(schema.check, name, options, "a.lua:1")
      return problem.message and problem.message:match "^[^\n]+"
    end
    assert.equal("a.lua:1: nn.rms_norm.eps: expected a number above 0 in f32, where it is 0, got "
      .. "1e-50", message("nn.rms_norm", { eps = 1e-50 }))
    assert.equal("a.lua:1: nn.rms_norm.eps: expected a number above 0 in f32, where it is inf, got "
      .. "1e+39", message("nn.rms_norm", { eps = 1e39 }))
    assert.equal("a.lua:1: nn.dropout.rate: expected a number from 0 up to, but not, 1 in f32, "
      .. "where it is 1, got 1", message("nn.dropout", { rate = 1 - 1e-9 }))
    assert.equal(1e-45, schema.check("nn.rms_norm", { eps = 1e-45 }, "a.lua:1").eps)
  end)

  it("take no string with a zero byte, which would end a path early", function()
    local good, problem = pcall(schema.check, "nn.linear", { out = 8, name = "a\0b" }, "a.lua:1")
    assert.is_false(good)
    assert.matches("nn%.linear%.name: expected a string", problem.message)
  end)

  it("accept the fields of a mixture of experts", function()
    local moe = schema.check("nn.moe", {
      experts = 64, top_k = 6, hidden = 320, shared = 1,
      router = { "sigmoid", groups = 8, top_groups = 4, scale = 2.5 },
      balance = { "bias", speed = function() return 1e-3 end },
    }, "a.lua:1")
    assert.equal("sigmoid", moe.router.name)
    assert.equal(4, moe.router.top_groups)
    assert.equal("bias", moe.balance.name)
  end)
end)

describe("the list of fields", function()
  it("has a known type, a text and sections that exist for each", function()
    for name, section in pairs(fields.sections) do
      assert.is_string(section.doc, name)
      for _, entry in ipairs(section.fields) do
        local path = name .. "." .. entry.name
        assert.is_true(#entry.doc > 0, path)
        local simple = types[entry.type] ~= nil and types[entry.type].check ~= nil
        local special = ({ choice = 1, section = 1, off_or_section = 1, form = 1, list = 1,
          switch = 1 })
        assert.is_true(simple or special[entry.type] ~= nil, path)
        if entry.type == "section" then assert.is_table(fields.sections[entry.of], path) end
        if entry.type == "form" then assert.is_table(fields.forms[entry.of], path) end
      end
    end
    for _, form in pairs(fields.forms) do
      for _, section in pairs(form.names) do assert.is_table(fields.sections[section]) end
    end
  end)

  it("has no field that a hint of the same section would hide", function()
    for _, key in ipairs(hints.keys()) do
      assert.is_nil(fields.sections.recipe.by_name[key], key)
    end
  end)
end)

describe("the nearest word", function()
  it("is a swap away before it is a letter away", function()
    assert.equal("tp", suggest.nearest("pt", { "pp", "tp", "dp" }))
    assert.equal("schedule", suggest.nearest("schedul", { "samples", "schedule" }))
    assert.equal("sequence_parallel", suggest.nearest("sequence", { "sequence_parallel",
      "stages" }))
    assert.equal("tp", suggest.nearest("tpp", { "pp", "tp" })) -- as far, and begins as it does
    assert.equal("pp", suggest.nearest("qpp", { "tpp", "pp" }))
    assert.is_nil(suggest.nearest("xyz", { "tp", "schedule" }))
  end)

  it("may be several", function()
    assert.equal("tp, pp", suggest.nearest("tp", { "schedule", "pp", "tp" }, 2))
  end)
end)

describe("the lines of a constructor", function()
  local function lines(text, line, name, key)
    local node, found = scan.find(scan.tokens(text), line, name, key), {}
    local function visit(one, path)
      for field, child in pairs(one.fields or {}) do
        found[path .. field] = child.line
        visit(child, path .. field .. ".")
      end
    end
    visit(node, "")
    return found
  end

  it("are found through strings, comments, functions and calls", function()
    assert.same({
      model = 2, ["model.dim"] = 2, ["model.layer"] = 3, loss = 7, ["train.steps"] = 10, train = 10,
      ["a.b"] = 11, ["1"] = 12,
    }, lines([==[
return tl.recipe { -- recipe { x = 1 }
  model = nn.decoder { dim = 3 * f({ 1, q = 2 }),
    layer = function(i) local a, b = { z = 1 }, "} end"; if a then b = 1 end return a end },
  --[[ dtype = 3,
  }]]

  loss = function(g) for i = 1, 2 do while true do break end end
    repeat local t = { u = 1 } until t == "x" return g end,

  train = { steps = 5 },
  ["a.b"] = [[ } , ]],
  "positional",
}]==], 1, "recipe"))
  end)

  it("are found for an axis of a sweep by its key", function()
    local text = 'return r:over("a", {\n  1,\n  2,\n}):over("b", {\n  { dp = 1 },\n})'
    assert.same({ ["1"] = 2, ["2"] = 3 }, lines(text, 1, "over", "a"))
    assert.same({ ["1"] = 5, ["1.dp"] = 5 }, lines(text, 1, "over", "b"))
  end)
end)
