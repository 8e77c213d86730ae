local core = require "tidelock.core"
local support = require "support"

describe("json", function()
  local json = core.json

  it("keeps kinds of numbers, null, empty arrays and order of keys", function()
    local text = '{"a":[1,2.0,-0.5,1e+300],"b":{},"c":[],"d":null,"e":[true,false],"f":"x"}'
    assert.equal(text, json.encode(json.decode(text)))
    local value = json.decode(text)
    assert.equal("integer", math.type(value.a[1]))
    assert.equal("float", math.type(value.a[2]))
    assert.equal(json.null, value.d)
    assert.equal("[]", json.encode(json.array {}))
    assert.equal("{}", json.encode {})
  end)

  it("writes floats that read back as the same bits", function()
    for _, x in ipairs { 0.1, 1 / 3, 2.0 ^ -1074, 1.7976931348623157e308, -0.0, 123456.0 } do
      local back = json.decode(json.encode(x))
      assert.equal(string.pack("d", x), string.pack("d", back))
    end
    assert.equal("0.1", json.encode(0.1))
    assert.equal("123456.0", json.encode(123456.0))
    assert.equal("9223372036854775807", json.encode(math.maxinteger))
  end)

  it("keeps all strings", function()
    local text = 'quote " backslash \\ newline \n tab \t bell \7 nul \0 end, tide: \u{6f6e}'
    assert.equal(text, json.decode(json.encode(text)))
    assert.equal('"\\u0007"', json.encode "\7")
  end)

  it("refuses what JSON cannot hold", function()
    local function message(...) return select(2, pcall(json.encode, ...)) end
    local loop = {}
    loop.loop = loop
    assert.matches("deeper than 100", message(loop))
    assert.matches("inf has no JSON form", message(1 / 0))
    assert.matches("function has no JSON form", message { print })
    assert.matches("not UTF%-8", message "\xff")
    assert.matches("string keys", message { a = 1, [2] = 3 })
  end)

  it("says where a text is wrong", function()
    assert.matches("JSON, line 2, column", select(2, pcall(json.decode, '{"a":1,\n"b":}')))
    assert.matches("duplicate", select(2, pcall(json.decode, '{"a":1,"a":2}')))
    assert.has_error(function() json.decode "" end)
  end)
end)

describe("a binding", function()
  it("says how each of its functions is called, in the file's opening", function()
    local silent = {}
    for _, path in ipairs(support.files("runtime/bind", "bind[_%a]*%.c$")) do
      local file <close> = assert(io.open(path))
      local text = file:read "a"
      local opening = text:match "^/%*.-%*/"
      for name in text:gmatch '{"(%a[%w_]*)",%s+[%a_]+%s*}' do
        if name ~= "close" and not opening:find("%f[%w_]" .. name .. "%(") then
          silent[#silent + 1] = path .. ": " .. name
        end
      end
    end
    assert.equal("", table.concat(silent, "\n"))
  end)
end)

describe("the module", function()
  it("can be opened any number of times in one state", function()
    package.loaded["tidelock.core"] = nil
    local again = require "tidelock.core"
    assert.not_equal(core, again)
    assert.bits(core.tensor("f32", { 1 }), again.tensor("f32", { 1 }))
  end)

  it("counts large memory by kind", function()
    local memory = core.memory()
    for _, kind in ipairs { "arena", "staging", "comm", "data", "tensor", "scratch" } do
      assert.is_true(memory[kind].peak >= memory[kind].current)
    end
  end)

  it("has not been interrupted", function() assert.is_false(core.interrupted()) end)
end)

describe("the program", function()
  local function file(text)
    local path = os.tmpname()
    local out = assert(io.open(path, "w"))
    out:write(text)
    out:close()
    return path
  end

  it("runs a file with its arguments and passes its exit status on", function()
    local path = file "print(arg[0] == FILE, arg[1], ...) return 7"
    local text, status = support.run("lua " .. path .. " a b")
    assert.equal("false\ta\ta\tb\n", text)
    assert.equal(7, status)
    os.remove(path)
  end)

  it("ends with 1 for an error, and for a file that is not there", function()
    local path = file "error 'no tide today'"
    local text, status = support.run("lua " .. path)
    assert.matches(":1: no tide today\n$", text)
    assert.equal(1, status)
    os.remove(path)
    text, status = support.run "lua /no/such/file.lua"
    assert.matches("^tidelock: cannot open /no/such/file.lua", text)
    assert.equal(2, status)
  end)

  it("has a repl: expressions, statements, errors", function()
    local path = file '1 + 1\nx = 3\nx, "y"\nerror "low water"\ntl ~= nil\n'
    local text = support.run("repl < " .. path)
    for _, expected in ipairs { "2\n", "3\ty\n", "low water", "true\n" } do
      assert.is_truthy(text:find(expected, 1, true))
    end
    os.remove(path)
  end)

  it("reads a statement of several lines in a repl, and says what a last one lacks", function()
    local path = file 'for i = 1, 2 do\n  print("turn", i)\nend\nmath.max(\n  3,\n  4)\n)\n5\nif x'
    local text = support.run("repl < " .. path)
    for _, expected in ipairs { "turn\t1\nturn\t2\n", "4\n5\n", "unexpected symbol near ')'\n",
      "'then' expected near <eof>\n" } do
      assert.is_truthy(text:find(expected, 1, true), text)
    end
    os.remove(path)
  end)

  it("prints tables in a repl as Lua writes them, and objects by their own text", function()
    local path = file('tl.tensor("f32", { 2, 2 }, { 1, 2, 3, 4 }):to_table()\n'
      .. '{ b = "x", a = { {} }, 7, ["c d"] = true }, "y"\n{ { { { { 1 } } } } }\n'
      .. 'local t = {} for i = 1, 101 do t[i] = i end return t\n'
      .. 'setmetatable({}, { __tostring = function() return "mine" end })\n')
    local text = support.run("repl < " .. path)
    assert.matches("^{ { 1.0, 2.0 }, { 3.0, 4.0 } }\n"
      .. '{ 7, a = { {} }, b = "x", %["c d"%] = true }\ty\n{ { { { { .. } } } } }\n', text)
    assert.matches("99, 100, .. }\nmine\n$", text)
    os.remove(path)
  end)
end)
