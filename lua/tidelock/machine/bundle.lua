--- `./tl bundle DIR`: a folder that runs on a machine without packages and without network.
--
--   DIR/tl                 run, plan, verify, doctor, .. and test; POSIX sh, no other program
--   DIR/build/tidelock     this program, cubins inside; build/support: the programs that specs run
--   DIR/lua recipes tests docs kernels runtime ..   the tree as it is here
--   DIR/texts              the licence texts that the quickstart reads, with a note on them
--   DIR/busted             the test runner: Lua modules, and three modules in C
--
--   DIR/tl run recipes/quickstart.lua device=cuda
--   DIR/tl test
--
-- It needs the C library alone, of the version that is printed. What would not run elsewhere is
-- refused: a program that needs another shared library, a text that is not the pinned one.

local core = require "tidelock.core"
local elf = require "tidelock.machine.elf"
local machine = require "tidelock.machine.code"
local screen = require "tidelock.text.screen"

local bundle = {}

--- Libraries that every machine with this C library has.
local everywhere = {
  ["libc.so.6"] = true, ["libm.so.6"] = true, ["libdl.so.2"] = true, ["libpthread.so.0"] = true,
  ["librt.so.1"] = true, ["ld-linux-x86-64.so.2"] = true, ["ld-linux-aarch64.so.1"] = true,
}

--- What lies in the tree and goes along.
local tree = { ".busted", ".ci", "CMakeLists.txt", "LICENSE", "README.md", "cmake", "docs",
  "kernels", "lua", "recipes", "runtime", "tests" }

local texts_folder = "/usr/share/common-licenses/"

