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

describe("the suite", function()
  local folder, specs
  before_each(function()
    folder = new_folder()
    specs = folder:path "tests/spec/"
    core.files.mkdirs(specs)
    core.files.mkdirs(folder:path "temporary")
    folder:write("tests/spec/good_spec.lua", 'it("is", function() end)')
  end)
  after_each(function() os.execute("rm -r -f " .. folder.root) end)

  --- What sh says when `script` has run there; $suite starts it.
  local function says(script)
    local file = folder:write("script", ([[
suite="bash $PWD/tests/support/suite.sh --output=$PWD/tests/support/output.lua"
export TMPDIR=%s/temporary TIDELOCK=$(realpath %s)
cd %s
%s]]):format(folder.root, support.program, folder.root, script))
    local pipe = assert(io.popen(("bash %s 2>&1"):format(file)))
    local text = pipe:read "a"
    pipe:close()
    assert.same({}, core.files.list(folder:path "temporary"))
    return text
  end

  it("ends as its worst file does, and says how", function()
    assert.matches("good: 1 passed, 0 failed\n1 passed, 0 failed\nexit 0\n$",
      says "$suite; echo exit $?")
    assert.matches("\nthere is no such test\n0 passed, 0 failed\nexit 1\n$",
      says "$suite --filter=another; echo exit $?")
    folder:write("tests/spec/bad_spec.lua", 'it("is", function() assert.equal(1, 2) end)')
    assert.matches("Expected objects to be equal.*\n1 passed, 1 failed\nexit 1\n$",
      says "$suite; echo exit $?")
    folder:write("tests/spec/bad_spec.lua", "os.exit(0)")
    assert.matches("\n1 files did not come to their end, see above\n1 passed, 0 failed\nexit 1\n$",
      says "$suite; echo exit $?")
  end)

  it("leaves no program behind when it alone is ended", function()
    folder:write("tests/spec/long_spec.lua",
      [[it("is", function() os.execute "echo $PPID >pid.new; mv pid.new pid; sleep 60" end)]])
    for _, case in ipairs { { "TERM", 143 }, { "HUP", 129 } } do
      assert.matches("exit " .. case[2] .. "\ngone\n$", says(([[
env --default-signal=HUP $suite & while [ ! -e pid ]; do sleep 0.05; done
kill -%s $!; wait $!; echo exit $?
runs() { grep -q '^State:.[^Z]' /proc/$(cat pid)/status 2>none; }
for _ in $(seq 200); do ! runs || sleep 0.05; done
runs || echo gone
rm pid]]):format(case[1])))
    end
  end)
end)
