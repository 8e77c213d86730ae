-- Help, the manual page and the completion of words: all of the table of commands, and no more.
local commands = require "tidelock.commands"
local core = require "tidelock.core"
local manual = require "tidelock.commands.manual"
local new_folder = require "support.folder"
local shells = require "tidelock.commands.shells"
local support = require "support"

local function has(text, part)
  assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
end

local function there(program)
  return os.execute("command -v " .. program .. " >/dev/null 2>&1")
end

--- What a shell command prints, and its status.
local function output_of(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read "a"
  local _, _, status = pipe:close()
  return text, status
end

describe("help", function()
  it("has a page for every command, with all options and examples that can be typed", function()
    for _, command in ipairs(manual.commands()) do
      local page = commands.help(command.name)
      has(page, command.about)
      for _, option in ipairs(command.options or {}) do
        has(page, manual.option_words(option))
        has(page, option.about)
      end
      for _, topic in ipairs(command.topics or {}) do
        has(page, "\n  " .. topic .. " ")
        has(page, manual.topics[command.name][topic])
      end
      for _, example in ipairs(manual.examples_of(command)) do has(page, "./tl " .. example) end
      for line in page:gmatch "[^\n]+" do assert.is_true(#line <= 100, line) end
    end
    for name, list in pairs(manual.examples) do
      for _, example in ipairs(list) do
        local words = {}
        for word in example:gmatch "%S+" do words[#words + 1] = word end
        assert.equal(name, commands.parse(words).command.name)
      end
    end
  end)

  it("knows every exit status that the page on operations has", function()
    local page = core.files.read_all "docs/operations.md":match "\n## Exit status\n(.-)\n## "
    for _, exit in ipairs(manual.exits) do
      assert.matches("\n| " .. exit[1]:gsub("%+", " %%+ ") .. " | ", page)
    end
    assert.equal(#manual.exits, select(2, page:gsub("\n| %d", "")))
  end)

  it("suggests where a topic or a command is misspelt", function()
    local function problem(...)
      local ok, raised = pcall(commands.parse, { ... })
      assert.is_false(ok)
      assert.equal(2, raised.status)
      return raised.message
    end
    has(problem("bench", "atention"), "did you mean attention?")
    has(problem("help", "verfy"), "did you mean verify?")
    has(problem("help", "--completion", "tcsh"), 'expected bash, zsh or fish, got "tcsh"')
  end)
end)

describe("help for a field", function()
  local fields = require "tidelock.language.fields"
  local field_pages = require "tidelock.commands.field_pages"

  --- A page as one line of words.
  local function words_of(page) return (page:gsub("%s+", " ")) end

  it("has every field and section of the language, in lines that fit", function()
    for name, section in pairs(fields.sections) do
      for _, field in ipairs(section.fields) do
        local path = name == "recipe" and field.name or name .. "." .. field.name
        local page = assert(field_pages.page(path), path)
        if not fields.sections[path] then has(words_of(page), words_of(field.doc)) end
        has(words_of(assert(field_pages.page(name), name)), words_of(field.doc))
        for line in page:gmatch "[^\n]+" do assert.is_true(#line <= 100, line) end
      end
    end
  end)

  it("shows type, default or required, choices and names", function()
    has(commands.help "layout.tp", "  layout.tp  count  1  tensor parallel ranks\n")
    has(commands.help "batch", "\n  samples  count  required  samples of a step")
    has(commands.help "dtype", "f32|bf16")
    has(commands.help "train.lr", '\n{ "cosine", .. }   Half a cosine from peak to floor.\n  peak')
    has(commands.help "train.lr.peak", "highest learning rate")
    has(commands.help "heads", "nn.attention.heads")
    has(commands.help "heads", "nn.mla.heads")
    has(commands.help "nn", "nn.swiglu")
  end)

  it("suggests where a field is misspelt, and commands come first", function()
    local function message(word)
      local ok, raised = pcall(commands.parse, { "help", word })
      assert.is_false(ok)
      return raised.message
    end
    has(message "layuot", "help: layuot: no such command, field or function; did you mean layout?")
    has(message "verfy", "did you mean verify?")
    has(commands.help "serve", "--port N")
    has(commands.help "serve", "\nfields of a recipe:\nserve   ")
    has(commands.help "serve", "\n  requests  count  16 ")
    assert.is_nil(commands.help("trace"):find("fields of a recipe", 1, true))
    assert.equal("serve.context", commands.parse({ "help", "serve.context" }).topic)
  end)
end)

describe("help for a function", function()
  --- Names that a page of the docs has in the first column of its tables or in its text.
  local function named(page, pattern)
    local names = {}
    for row in core.files.read_all(page):gmatch "\n| ([^\n]*)" do
      for code in (row:match "^(.-) | " or ""):gmatch "`([^`]*)`" do
        for name in code:gmatch(pattern) do names[#names + 1] = name end
      end
    end
    return names
  end

  it("has every one that the docs show, in lines that fit", function()
    local names = named("docs/recipes.md", "%f[%w]g%.%l[%w_]+")
    for _, pattern in ipairs { "tl%.data%.%l+", "recipe:[%l_]+", "run:[%l_]+", "t:[%l_]+" } do
      local more = named("docs/recipes.md", pattern)
      assert.is_true(#more >= 4, pattern)
      table.move(more, 1, #more, #names + 1, names)
    end
    for word in ("sigmoid silu gelu relu tanh square exp log neg sign"):gmatch "%S+" do
      names[#names + 1] = "g." .. word
    end
    for _, name in ipairs { "nn.graph", "tl.recipe", "tl.params", "tl.load", "tl.tensor", "tl.call",
      "tl.lane", "tl.group", "source:split", "lane:wait", "table" } do
      names[#names + 1] = name ~= "table" and name or nil
    end
    assert.is_true(#names > 50)
    for _, name in ipairs(names) do
      local page = commands.help(commands.topic(name))
      assert.equal(name .. "(", page:sub(1, #name + 1))
      for line in page:gmatch "[^\n]+" do assert.is_true(#line <= 100, line) end
    end
  end)

  it("shows arguments with types, and what it does", function()
    assert.equal("g.matmul(a, b) -> Value\n  Sums over the dims that both have.\n"
      .. "    a  Value\n    b  Value\nwith examples: docs/recipes.md, docs/operations.md",
      commands.help "g.matmul")
    has(commands.help "tl.call", '    options?  { step?: integer, seed?: ')
    has(commands.help "recipe:start", "options?  { keep?: string[], threads?: integer, ")
    has(commands.help "recipe:start", "forks?: string[] }\nwith examples")
    has(commands.help "tl.build", '"avx512", sanitizer:\n"none"|"address"|"thread" }\n  What ')
  end)

  it("is found by what is typed", function()
    for topic, name in pairs { ["data.text"] = "tl.data.text(", ["recipe.with"] = "recipe:with(",
      ["RUN:step"] = "run:step(", cross_entropy = "g.cross_entropy(", matmul = "tl.matmul(",
      g = "g.dim(", ["tl.data"] = "tl.data.text(", tl = "tl.recipe(" } do
      assert.equal(name, commands.help(topic):sub(1, #name))
    end
    has(commands.help "matmul", "\ng.matmul(a, b)")
    has(commands.help "nn", "\n  nn.graph  ")
  end)

  it("is suggested; what is far from all, and nothing at all, are answered shortly", function()
    for word, text in pairs { ["g.matmull"] = "did you mean g.matmul?",
      ["zzzzzz"] = "help: zzzzzz: no such command, field or function; ./tl help, ",
      [""] = "help: the topic is empty; ./tl help lists", [" "] = "help: the topic is empty" } do
      local ok, raised = pcall(commands.topic, word)
      assert.same({ false, 2 }, { ok, raised.status })
      has(raised.message, text)
    end
  end)
end)

describe("the manual page", function()
  local text = manual.roff "0.0.0"

  it("has every command and option", function()
    for _, command in ipairs(manual.commands()) do
      has(text, ".SS " .. command.name .. "\n")
      for _, option in ipairs(command.options or {}) do
        has(text, ".B " .. manual.option_words(option):gsub("%-", "\\-"))
      end
    end
    for _, exit in ipairs(manual.exits) do has(text, ".B " .. exit[1]) end
  end)

  it("is what the program prints, and troff has no complaint", function()
    local printed, status = support.run "help --man"
    assert.equal(0, status)
    assert.equal(manual.roff(core.build().version), printed)
    if not there "groff" then return end
    local folder = new_folder()
    local page = output_of("groff -man -ww -Tascii " .. folder:write("tidelock.1", printed))
    folder:remove()
    has(page, "TIDELOCK(1)")
    assert.is_nil(page:find("warning", 1, true), page)
  end)
end)

describe("completion", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  --- Replies of the bash script to the words of a line; the last one is being typed.
  local function bash(...)
    local words = {}
    for i, word in ipairs { ... } do words[i] = "'" .. word .. "'" end
    local script = folder:write("try.sh", ([[
      source %s
      compopt() { :; }
      COMP_WORDS=(%s) COMP_CWORD=%d
      _tidelock
      echo "${COMPREPLY[*]}"]]):format(folder:write("c.bash", shells.script "bash"),
      table.concat(words, " "), #words - 1))
    local text, status = output_of("bash " .. script)
    assert.equal(0, status, text)
    return (text:gsub("\n$", ""))
  end

  it("in bash finds commands, options, topics, choices, files and fields", function()
    assert.equal("report replay repl", bash("./tl", "rep"))
    assert.equal("--stop-at", bash("./tl", "run", "--sto"))
    assert.equal("attention", bash("./tl", "bench", "a"))
    assert.equal("md", bash("./tl", "bench", "--output", "m"))
    assert.equal("md", bash("./tl", "bench", "-o", "m"))
    assert.equal("shard", bash("./tl", "explain", "recipes/quickstart.lua", "--stage", "s"))
    assert.equal("host host,cuda", bash("./tl", "verify", "--device", "h"))
    assert.equal("", bash("./tl", "run", "--stop-at", ""))
    assert.equal("README.md", bash("./tl", "run", "--jsonl", "READ"))
    assert.equal("recipes/quickstart.lua", bash("./tl", "run", "recipes/quick"))
    assert.equal("layout.tp=", bash("./tl", "run", "recipes/quickstart.lua", "layout.t"))
    assert.equal("train.save.every=", bash("./tl", "run", "recipes/quickstart.lua", "train.save.e"))
    assert.equal("shard", bash("./tl", "explain", "recipes/quickstart.lua", "--stage", "sh"))
    assert.equal("bf16", bash("./tl", "export", "a", "b", "--dtype", "b"))
    assert.equal("zsh", bash("./tl", "help", "--completion", "z"))
  end)

  it("in fish finds the same", function()
    if not there "fish" then return pending "fish is not installed" end
    local script = folder:write("c.fish", shells.script "fish")
    local function fish(line)
      return output_of(("fish --no-config -c 'source %s; complete -C \"%s\"'"):format(script, line))
    end
    assert.equal("--stop-at\tend after step N; lr keeps its horizon\n", fish "tl run --sto")
    has(fish "tl rep", "report\tsweeps, runs")
    has(fish "tl bench -o j", "jsonl\t")
    has(fish "tl explain recipes/quickstart.lua --stage s", "shard\t")
    has(fish "tl run recipes/quickstart.lua layout.t", "layout.tp=")
  end)

  it("in zsh is a script that zsh can read", function()
    if not there "zsh" then return pending "zsh is not installed" end
    local text, status = output_of("zsh -n " .. folder:write("_tl", shells.script "zsh"))
    assert.equal(0, status, text)
  end)

  --- What zsh itself shows behind a line, by the keys that a person presses.
  local function zsh(line)
    folder:write("_tl", shells.script "zsh")
    local script = folder:write("keys.zsh", ([[
      zmodload zsh/zpty
      zpty keys zsh -f -i
      zpty -w keys "PROMPT=; LISTMAX=999; fpath=(%s \$fpath); autoload -Uz compinit; compinit -D -u"
      zpty -w keys "zstyle ':completion:*' list-prompt ''; print READ''Y"
      zpty -r keys before '*READY*'
      zpty -w -n keys $'%s\t\C-a: \C-eEND\n print DON''E\n'
      zpty -r keys after '*DONE*'
      zpty -d keys
      print -r -- "$after"]]):format(folder.root, line))
    return (output_of("TERM=dumb timeout 60 zsh -f " .. script))
  end

  it("in zsh goes on behind the recipe", function()
    if not there "zsh" then return pending "zsh is not installed" end
    has(zsh "tl run recipes/quickstart.lua --stop", "--stop-at")
    has(zsh "tl run recipes/quickstart.lua layout.t", "layout.tp=")
    has(zsh "tl explain recipes/quickstart.lua --stage dif", "differentiate")
    has(zsh "tl bench -o c", "csv")
  end)

  it("has every command, option and field in each shell", function()
    for _, shell in ipairs { "bash", "zsh", "fish" } do
      local text = shells.script(shell)
      assert.equal(text, (support.run("help --completion " .. shell)))
      for _, command in ipairs(manual.commands()) do
        has(text, command.name)
        for _, option in ipairs(command.options or {}) do has(text, option.name) end
      end
      for _, key in ipairs(shells.keys()) do has(text, key) end
    end
  end)
end)
