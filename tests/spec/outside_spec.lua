-- What the world outside does to a run: signals, pipes, disks, terminals.
local core = require "tidelock.core"
local log = require "tidelock.run.log"
local new_folder = require "support.folder"
local support = require "support"

local program = support.program
local signals = "env --default-signal=INT,TERM,HUP " -- whoever runs the tests may ignore some
local recipe = [[
  local tl = require "tidelock"
  local nn = tl.nn
  return tl.recipe {
    model = nn.decoder { vocab = 256, dim = 16, layers = 1, layer = function()
      return { nn.residual { nn.rms_norm {}, nn.attention { heads = 4 } } }
    end },
    data = tl.data.text { "LICENSE" },
    batch = { samples = 2, length = 16 },
    train = { steps = 3, lr = 1e-3 },
  }]]

local function has(text, part)
  assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
end

local function lacks(text, part) assert.is_nil(text:find(part, 1, true), text) end

describe("outside", function()
  local folder, run
  before_each(function()
    folder = new_folder()
    run = ("%s run %s --runs %s"):format(program, folder:write("tiny.lua", recipe),
      folder:path "runs")
  end)
  after_each(function() folder:remove() end)

  --- Runs a shell script; both outputs as one text.
  local function shell(script)
    local pipe = assert(io.popen(("sh %s 2>&1"):format(folder:write("script", script))))
    local text = pipe:read "a"
    pipe:close()
    return text
  end

  local function run_folders() return core.files.list(folder:path "runs") end

  describe("signals", function()
    --- What a script says that raises `first` against itself, and then `second`.
    local function raised(first, second, prefix)
      local path = folder:write("raise.lua", ([[
        local core = require "tidelock.core"
        core.catch_interrupts()
        for _, name in ipairs { %q, %q } do
          io.popen("kill -" .. name .. " " .. core.files.getpid()):close()
          print(name, core.interrupted())
          io.stdout:flush()
        end]]):format(first, second))
      return shell(("%s %s lua %s; echo $?"):format(prefix or signals, program, path))
    end

    it("are a flag first, and end the process when a second one comes", function()
      assert.matches("^INT\tSIGINT\n.*130\n$", raised("INT", "INT"))
      assert.matches("^TERM\tSIGTERM\n.*130\n$", raised("TERM", "INT"))
      assert.matches("^HUP\tSIGHUP\n.*143\n$", raised("HUP", "TERM"))
    end)

    it("that are ignored from the start stay ignored", function()
      assert.equal("HUP\tfalse\nHUP\tfalse\n0\n", raised("HUP", "HUP", "env --ignore-signal=HUP"))
    end)

    it("end a run after a whole step, with its summary and status 75", function()
      local text = shell(([[
        cd %s && mkfifo steps
        { exec 3<steps; read -r first <&3; kill -TERM $(cat pid); cat <&3 >/dev/null; } &
        cd - >/dev/null
        sh -c 'echo $$ > %s/pid; exec %s%s train.steps=100000 --quiet --jsonl %s/steps'
        echo "status $?"
        wait]]):format(folder.root, folder.root, signals, run, folder.root))
      has(text, "stopped    by SIGTERM after step ")
      has(text, "\nsaved      ")
      has(text, "status 75\n")
      assert.is_true(core.files.exists(folder:path("runs/" .. run_folders()[1] .. "/summary.json")))
    end)
  end)

  describe("output", function()
    it("that nobody reads ends a run, and the next run uses its folder again", function()
      -- so long that the reader is gone before the run ends
      local text = shell(("{ %s train.steps=100000; echo $? >&2; } | head -n 1"):format(run))
      has(text, "tiny.lua   key ")
      has(text, "141\n")
      has(shell(run), "\nsaved      ")
      assert.equal(1, #run_folders())
    end)

    it("that cannot be written is a failure, for every command", function()
      for _, words in ipairs { run, program .. " help", program .. " lua docs/sum.lua" } do
        local text = shell(words .. " >/dev/full; echo $?")
        has(text, "tidelock: cannot write to standard output")
        assert.matches("\n1\n$", "\n" .. text:gsub("[^\n]*output[^\n]*\n", ""), words)
      end
    end)

    it("that is closed is not mixed up with the run's files", function()
      assert.equal("0\n", shell(run .. " <&- >&- 2>&-; echo $?"))
      local path = folder:path("runs/" .. run_folders()[1] .. "/log.jsonl")
      assert.equal(4, #log.read(path))
      assert.equal(4, select(2, core.files.read_all(path):gsub("\n", "")))
    end)
  end)

  describe("files", function()
    it("that cannot grow end the run with their name and the reason", function()
      -- a limit on the size of files in the place of a full disk: 8 blocks of 512 bytes
      local text = shell(("ulimit -f 8; env --ignore-signal=XFSZ %s; echo $?"):format(run))
      assert.matches("\n%S+/runs/tiny%-%x+/%w+%.%w+: cannot write it: File too large\n1\n$", text)
      lacks(text, "lua/tidelock")
      has(shell(run), "\nsaved      ")
      assert.equal(1, #run_folders())
      has(shell(run .. " --jsonl /dev/full; echo $?"), "/dev/full: cannot write it: No space left")
    end)

    it("that have no place are refused before the first step, and leave nothing", function()
      local text = shell(("%s run %s --runs LICENSE; echo $?"):format(program,
        folder:path "tiny.lua"))
      has(text, "tidelock: no folder for this run in LICENSE: LICENSE: cannot make it: ")
      has(text, "; --runs DIR keeps it elsewhere\n2\n")
      text = shell(run .. " --trace /dev/null; echo $?")
      assert.equal("tidelock: no trace in /dev/null: /dev/null: cannot make it: File exists; "
        .. "--trace DIR names a folder, new or of an earlier trace\n2\n", text)
      text = shell(run .. " --trace LICENSE/x; echo $?")
      has(text, "tidelock: no trace in LICENSE/x: LICENSE: cannot make it: ")
      has(text, "\n2\n")
      text = shell(("ulimit -f 1; env --ignore-signal=XFSZ %s; echo $?"):format(run))
      has(text, "/resolved.txt: cannot write it: File too large")
      has(text, "\n2\n")
      assert.same({}, run_folders())
    end)

    it("of two runs at a time do not meet", function()
      -- the first one waits for a reader of its records until the second one is through
      local text = shell(([[
        mkfifo %s/steps
        %s%s train.steps=100000 --quiet --jsonl %s/steps &
        { read -r first; %s; kill -TERM $!; cat >/dev/null; } < %s/steps
        wait]]):format(folder.root, signals, run, folder.root, run, folder.root))
      local first, second = table.unpack(run_folders())
      has(text, ("%s is in use by another run; this one writes %s\n"):format(
        folder:path("runs/" .. first), folder:path("runs/" .. second)))
      local function records(name) return log.read(folder:path("runs/" .. name .. "/log.jsonl")) end
      assert.equal(4, #records(second))
      assert.is_true(#records(first) > 4)
      assert.equal(records(first)[3].loss_bits, records(second)[3].loss_bits)
    end)

    it("with bytes that are no ids are refused before the first step", function()
      folder:write("tiny.lua", (recipe:gsub("vocab = 256", "vocab = 100")))
      local text = shell(run .. "; echo $?")
      has(text, "tiny.lua:4: nn.decoder.vocab: vocab 100 is too small for LICENSE (")
      has(text, ":7: data.text): byte ")
      has(text, "\n1 error; nothing was started\n2\n")
      assert.is_nil(core.files.list(folder:path "runs"))
    end)

    it("that change while a run reads them are told with the recipe's line, once", function()
      local path = folder:write("text", ("a"):rep(64))
      local text = recipe:gsub("vocab = 256", "vocab = 100"):gsub("LICENSE", path)
      local recipes = require "tidelock.language.recipe"
      local trained <close> = recipes.load(folder:write("tiny.lua", text)):start {}
      folder:write("text", ("z"):rep(64))
      local good, message = pcall(trained.step, trained)
      assert.is_false(good)
      has(message, ("load_micro (%s:7): data.text: %s: token 122 at position "):format(
        folder:path "tiny.lua", path))
    end)

    it("are found without a home and with an empty environment", function()
      has(shell("env -i " .. run), "\nsaved      ")
    end)
  end)

  describe("a terminal", function()
    --- What a run writes to a terminal of `columns`.
    local function on_terminal(columns, environment)
      local command = ("stty cols %d; %s %s train.steps=40"):format(columns, environment, run)
      return (shell(("script -qec '%s' /dev/null </dev/null"):format(command)):gsub("\r\n", "\n"))
    end

    if not core.files.exists "/usr/bin/script" then
      return pending "there is no /usr/bin/script to make a terminal with"
    end

    it("has colour and a live line, and no line beyond its width", function()
      local text = on_terminal(40, "env -u NO_COLOR TERM=xterm")
      has(text, "\27[1m")
      has(text, "\r\27[K  40/40  loss ")
      for line in text:gsub("\27%[%d*%a", ""):gmatch "[^\r\n]+" do
        local free = line:find "^%a" or line:find "^ +%./tl" -- the terminal may break a command
        assert.is_true(#line <= 40 or free ~= nil, line)
      end
    end)

    it("has no colour with NO_COLOR, and no control at all when it is dumb", function()
      local text = on_terminal(100, "env NO_COLOR=1 TERM=xterm")
      lacks(text, "\27[1m")
      has(text, "\r\27[K  [")
      text = on_terminal(100, "env -u NO_COLOR TERM=dumb")
      lacks(text, "\27")
      lacks(text, "\r")
    end)
  end)
end)
