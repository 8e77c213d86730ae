-- core.lines: lines of Lua told to a function, those of the library left out.
local core = require "tidelock.core"

local function script(name, lines) return assert(load(table.concat(lines, "\n"), "@" .. name)) end

describe("lines that are told", function()
  local seen
  local function note(source, line)
    seen[#seen + 1] = source .. ":" .. line
  end

  before_each(function() seen = {} end)
  after_each(function() core.lines(nil) end)

  it("are those of every chunk, in order, but of none that is skipped", function()
    local inner = script("library/inner.lua", { "local f = ...", "if f then", "f() end", "return" })
    local outer = script("outer.lua", { "local f, g = ...", "f(g)", "return" })
    local last = script("last.lua", { "return" })
    assert.is_false(core.lines(note, "@library/"))
    outer(inner, last)
    core.lines(nil)
    local own = {}
    for _, place in ipairs(seen) do
      if place:find "^@[%l/]+%.lua:" then own[#own + 1] = place end -- not those of this file
    end
    assert.same({ "@outer.lua:1", "@outer.lua:2", "@last.lua:1", "@outer.lua:3" }, own)
  end)

  it("raise what the function raises, and end with it where they are told to", function()
    local function refuse(source)
      if source == "@one.lua" then error("stop", 0) end
    end
    local one = script("one.lua", { "return 1" })
    assert.is_false(core.lines(refuse))
    local good, message = pcall(one)
    assert.is_true(core.lines(nil))
    assert.same({ false, "stop" }, { good, message })
    assert.equal(1, one())
    assert.is_false(core.lines(nil))
  end)

  it("are not told of a coroutine that outlives them", function()
    local body = script("body.lua", { "local wait = ...", "wait()", "return 3" })
    core.lines(note)
    local thread = coroutine.create(body)
    assert.is_true(coroutine.resume(thread, coroutine.yield))
    core.lines(nil)
    local count = #seen
    assert.same({ true, 3 }, { coroutine.resume(thread) })
    assert.equal(count, #seen)
    assert.is_true(count > 0)
  end)

  it("need a function", function()
    assert.has_error(function() core.lines(1) end)
  end)
end)
