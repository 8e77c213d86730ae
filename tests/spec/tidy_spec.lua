local support = require "support"
local tidy = require "support.tidy"

local function read(path)
  local file = assert(io.open(path))
  local text = file:read "a"
  file:close()
  return text
end

describe("the source", function()
  it("keeps the rules that no other tool checks", function()
    local files = {}
    local folders = "runtime kernels lua tests recipes bench cmake docs tl .ci README.md " ..
      "CMakeLists.txt"
    for _, path in ipairs(support.files(folders, "")) do
      local kind = path:match "%.(%a+)$" or "text"
      if ("c h def cu cuh lua cmake text txt py md yaml"):find("%f[%w]" .. kind .. "%f[^%w]")
        and not path:find "^tests/golden/" and path ~= "kernels/manifest.yaml" then
        files[path] = read(path)
      end
    end
    assert.equal("", table.concat(tidy.check(files), "\n"))
  end)
end)

describe("the check of the source", function()
  local head = "/* a.c - a. */\n"

  --- The complaints about one file, or about several given as path -> text.
  local function complaints(path, text)
    local files = type(path) == "table" and path or { [path] = text }
    return table.concat(tidy.check(files), "; ")
  end

  it("has nothing to say about a good file", function()
    assert.equal("", complaints("runtime/a.c", head .. "int a;\n"))
    assert.equal("", complaints("tests/spec/a_spec.lua", "local a = 1\nreturn a\n"))
  end)

  it("counts columns in characters, and lines", function()
    local wide = ("é"):rep(101)
    assert.equal("runtime/a.c:2: 101 columns, at most 100",
      complaints("runtime/a.c", head .. wide .. "\n"))
    assert.equal("", complaints("runtime/a.c", head .. ("é"):rep(100) .. "\n"))
    assert.matches("a.c:501: 501 lines, at most 500",
      complaints("runtime/a.c", head .. ("int a;\n"):rep(500)))
  end)

  it("sees spaces, tabs, a missing newline and banned words", function()
    assert.matches("space at the end", complaints("runtime/a.c", head .. "int a; \n"))
    assert.matches("tab", complaints("runtime/a.c", head .. "\tint a;\n"))
    assert.matches("no newline at the end", complaints("runtime/a.c", head .. "int a;"))
    assert.matches("the word TO" .. "DO", complaints("runtime/a.c", head .. "/* TO" .. "DO */\n"))
    assert.matches("the word st" .. "ub", complaints("runtime/a.c", head .. "/* a st" .. "ub */\n"))
    assert.equal("", complaints("runtime/a.c", head .. "/* st" .. "ubborn */\n"))
  end)

  it("measures functions in C and Lua", function()
    local body = ("  a();\n"):rep(59)
    assert.matches("a.c:2: a function of 61 lines",
      complaints("runtime/a.c", head .. "int f(int a) {\n" .. body .. "}\n"))
    assert.matches("a.c:3: a function of 61 lines",
      complaints("runtime/a.c", head .. "int f(int a,\n      int b) {\n" .. body .. "}\n"))
    assert.equal("", complaints("runtime/a.c", head .. "int f(int a) {\n" .. body:sub(8) .. "}\n"))
    assert.matches("cli.lua:2: a function of 61 lines",
      complaints("lua/tidelock/cli.lua", "-- a\nlocal function f()\n" .. body .. "end\n"))
    assert.equal("", complaints("lua/tidelock/cli.lua",
      "-- a\nlocal function f() return 1 end\n" .. body .. body))
  end)

  it("wants an opening that says what a file is", function()
    assert.matches("does not say what a.c is", complaints("runtime/a.c", "int a;\n"))
    assert.matches("does not say what a.c is", complaints("runtime/a.c", "/* b.c - b. */\n"))
    assert.matches("does not say", complaints("lua/tidelock/cli.lua", "local a\n"))
  end)

  it("keeps the layers of C", function()
    assert.matches("runtime/tensor.h, which stands in a later layer",
      complaints("runtime/memory.c", '/* memory.c - m. */\n#include "tensor.h"\n'))
    assert.matches("runtime/program.h, which stands in a later layer",
      complaints("kernels/norm/a.c", head .. '#include "../../runtime/program.h"\n'))
    assert.matches("runtime/bind/bind.h, which stands in a later layer",
      complaints("runtime/program.c", '/* program.c - p. */\n#include "bind/bind.h"\n'))
    assert.equal("", complaints("kernels/norm/a.c", head .. '#include "../../runtime/team.h"\n'))
    assert.matches("only runtime/bind/ and main.c include lua.h",
      complaints("runtime/a.c", head .. "#include <lua.h>\n"))
    assert.matches("only %*_cuda.c", complaints("runtime/a.c", head .. "#include <cuda.h>\n"))
  end)

  it("keeps the layers of Lua", function()
    local function requiring(module, name)
      return ('-- a\nlocal a = require "tidelock.%s"\nreturn { "%s", a }\n'):format(module, name)
    end
    assert.matches("tidelock.model.nn, which stands in a later layer",
      complaints("lua/tidelock/language/recipe.lua", requiring("model.nn", "recipe")))
    assert.matches("tidelock.run, which stands in a later layer",
      complaints("lua/tidelock/plan/stages/emit.lua", requiring("run", "emit")))
    assert.matches("tidelock.cli, which stands in a later layer",
      complaints("lua/tidelock/commands/manual.lua", requiring("cli", "manual")))
    assert.equal("",
      complaints("lua/tidelock/model/nn.lua", requiring("language.recipe", "nn")))
    assert.equal("", complaints("lua/tidelock/model/nn.lua", requiring("model.graph", "nn")))
  end)

  it("wants keys in order from one function", function()
    local loop = "-- cli.lua - a.\nlocal names = {}\n"
      .. "for name in pairs(map) do names[#names + 1] = name end\n"
    assert.equal("lua/tidelock/cli.lua:3: tidelock.text.sorted_keys does this",
      complaints("lua/tidelock/cli.lua", loop .. "table.sort(names)\n"))
    assert.equal("", complaints("lua/tidelock/cli.lua", loop .. "table.sort(others)\n"))
    assert.equal("", complaints("lua/tidelock/cli.lua",
      loop .. "table.sort(names, function(a, b) return a > b end)\n"))
    assert.equal("", complaints("lua/tidelock/cli.lua",
      loop:gsub("for", "add(names)\nfor") .. "table.sort(names)\n"))
  end)

  it("wants every module in a room, and every name to be one", function()
    local tree = { ["lua/tidelock/init.lua"] = "-- a\nreturn require 'tidelock.text.svg'\n",
      ["lua/tidelock/svg.lua"] = "-- a\nreturn { 'svg' }\n" }
    assert.equal("lua/tidelock/svg.lua:1: stands in no room of lua/tidelock/; "
      .. "lua/tidelock/init.lua:2: there is no module tidelock.text.svg; "
      .. "lua/tidelock/svg.lua:1: nothing requires this module", complaints(tree))
    tree["lua/tidelock/text/svg.lua"] = tree["lua/tidelock/svg.lua"]
    tree["lua/tidelock/svg.lua"] = nil
    assert.equal("", complaints(tree))
  end)

  it("sees circles and orphans", function()
    assert.matches("runtime/b.h:2: closes a circle with runtime/a.h", complaints {
      ["runtime/a.h"] = '/* a.h - a. */\n#include "b.h"\n',
      ["runtime/b.h"] = '/* b.h - b. */\n#include "a.h"\n',
    })
    assert.matches("nothing includes this file", complaints("runtime/a.h", "/* a.h - a. */\n"))
    assert.matches("nothing requires this module", complaints("lua/tidelock/x.lua", "-- x\n"))
  end)
end)
