local core = require "tidelock.core"
local new_folder = require "support.folder"
local support = require "support"

local function contains(text, message) assert.matches(text, message, 1, true) end
local files = core.files

describe("files", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  it("tell what exists and what is a folder", function()
    local path = folder:write("a", "text")
    assert.is_true(files.exists(path))
    assert.is_false(files.exists(path .. "x"))
    assert.is_true(files.is_directory(folder.root))
    assert.is_false(files.is_directory(path))
    assert.equal(4, files.size(path))
  end)

  it("end the process with the name of a mapped one that is cut", function()
    local path = folder:write("tokens.bin", ("\1\0"):rep(100000))
    local script = folder:write("cut.lua", ([=[
      local data, tl = require "tidelock.language.data", require "tidelock"
      local source = data.open(tl.data.tokens { %q, dtype = "uint16" },
        { length = 8, vocab = 9, seed = 0, samples = 4 })
      io.open(%q, "wb"):close()
      for step = 0, 1000 do source:micro(step, 4, 0, 4) end
    ]=]):format(path, path))
    local pipe = io.popen(("%s lua %s 2>&1"):format(support.program, script))
    local text = pipe:read "a"
    assert.equal(1, select(3, pipe:close()))
    assert.equal("tidelock: " .. path .. ": the file became shorter while it was read\n", text)
  end)

  it("answer nil and a message with the path for what is absent", function()
    local path = folder:path "absent"
    for _, name in ipairs { "read_all", "size", "mtime", "realpath", "sha256", "list" } do
      local value, message = files[name](path)
      assert.is_nil(value)
      contains(path .. ": ", message)
      contains("No such file or directory", message)
    end
  end)

  it("make folders with those above them, again and again", function()
    local path = folder:path "one/two//three"
    files.mkdirs(path)
    files.mkdirs(path)
    assert.is_true(files.is_directory(path))
    folder:write("file", "")
    assert.error_matches(function() files.mkdirs(folder:path "file/below") end, "cannot make it")
  end)

  it("list names and match patterns in bytewise order", function()
    for _, name in ipairs { "b", "B", "a10", "a2", "_", ".hidden" } do folder:write(name, "") end
    assert.same({ ".hidden", "B", "_", "a10", "a2", "b" }, files.list(folder.root))
    assert.same({ folder:path "a10", folder:path "a2" }, files.glob(folder:path "a*"))
    assert.same({}, files.glob(folder:path "c*"))
  end)

  it("read whole files, also empty ones and zero bytes", function()
    assert.equal("a\0b", files.read_all(folder:write("zero", "a\0b")))
    assert.equal("", files.read_all(folder:write("empty", "")))
    local value, message = files.read_all(folder.root)
    assert.is_nil(value)
    contains("not a regular file", message)
  end)

  it("replace a file at once and leave nothing beside it", function()
    local path = folder:write("good", "old")
    files.write_atomic(path, "new", "", "\0text")
    assert.equal("new\0text", files.read_all(path))
    assert.same({ "good" }, files.list(folder.root))
    assert.has_error(function() files.write_atomic(folder:path "none/file", "x") end)
    files.mkdirs(folder:path "folder")
    local function replace() files.write_atomic(folder:path "folder", "x") end
    assert.error_matches(replace, "cannot replace it")
    assert.same({ "folder", "good" }, files.list(folder.root))
  end)

  it("resolve links", function()
    local path = folder:write("real", "")
    os.execute(("ln -s real %s"):format(folder:path "link"))
    assert.equal(files.realpath(path), files.realpath(folder:path "link"))
  end)

  it("have the SHA-256 of FIPS 180-4's examples", function()
    local function hash(text) return files.sha256(folder:write("text", text)) end
    assert.equal("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", hash "")
    assert.equal("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", hash "abc")
    assert.equal("cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
      hash(("a"):rep(1000000)))
  end)

  it("know when they were changed", function()
    local path = folder:write("dated", "")
    os.execute(("touch -d @1234567890.5 %s"):format(path))
    assert.equal(1234567890.5, files.mtime(path))
  end)
end)

describe("the machine", function()
  it("tells its processors, name, process and terminal", function()
    assert.is_true(files.cpu_count() >= 1)
    assert.is_true(#files.hostname() > 0)
    assert.is_true(files.exists("/proc/" .. files.getpid()))
    assert.is_boolean(files.isatty(2))
    assert.is_true(files.columns() == nil or files.columns() > 0)
  end)

  it("has a clock that goes forward, and sleeps at least as long as asked", function()
    local start = files.seconds()
    files.sleep(0.01)
    assert.is_true(files.seconds() - start >= 0.01)
    files.sleep(0)
    files.sleep(-1)
  end)
end)