local runner = [[
#!/bin/sh
# tl - runs Tidelock from this folder: DIR/tl COMMAND ..., DIR/tl test [FILES]. Paths are from here.
case $0 in */*) cd "${0%/*}" || exit 1 ;; esac
root=$PWD
export TIDELOCK="$root/build/tidelock" TIDELOCK_LUA="$root/lua"
if [ "${1-}" = test ]; then
  shift
  export LUA_PATH="$root/busted/?.lua;$root/busted/?/init.lua;;"
  export LUA_CPATH="$root/busted/?.so;;"
  exec "$root/build/tidelock" lua "$root/busted/run.lua" "$@"
fi
exec "$root/build/tidelock" "$@"
]]

local notice = [[
The files below texts/ are the licence texts that recipes/quickstart.lua trains on, as Debian 12 and
Ubuntu 24.04 have them below /usr/share/common-licenses, byte for byte: their SHA-256 stand in the
recipe. Each may be copied verbatim, as it says itself. Here they are data; Tidelock's own licence
is LICENSE.
]]

local function fail(status, format, ...)
  error({ status = status, message = "tidelock: bundle: " .. format:format(...) }, 0)
end

local function quoted(path) return "'" .. path:gsub("'", "'\\''") .. "'" end

local function copy(from, to)
  if not os.execute(("cp -R -L -p %s %s"):format(quoted(from), quoted(to))) then
    fail(1, "%s cannot be copied to %s", from, to)
  end
end

--- What `path` needs, or a refusal that names the library.
---@return string # the version of the C library
function bundle.check_needs(path, bytes)
  local needs = elf.needs(bytes)
  for _, library in ipairs(needs.libraries) do
    if not everywhere[library] then
      fail(1, "%s needs %s, which a machine without packages lacks; build without it (no "
        .. "TL_SANITIZE, no MPI), then bundle again", path, library)
    end
  end
  return needs.glibc
end

--- The folder to write to: new, or empty.
local function open_target(folder)
  local names = core.files.is_directory(folder) and core.files.list(folder) or {}
  if #names > 0 or core.files.exists(folder) and not core.files.is_directory(folder) then
    fail(2, "%s exists and is not empty; give a new folder", folder)
  end
  core.files.mkdirs(folder)
  return core.files.realpath(folder)
end

--- busted and what it needs, found as the running Lua finds modules.
local function copy_runner(target)
  core.files.mkdirs(target .. "/busted")
  local newest = "0.0"
  for _, name in ipairs { "busted", "cliargs", "luassert", "say", "pl", "mediator", "term",
    "system" } do
    local path = package.searchpath(name, package.path)
    if not path then
      fail(1, "the test runner's module %s is not installed; ./tl test installs it", name)
    end
    local folder = path:match "^(.*/)" .. name
    if path:match "/init%.lua$" then folder = path:match "^(.*)/init%.lua$" end
    if not path:match "/init%.lua$" then copy(path, target .. "/busted/" .. name .. ".lua") end
    if core.files.is_directory(folder) then copy(folder, target .. "/busted/" .. name) end
  end
  for _, name in ipairs { "lfs", "term.core", "system.core" } do
    local path = package.searchpath(name, package.cpath)
    if not path then fail(1, "the module %s in C is not installed", name) end
    local inside = target .. "/busted/" .. name:gsub("%.", "/") .. ".so"
    core.files.mkdirs(inside:match "^(.*)/")
    copy(path, inside)
    newest = math.max(tonumber((bundle.check_needs(path, core.files.read_all(path))
      :gsub("^2%.", ""))) or 0, tonumber((newest:gsub("^%d%.", ""))) or 0)
    newest = "2." .. math.tointeger(newest)
  end
  core.files.write_atomic(target .. "/busted/run.lua",
    '-- run.lua - busted, from this folder.\nrequire "busted.runner" { standalone = false }\n')
  return newest
end

--- Text files of recipes and tests that name the texts by their place on Debian.
local function rename_texts(target)
  local pipe = assert(io.popen(("grep -rlF %s %s %s"):format(quoted(texts_folder),
    quoted(target .. "/recipes"), quoted(target .. "/tests"))))
  for path in pipe:lines() do
    local text = core.files.read_all(path)
    local changed = text:gsub(texts_folder:gsub("%-", "%%-"), "texts/")
    core.files.write_atomic(path, (changed:gsub("^(%-%-[^\n]*\n)",
      "%1-- In this bundle the texts lie in texts/, the same bytes.\n", 1)))
  end
  pipe:close()
end

--- The licence texts that are files of their own, with the note.
local function copy_texts(target)
  core.files.mkdirs(target .. "/texts")
  local count = 0
  for _, path in ipairs(core.files.glob(texts_folder .. "*")) do
    copy(path, target .. "/texts/" .. path:match "[^/]+$")
    count = count + 1
  end
  if count == 0 then fail(1, "no texts below %s; the quickstart could not run", texts_folder) end
  core.files.write_atomic(target .. "/NOTICE-texts", notice)
end

local function copy_program(target)
  local program = core.files.realpath "/proc/self/exe"
  local glibc = bundle.check_needs(program, core.files.read_all(program))
  core.files.mkdirs(target .. "/build")
  copy(program, target .. "/build/tidelock")
  local support = machine.folder() .. "/support"
  if core.files.is_directory(support) then copy(support, target .. "/build/support") end
  return glibc
end

--- Writes the bundle. Returns the version of the C library that it needs.
---@param folder string
function bundle.write(folder)
  local root = machine.root()
  local program = core.files.realpath "/proc/self/exe"
  bundle.check_needs(program, core.files.read_all(program)) -- before anything is written
  local target = open_target(folder)
  local glibc = copy_program(target)
  for _, name in ipairs(tree) do
    local from = root .. "/" .. name
    if core.files.exists(from) then copy(from, target .. "/" .. name) end
  end
  copy_texts(target)
  rename_texts(target)
  local runner_glibc = copy_runner(target)
  core.files.write_atomic(target .. "/tl", runner)
  if not os.execute("chmod 755 " .. quoted(target .. "/tl")) then fail(1, "chmod failed") end
  local a, b = tonumber(glibc:match "%.(%d+)"), tonumber(runner_glibc:match "%.(%d+)")
  return a >= b and glibc or runner_glibc
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function bundle.command(request)
  local glibc = bundle.write(request.words[1])
  local images, out = core.manifest.images(), io.stdout
  out:write(("%s is complete; it needs Linux with glibc %s or later, and nothing else\n"):format(
    request.words[1], glibc))
  out:write(#images > 0 and ("kernels    %s of GPU code inside; libcuda.so.1 comes with the GPU's "
    .. "driver\n"):format(screen.plural(#images, "cubin"))
    or "kernels    no GPU code in this build: TL_CUDA=on ./tl bundle takes it along\n")
  out:write(("next       %s/tl run recipes/quickstart.lua%s\n           %s/tl test\n"):format(
    request.words[1], #images > 0 and " device=cuda" or "", request.words[1]))
  return 0
end

return bundle
