-- README and docs/ say what is true: fields with their defaults, commands, files, records, numbers.
local commands = require "tidelock.commands"
local core = require "tidelock.core"
local fields = require "tidelock.language.fields"
local new_folder = require "support.folder"
local planner = require "tidelock.plan"
local recipes = require "tidelock.language.recipe"
local support = require "support"

local pages = { "README.md", "docs/design.md", "docs/recipes.md", "docs/operations.md",
  "docs/performance.md", "docs/performance/processor.md", "docs/performance/one_gpu.md",
  "docs/performance/two_gpus.md", "docs/performance/generation.md",
  "docs/performance/few_rows.md", "docs/performance/experts.md",
  "docs/performance/prediction.md", "docs/expectations.md" }

local function read(path) return assert(core.files.read_all(path)) end

local function has(text, part, what)
  assert.is_truthy(text:find(part, 1, true), ("no %q in %s"):format(part, what))
end

describe("docs/recipes.md", function()
  local rows = {}
  for name, type_text, default in read "docs/recipes.md":gmatch
    "\n| `([%w_.*]+)` | ([^|]*) | ([^|]*) |" do rows[name] = { type_text, default } end

  --- A field's own row, or the one that stands for the field in several sections: lr.*.peak.
  local function row_of(section, field)
    if section == "recipe" then return rows[field.name] end
    local shared = section:gsub("[^.]+$", "*") .. "." .. field.name
    return rows[section .. "." .. field.name] or rows[shared]
  end

  it("has every field of the language, with its type and default", function()
    for section, entry in pairs(fields.sections) do
      for _, field in ipairs(entry.fields) do
        local path = section .. "." .. field.name
        local row = row_of(section, field)
        assert.is_truthy(row, "no row for " .. path)
        assert.equal(field.type, row[1]:match "^%S+", path)
        for _, value in ipairs(field.values or {}) do has(row[1], value, path) end
        local default = field.required and "required" or field.default
        if default == nil then default = "unset" end
        if type(default) == "table" then default = "{}" end
        assert.equal(tostring(default), row[2]:match "^[^:]+", path)
      end
    end
  end)

  it("has no field that is not there", function()
    for name in pairs(rows) do
      local section, last = name:match "^(.*)%.([^.]+)$"
      section, last = section or "recipe", last or name
      local pattern, found = "^" .. section:gsub("%.", "%%."):gsub("%*", "[^.]+") .. "$", false
      for known, entry in pairs(fields.sections) do
        found = found or known:find(pattern) and entry.by_name[last] ~= nil
      end
      assert.is_truthy(found, name)
    end
  end)

  it("names every choice and every module", function()
    local text = read "docs/recipes.md"
    for kind, form in pairs(fields.forms) do
      for name in pairs(form.names) do
        assert.is_truthy(text:find('"' .. name .. '"', 1, true)
          or text:find(kind .. "." .. name, 1, true), kind .. " " .. name)
      end
    end
    for section in pairs(fields.sections) do
      local module = section:match "^nn%.[%w_]+$"
      if module then has(text, "`" .. module, module) end
    end
  end)

  it("has an example that loads, checks and plans", function()
    local folder = new_folder()
    local text = read("docs/recipes.md"):match "\n## Recipe\n\n```lua\n(.-)```"
    local plan = planner(recipes.load(folder:write("example.lua", text)))
    assert.equal(1, #plan.programs)
    folder:remove()
  end)
end)

--- Words of a command line, quotes removed, up to a comment or the file that takes its output.
local function words_of(line)
  local words = {}
  line = line:gsub("%s+#.*$", ""):gsub("%s+> %S+$", ""):gsub("(['\"])(.-)%1", function(_, quoted)
    return (quoted:gsub(" ", "\1"))
  end)
  for word in line:gmatch "%S+" do words[#words + 1] = word:gsub("\1", " ") end
  return words
end

--- Every ./tl command of the pages that stands in code, without those that name no file (RECIPE).
local function quoted_commands()
  local list, seen = {}, {}
  local function add(page, line)
    if seen[line] or line:find "%u%u%u" or line:find("...", 1, true) then return end
    seen[line] = true
    list[#list + 1] = { page = page, line = line, words = words_of(line) }
  end
  for _, page in ipairs(pages) do
    local text = read(page)
    for line in text:gmatch "\n    %./tl ([^\n]+)" do add(page, line) end
    for line in text:gmatch "\n%./tl ([^\n]+)" do add(page, (line:gsub("  .*$", ""))) end
    for line in text:gmatch "`%./tl (%w+ [^`\n]+)`" do add(page, line) end -- not a name alone
  end
  return list
end

describe("commands in the pages", function()
  local outside = { lua = true, repl = true, test = true, lint = true }

  it("can be typed, and name recipes and scripts that are there", function()
    local list = quoted_commands()
    assert.is_true(#list >= 15)
    for _, entry in ipairs(list) do
      local name = entry.words[1]
      if outside[name] then
        if entry.words[2] then
          assert.is_true(core.files.exists(entry.words[2]), entry.page .. ": " .. entry.line)
        end
      else
        local ok, request = pcall(commands.parse, entry.words)
        assert.is_true(ok, ok or entry.line .. ": " .. request.message)
        local made = request.recipe and request.recipe:find "^runs/" -- by a command above it
        if request.recipe and not made then
          assert.is_true(core.files.exists(request.recipe), entry.line)
        end
      end
    end
  end)

  it("run, those that only plan and explain", function()
    for _, entry in ipairs(quoted_commands()) do
      local name = entry.words[1]
      if name == "plan" or name == "explain" or name == "help" then
        local quoted = {}
        for i, word in ipairs(entry.words) do quoted[i] = "'" .. word .. "'" end
        local text, status = support.run(table.concat(quoted, " "))
        assert.equal(0, status, entry.line .. "\n" .. text)
      end
    end
  end)

  --- What makes a command short: what it does stays the same.
  local shorter = {
    run = " --stop-at 1", bench = " --rounds 1 --steps 1 --size 64 --alone", verify = " --steps 1",
    sweep = " --steps 0",
  }

  --- Runs a command of a page in `folder`, which has what the repository has; shortened.
  local function run_in(folder, entry)
    local name, quoted = entry.words[1], {}
    local takes_value = { ["--stop-at"] = true, ["--rounds"] = true, ["--steps"] = true,
      ["--repeat-for"] = true, ["--every"] = true }
    local i = 1
    while i <= #entry.words do
      local word = entry.words[i]
      if takes_value[word] then
        i = i + 1 -- the shorter one comes instead
      elseif word ~= "--alone" then -- that of the shorter ones
        if quoted[#quoted] == "'--profile'" then word = "1" end -- a step that the short run has
        quoted[#quoted + 1] = "'" .. word .. "'"
      end
      i = i + 1
    end
    local file = entry.line:match "%s+> (%S+)"
    if entry.line:find("recipes/gates.lua", 1, true) then quoted[#quoted + 1] = "2" end -- steps
    local pipe = assert(io.popen(("cd %s && echo 'tl ~= nil' | %s %s%s %s2>&1"):format(folder.root,
      core.files.realpath(support.program), table.concat(quoted, " "),
      entry.line:find("--resume", 1, true) and " --stop-at 2" or shorter[name] or "",
      file and "> " .. file .. " " or "")))
    local text = pipe:read "a"
    local _, _, status = pipe:close()
    assert.equal(0, status, entry.page .. ": " .. entry.line .. "\n" .. text)
  end

  local function run_all(wanted)
    local folder = new_folder()
    for _, name in ipairs { "recipes", "docs", "LICENSE", "README.md" } do
      os.execute(("ln -s %s/%s %s"):format(core.files.realpath ".", name, folder:path(name)))
    end
    local count = 0
    for _, entry in ipairs(quoted_commands()) do -- in the order of the pages: some need others
      local name = entry.words[1]
      local here = not entry.line:find("cuda", 1, true) and name ~= "test" and name ~= "lint"
      if here and wanted(name, entry) then
        run_in(folder, entry)
        count = count + 1
      end
    end
    os.execute("rm -r -f " .. folder.root)
    return count
  end

  it("run, shortened, those that train, measure and drive", function()
    local names = {
      run = true, bench = true, lua = true, repl = true, version = true, export = true,
      tokenize = true, sweep = true, report = true, replay = true,
    }
    assert.is_true(run_all(function(name, entry)
      return names[name] and entry.line ~= "bench" -- its parts are there one by one
    end) >= 7)
  end)

  it("run, shortened, those that take minutes #slow", function()
    assert.is_true(run_all(function(name, entry)
      return name == "verify" or name == "run" or entry.line == "bench"
    end) >= 4)
  end)

  it("that check the source are run by .ci/run", function()
    for _, name in ipairs { "test", "lint" } do has(read ".ci/run", "./tl " .. name, ".ci/run") end
  end)

  it("cover all commands", function()
    local readme = read "README.md"
    for _, command in ipairs(commands.list) do has(readme, "./tl " .. command.name, "README.md") end
    for _, command in ipairs(commands.outside) do
      has(readme, "./tl " .. command.name, "README.md")
    end
  end)
end)

describe("the pages", function()
  it("name files that are there", function()
    for _, page in ipairs(pages) do
      local text, folder = read(page), page:match "^.*/" or ""
      for target in text:gmatch "%]%(([%w_./]+)#?[%w-]*%)" do
        assert.is_true(core.files.exists(folder .. target), page .. ": " .. target)
      end
      for path in text:gmatch "`([%w_./]+/[%w_.]*)`" do
        local made = path:find "^build" or path:find "^runs" or path:find "%u%u%u"
        local there = core.files.exists(path) or core.files.exists("lua/tidelock/" .. path)
        assert.is_true(made ~= nil or there, page .. ": " .. path)
      end
    end
  end)

  it("keep lines below 100 columns, tables and commands aside", function()
    for _, page in ipairs { "docs/numerics.md", "docs/add-an-op.md", table.unpack(pages) } do
      for line in read(page):gmatch "[^\n]+" do
        local free = line:find "^|" or line:find "^    %S"
        assert.is_true(free ~= nil or (utf8.len(line) or #line) <= 100, page .. ": " .. line)
      end
    end
  end)

  it("show the quickstart as it is", function()
    local recipe = read "recipes/quickstart.lua":gsub("%s+", " ")
    local shown = read("README.md"):match "```lua\n(.-)```"
    for line in shown:gmatch "[^\n]+" do
      has(recipe, line:gsub("%s+%-%-.*$", ""):gsub("%s+", " "):gsub("^ ", ""), "the quickstart")
    end
  end)

  it("show one sum as docs/sum.lua prints it", function()
    local readme = read "README.md"
    local text, status = support.run "lua docs/sum.lua"
    assert.equal(0, status)
    for name, usual, tree in text:gmatch "(tp %d)    (%S+ %x+)    (%S+ %x+)\n" do
      assert.matches(name .. " +" .. usual:gsub("%.", "%%.") .. " +" .. tree:gsub("%.", "%%."),
        readme)
    end
    assert.equal(3, select(2, text:gsub("\n", "")))
  end)

  it("name the quickstart's folder", function()
    local run <close> = require("tidelock.run.driver").start(recipes.load "recipes/quickstart.lua")
    local folder = "runs/quickstart-" .. run.plan.key:sub(1, 4)
    for _, page in ipairs { "recipes/gated.lua", "docs/recipes.md" } do
      has(read(page), '"' .. folder .. '"', page)
    end
  end)

  it("print the quickstart's hash #slow", function()
    local folder = new_folder()
    local text = support.run("run recipes/quickstart.lua --quiet --runs " .. folder.root)
    folder:remove()
    has(read "README.md", "    " .. text:match "weights    %x+" .. "\n", "README.md")
  end)
end)

describe("docs/operations.md", function()
  local text = read "docs/operations.md"

  it("has every field of the log, every file of a run and every variable", function()
    local folder = new_folder()
    for i = 1, 30 do folder:write(i .. ".txt", ("text %d, "):format(i):rep(9)) end
    local recipe = folder:write("tiny.lua", [[
      local tl = require "tidelock"
      local nn = tl.nn
      local train, held = tl.data.text { "]] .. folder.root .. [[/*.txt" }:split(0.7)
      return tl.recipe {
        model = nn.decoder { vocab = 256, dim = 32, layers = 2, layer = function()
          return { nn.residual { nn.rms_norm {}, nn.attention { heads = 4 } } }
        end },
        data = train,
        eval = { data = held, every = 2, samples = 4 },
        batch = { samples = 4, length = 16 },
        train = { steps = 2, lr = 1e-3 },
        log = { watch = { "loss:mean" } },
      }]])
    local output, status = support.run(("run %s --runs %s --jsonl %s"):format(recipe,
      folder:path "runs", folder:path "log.jsonl"))
    assert.equal(0, status, output)
    local names = core.files.list(folder:path "runs")
    for _, name in ipairs(core.files.list(folder:path "runs/" .. names[1])) do
      has(text, "| `" .. name .. "` |", "operations.md")
    end
    for _, record in ipairs(require("tidelock.run.log").read(folder:path "log.jsonl")) do
      for key in pairs(record) do has(text, "`" .. key .. "`", "operations.md") end
    end
    -- the same model in every way that verify knows
    output, status = support.run("verify " .. recipe .. " --steps 1 batch.micro=2")
    assert.equal(0, status, output)
    assert.matches("0 differ, %d not run", output) -- processes need a build with MPI
    folder:remove()
  end)

  it("has every variable that the program and tl read", function()
    local found = {}
    for _, path in ipairs(support.files("runtime kernels lua", "%.%a+$")) do
      for name in read(path):gmatch 'getenv%s*%(?"([%u_]+)"' do found[name] = true end
    end
    for name in read "tl":gmatch "%${(TL_[%u]+)" do found[name] = true end
    assert.is_true(found.TL_SIMD and found.TL_BUILD and found.NO_COLOR)
    for name in pairs(found) do has(text, "`" .. name .. "`", "operations.md") end
  end)
end)

describe("recipes/", function()
  local refused = {
    ["recipes/hf_finetune.lua"] = { "nn.from_hf: there is no folder models/llama" },
    ["recipes/sweeps/layouts.lua dp 2 cp 4"] = {
      "layout.cp: cp 4 is not available in this version" },
  }

  local function check(name, recipe, last)
    local ok, problem = pcall(planner, recipe, last)
    if not refused[name] then return assert.is_true(ok, ok or name .. ": " .. tostring(problem)) end
    assert.is_false(ok, name)
    for _, part in ipairs(refused[name]) do has(tostring(problem), part, name) end
  end

  it("load, check and plan, or are refused by name", function()
    for _, path in ipairs(support.files("recipes", "%.lua$")) do
      if read(path):find("return tl.", 1, true) then
        local ok, points = pcall(function() return recipes.load(path):points() end)
        if ok then
          for i, point in ipairs(points) do -- of a sweep all points are sharded, one is planned
            local name = path .. (point.label and " " .. point.label or "")
            check(name, point, i > 1 and "shard" or nil)
          end
        else
          assert.is_truthy(refused[path], path .. ": " .. tostring(points))
        end
      end
    end
  end)
end)

describe("docs/operations.md", function()
  it("shows lines for the REPL that print what stands behind them", function()
    local folder = new_folder()
    local block = read("docs/operations.md"):match "\n## From the REPL\n.-```lua\n(.-)```"
    local script = { "local tl = require 'tidelock'" }
    for line in block:gmatch "[^\n]+" do
      local code, expected = line:match "^(.-)%s+%-%- ({.*})$"
      script[#script + 1] = expected
        and ("check(%s, %s)"):format(code, expected) or line
    end
    table.insert(script, 2, [[
      local function text(x)
        if type(x) ~= "table" then return tostring(x * 1.0) end
        local list = {}
        for i, item in ipairs(x) do list[i] = text(item) end
        return "{ " .. table.concat(list, ", ") .. " }"
      end
      local checks = 0
      local function check(got, expected)
        assert(text(got) == text(expected), text(got) .. " is not " .. text(expected))
        checks = checks + 1
      end]])
    script[#script + 1] = "print(checks)"
    local path = folder:write("repl.lua", table.concat(script, "\n"))
    assert.equal("3\n", (support.run("lua " .. path)))
    folder:remove()
  end)
end)

describe("lua/tidelock/meta/core.lua", function()
  local text = read "lua/tidelock/meta/core.lua" .. read "lua/tidelock/meta/machine.lua"
    .. read "lua/tidelock/meta/ranks.lua" .. read "lua/tidelock/meta/http.lua"
  local classes = { "Tensor", "Program", "Ranks", "Lane", "Group", "Job", "Data", "Weights",
    "Saver", "Tokenizer", "Http", "Span" }

  it("has every function and method of the C half, and no other", function()
    local known = {}
    local function visit(value, lead)
      for key, item in pairs(value) do
        if type(item) == "function" then known[lead .. "." .. key] = true end
        if type(item) == "table" then visit(item, lead .. "." .. key) end
      end
    end
    visit(core, "core")
    for _, class in ipairs(classes) do
      local methods = debug.getregistry()["tidelock." .. class] -- getmetatable answers with a name
      for key, item in pairs(methods) do
        if type(item) == "function" and key:sub(1, 2) ~= "__" then
          known[class .. ":" .. key] = true
        end
      end
    end
    local written = {}
    for name in text:gmatch "\nfunction ([%w_.:]+)%(" do written[name] = true end
    for name in pairs(known) do assert.is_truthy(written[name], "missing: " .. name) end
    for name in pairs(written) do assert.is_truthy(known[name], "unknown: " .. name) end
  end)

  it("is a module of types that runs", function()
    assert.is_table(require "tidelock.meta.core")
    assert.is_table(require "tidelock.meta.machine")
    assert.is_table(require "tidelock.meta.ranks")
    assert.is_table(require "tidelock.meta.http")
  end)
end)
