-- ./tl test believes a file of specs only what it came to say at its end.
local core = require "tidelock.core"
local new_folder = require "support.folder"
local support = require "support"

describe("a file of the suite", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() os.execute("rm -r -f " .. folder.root) end)

  --- What is shown of a file with this test inside, and what ./tl test reads of it.
  local function said(body)
    local file = folder:write("some_spec.lua", ('it("does it", function() %s end)'):format(body))
    local command = "OUT=%s TIDELOCK=%s bash tests/support/one_file.sh %s 2>&1"
    local pipe = assert(io.popen(command:format(folder.root, support.program, file)))
    local text = pipe:read "a"
    pipe:close()
    return text, core.files.read_all(folder:path "some.last")
  end

  it("is one line where all passes", function()
    local text, last = said "assert.is_true(true)"
    assert.matches("^ *%d+%.%d s  some: 1 passed, 0 failed\n$", text)
    assert.matches("1 passed, 0 failed\n$", last)
  end)

  it("is shown whole where a test fails, or is left out", function()
    local text, last = said "assert.equal(1, 2)"
    assert.matches("Expected objects to be equal.*s  some: 0 passed, 1 failed\n$", text)
    assert.matches("0 passed, 1 failed\n$", last)
    text, last = said 'pending "no moon"'
    assert.matches("no moon.*s  some: 0 passed, 0 failed\n$", text)
    assert.matches("^1 left out, see above\n0 passed, 0 failed\n$", last)
  end)

  it("has said nothing where its program dies, before the end or after it", function()
    for _, body in ipairs { "os.exit(3)", "os.execute('kill -9 ' .. core.files.getpid())" } do
      local _, last = said('local core = require "tidelock.core" ' .. body)
      assert.is_nil(last:find "passed")
    end
    local _, last = said [[setmetatable({}, { __gc = function() os.exit(4) end })]]
    assert.equal("", last)
  end)
end)
