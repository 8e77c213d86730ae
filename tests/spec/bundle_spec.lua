-- ./tl bundle: a folder that runs where nothing is installed. The tests make one and run it in an
-- empty root, where this user may make one.
local core = require "tidelock.core"
local bundle = require "tidelock.machine.bundle"
local elf = require "tidelock.machine.elf"
local golden = require "golden.make"
local new_folder = require "support.folder"
local support = require "support"

local function shell(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read "a"
  return text, select(3, pipe:close())
end

--- The files of the C library that a program of this machine loads.
local function loader_files()
  local files = {}
  for _, pattern in ipairs { "/lib64/ld-linux-*.so.*", "/lib/ld-linux-*.so.*",
    "/lib/*-linux-gnu/libc.so.6", "/lib/*-linux-gnu/libm.so.6" } do
    local folder = pattern:match "^(.*)/"
    if core.files.is_directory((folder:gsub("/%*.*", ""))) then
      for _, path in ipairs(core.files.glob(pattern)) do files[#files + 1] = path end
    end
  end
  return files
end

describe("a program", function()
  it("tells the libraries and the C library that it needs", function()
    local needs = elf.needs(core.files.read_all(core.files.realpath "/proc/self/exe"))
    table.sort(needs.libraries)
    local text = table.concat(needs.libraries, " ")
    assert.matches("libc%.so%.6", text)
    assert.matches("^2%.%d+$", needs.glibc)
    assert.has_error(function() elf.needs "no program" end,
      "it is no 64-bit little-endian ELF file")
  end)

  it("that needs another library is refused by its name", function()
    -- A file with one section of strings and one dynamic section that asks for libmpi.so.40.
    local strings = "\0libmpi.so.40\0"
    local dynamic = ("<i8I8i8I8"):pack(1, 1, 0, 0)
    local at = 64 + #strings + #dynamic
    local function section(kind, offset, size, link)
      return ("<I4I4I8I8I8I8I4I4I8I8"):pack(0, kind, 0, 0, offset, size, link, 0, 1, 0)
    end
    local file = "\127ELF\2\1\1" .. ("\0"):rep(9)
      .. ("<I2I2I4I8I8I8I4I2I2I2I2I2I2"):pack(2, 62, 1, 0, 0, at, 0, 64, 0, 0, 64, 2, 0)
      .. strings .. dynamic .. section(3, 64, #strings, 0)
      .. section(6, 64 + #strings, #dynamic, 0)
    local good, problem = pcall(bundle.check_needs, "build/tidelock", file)
    assert.is_false(good)
    assert.matches("build/tidelock needs libmpi.so.40, which a machine without packages lacks",
      problem.message)
  end)
end)

describe("a bundle", function()
  local folder, root
  local refused -- why no bundle can be made of this build: a sanitizer's library, for example

  setup(function()
    folder = new_folder()
    root = folder:path "root"
    core.files.mkdirs(root)
    local text, status = support.run("bundle " .. root .. "/b")
    if status ~= 0 then refused = text end
  end)
  teardown(function() shell("rm -rf '" .. folder.root .. "'") end)

  local function bundled(name, fn)
    it(name, function()
      if refused then
        assert.matches("which a machine without packages lacks", refused)
        return
      end
      fn()
    end)
  end

  --- Runs the bundle without any variable, in an empty root where that is allowed.
  local function run(words)
    local prefix = ("env -i '%s/b/tl' "):format(root)
    if shell "id -u" == "0\n" then
      core.files.mkdirs(root .. "/bin")
      shell(("cp -L /bin/sh '%s/bin/sh'"):format(root))
      for _, path in ipairs(loader_files()) do
        core.files.mkdirs(root .. path:match "^(.*)/")
        shell(("cp -L '%s' '%s%s'"):format(path, root, path))
      end
      core.files.mkdirs(root .. "/tmp")
      local chroot = shell("command -v chroot || echo /usr/sbin/chroot"):match "%S+"
      prefix = ("env -i %s '%s' /b/tl "):format(chroot, root)
    end
    return shell(prefix .. words)
  end

  bundled("trains the quickstart with the bits that are written down", function()
    local text, status = run "run recipes/quickstart.lua --stop-at 2"
    assert.equal(0, status, text)
    local written = core.json.decode(core.files.read_all(golden.file)).f32
    if not text:find("as pinned", 1, true) then return end -- other texts on this machine
    assert.is_truthy(text:find(written.key:gsub("(%x%x%x%x)", "%1 "):gsub(" $", ""), 1, true), text)
    assert.is_truthy(text:find(written.steps[1].loss, 1, true), text)
    assert.is_truthy(text:find(written.steps[2].loss, 1, true), text)
  end)

  bundled("runs its tests with its own runner", function()
    local text, status = run "test tests/spec/key_spec.lua"
    assert.equal(0, status, text)
    assert.matches("%d passed, 0 failed", text)
  end)

  bundled("runs from any folder, and says what it has", function()
    local text, status = run "doctor"
    assert.equal(0, status, text)
    assert.matches("program     tidelock", text)
    assert.is_true(core.files.exists(root .. "/b/NOTICE-texts"))
    assert.is_true(core.files.exists(root .. "/b/texts/GPL-3"))
  end)

  bundled("is never written over something else", function()
    local text, status = support.run("bundle " .. root .. "/b")
    assert.equal(2, status)
    assert.matches("exists and is not empty", text)
    text, status = support.run "bundle"
    assert.equal(2, status)
    assert.matches("DIR is missing; e.g. %./tl bundle", text)
  end)
end)
