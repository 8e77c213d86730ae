-- cmake --install into an empty folder: the program runs there, and a program in C is built against
-- it with pkg-config alone, without Lua, and gives the bits that are written down.
local core = require "tidelock.core"
local golden = require "golden.make"
local new_folder = require "support.folder"
local support = require "support"

local build = support.program:match "^(.*)/[^/]+$" or "."

local function shell(command)
  local pipe = assert(io.popen("( " .. command .. " ) 2>&1"))
  local text = pipe:read "a"
  local _, _, status = pipe:close()
  return text, status
end

--- Why it cannot be tried here; nil when it can.
local function missing()
  if not core.files.exists(build .. "/cmake_install.cmake") then return "no build folder" end
  if core.build().sanitizer ~= "none" then return "a library with a sanitizer inside" end
  for _, name in ipairs { "cmake", "cc", "pkg-config" } do
    if not os.execute("command -v " .. name .. " >/dev/null 2>&1") then return "no " .. name end
  end
end

describe("an installed Tidelock", function()
  local folder, prefix, reason
  local function has(text, part)
    assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
  end

  setup(function()
    reason, folder = missing(), new_folder()
    if reason then return end
    local first = folder:path "first"
    local text, status = shell(("cmake --install %s --prefix %s"):format(build, first))
    assert.equal(0, status, text)
    prefix = folder:path "moved" -- nothing in it knows where it was installed
    assert.is_true(os.rename(first, prefix))
  end)
  teardown(function() os.execute("rm -r -f " .. folder.root) end)

  local function case(name, fn)
    it(name, function()
      if reason then return pending(reason) end
      fn()
    end)
  end

  case("runs where it was moved to, with its manual page and completion", function()
    local text, status = shell(("cd / && env -u TIDELOCK_LUA %s/bin/tidelock plan "
      .. "%s/share/tidelock/recipes/quickstart.lua"):format(prefix, prefix))
    assert.equal(0, status, text)
    has(text, "853,120 weights")
    has(core.files.read_all(prefix .. "/share/man/man1/tidelock.1"), ".TH TIDELOCK 1")
    has(core.files.read_all(prefix .. "/share/bash-completion/completions/tidelock"),
      "complete -o filenames -F _tidelock")
  end)

  --- Compiles examples/train.c with what pkg-config says; the program's path.
  local function example()
    local program = folder:path "train"
    local text, status = shell(("export PKG_CONFIG_PATH=%s/lib/pkgconfig; cc -std=gnu11 -Wall "
      .. "-Wextra -Werror -o %s examples/train.c $(pkg-config --cflags --libs tidelock)"):format(
      prefix, program))
    assert.equal(0, status, text)
    return program
  end

  case("names a plan that is not there, once", function()
    local text, status = shell(example() .. " /no/such.plan")
    assert.equal(1, status)
    assert.equal("unable to open /no/such.plan: No such file or directory\n", text)
  end)

  case("trains from 42 lines of C without Lua, to the bits that are written down", function()
    local program, plan = example(), folder:path "quickstart.plan"
    local text, status = shell(("%s/bin/tidelock plan recipes/quickstart.lua --program %s"):format(
      prefix, plan))
    assert.equal(0, status, text)
    assert.equal(nil, shell("nm " .. program):find(" T lua_"))
    assert.is_true(select(2, core.files.read_all "examples/train.c":gsub("\n", "")) <= 42)
    text, status = shell(("%s %s %s"):format(program, plan, golden.own.text))
    assert.equal(0, status, text)
    local known = core.json.decode(core.files.read_all(golden.file))["own text, f32"]
    local steps = {}
    for loss, norm in text:gmatch "loss (%S+)  gradient norm (%S+)" do
      local function bits(word)
        return ("%08x"):format(string.unpack("<I4", string.pack("<f", tonumber(word))))
      end
      steps[#steps + 1] = { loss = bits(loss), grad_norm = bits(norm) }
    end
    assert.same(table.move(known.steps, 1, 3, 1, {}), steps)
  end)

  case("refuses a damaged program file and says where", function()
    local program, plan = example(), folder:path "quickstart.plan"
    shell(("%s/bin/tidelock plan recipes/quickstart.lua --program %s"):format(prefix, plan))
    local whole = core.files.read_all(plan)
    local function with(from, to)
      local first, last = whole:find(from, 1, true)
      assert.is_truthy(first, from)
      return whole:sub(1, first - 1) .. to .. whole:sub(last + 1)
    end
    --- With the checksum of what it has become: a file that was made wrong.
    local function sealed(text)
      local front = text:match '^(.*),"xxh64":"%x+"}$'
      return ('%s,"xxh64":"%s"}'):format(front, core.hash(front))
    end
    local middle = #whole // 2
    local bit = string.char(whole:byte(middle) ~ 1)
    for text, message in pairs {
      [whole:sub(1, #whole // 2)] = "quickstart.plan: line 1: ",
      ["{}"] = "this is no program",
      [with('"tidelock_program":2', '"tidelock_program":9')] = "of version 9; this build reads 2",
      [with('["rms_norm"', '["rms_nrom"')] = "damaged: its bytes have the checksum ",
      [whole:gsub(',"xxh64":"%x+"}$', "}")] = "it has no checksum",
      [whole:gsub('"%x%x%x%x(%x+)"}$', '"0000%1"}')] = " and 0000",
      [whole:sub(1, middle - 1) .. bit .. whole:sub(middle + 1)] = "quickstart.plan: ",
      [sealed(with('["rms_norm"', '["rms_nrom"'))] = "this build has no operator rms_nrom",
      [sealed(with('"init":[', '"init":[99999'))] = "section init is no part of the program",
      [sealed(with('"loss":', '"lost":'))] = "result lost",
      [sealed(with('[0,"', '[1,"'))] = "must be a multiple of",
      [sealed(with('"seed":0', '"sead":0'))] = "about: a field is missing",
    } do
      core.files.write_atomic(plan, text)
      local said, status = shell(("%s %s %s"):format(program, plan, golden.own.text))
      assert.equal(1, status, said)
      has(said, message)
    end
  end)

  case("finds one bit that was flipped, wherever it is", function()
    local program, plan = example(), folder:path "quickstart.plan"
    shell(("%s/bin/tidelock plan recipes/quickstart.lua --program %s"):format(prefix, plan))
    local whole = core.files.read_all(plan)
    for i = 1, 24 do
      local at = 1 + i * 2654435761 % #whole
      local flipped = string.char(whole:byte(at) ~ (1 << i % 8))
      core.files.write_atomic(plan, whole:sub(1, at - 1) .. flipped .. whole:sub(at + 1))
      local said, status = shell(("%s %s %s"):format(program, plan, golden.own.text))
      assert.equal(1, status, ("byte %d of %d: %s"):format(at, #whole, said))
      has(said, "quickstart.plan: ")
    end
  end)

  it("is of one rank, else the file is refused", function()
    local text, status = support.run("plan recipes/quickstart.lua layout.tp=2 --program "
      .. folder:path "x.plan")
    assert.equal(2, status)
    has(text, "a file is of one rank")
  end)
end)
