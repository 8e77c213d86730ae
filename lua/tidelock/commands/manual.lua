--- manual.lua - the table of commands for people: help, a manual page, completion of words.
---
---     commands.list  ->  manual.page(topic)         ./tl help [COMMAND]
---                    ->  manual.roff()              ./tl help --man
---                    ->  shells.script("bash")      ./tl help --completion bash (shells.lua)
---
--- All are made from the one table (init.lua), so that none can know less than the program.
local commands = require "tidelock.commands"

local manual = {}

--- How the program ends, as docs/operations.md has it too.
manual.exits = {
  { "0", "good" },
  { "1", "the run or a check failed" },
  { "2", "bad command, recipe, layout, data or memory: nothing was started" },
  { "75", "stopped at a whole step by a signal or a budget, or a rank was lost: go on from there" },
  { "128+N", "signal N ended the program at once" },
}

--- More to type than the one example of the table.
manual.examples = {
  run = {
    "run recipes/quickstart.lua --stop-at 6 --trace trace-a",
    "run recipes/quickstart.lua train.save.every=50 --resume runs/quickstart-eaf6",
    "run recipes/quickstart.lua --metrics tidelock.prom --jsonl steps.jsonl",
  },
  plan = {
    "plan recipes/llama_1b.lua --cluster recipes/clusters/h200x8.yaml",
    "plan recipes/quickstart.lua --memory arena.svg",
  },
  explain = {
    "explain recipes/gated.lua --weights",
    "explain recipes/quickstart.lua layout.tp=2 --stage check",
  },
  verify = { "verify recipes/quickstart.lua --device host,cuda" },
  sweep = { "sweep recipes/sweeps/blocks.lua --steps 4 --assert-same-bits" },
  report = { "report runs/sweep-policies.jsonl runs/quickstart-eaf6 --html both.html" },
  trace = { "trace trace-a --memory arena.svg" },
  diff = { "diff runs/quickstart-eaf6 runs/quickstart-eaf6-2" },
  bench = { "bench matmul --size 512 --alone" },
  help = { "help layout.tp", "help nn.attention", "help g.matmul",
    "help --man", "help --completion bash" },
}

--- What the topics of a command are about.
manual.topics = {
  bench = {
    plan = "time and memory that planning 1,024 ranks takes",
    matmul = "products of square matrices on one thread, beside OpenBLAS",
    gemm = "a GPU's products of a 1.1 B model, beside PyTorch",
    attention = "a GPU's attention over packed segments, beside PyTorch",
    moe = "a GPU's mixtures of experts, beside PyTorch",
    rowwise = "a GPU's kernels that move bytes, beside copies",
    step = "tokens a second of a training step, beside PyTorch",
    roofline = "every operator of a step under this machine's ceilings",
    collectives = "messages between thread ranks or GPUs, as nccl-tests shows them",
    ranks = "eight thread ranks beside one",
    serve = "generation: speed, and latency under load",
    trace = "what it costs to record a step",
    capture = "a GPU's step as a graph and instruction by instruction",
  },
}

local function find(list, name)
  for _, item in ipairs(list) do
    if item.name == name then return item end
  end
end

--- "--stop-at N", "-o, --output md|csv".
function manual.option_words(option)
  local words = "--" .. option.name
  if option.short then words = "-" .. option.short .. ", " .. words end
  local value = option.value or option.kind and commands.kinds[option.kind].word
  return value and words .. " " .. value or words
end

--- What stands behind the name of a command.
function manual.takes(command)
  if command.takes then return " " .. command.takes end
  if command.words then
    local overrides = command.overrides and " [key=value ..]" or ""
    local words = {}
    for i, word in ipairs(command.words) do
      local needed = i <= (command.words_needed or #command.words)
      words[i] = needed and word or "[" .. word .. "]"
    end
    return " " .. table.concat(words, " ") .. (command.words_more and " .." or "")
      .. overrides .. " [options]"
  end
  local topics = command.topics and " [TOPIC]" or ""
  if not command.recipe then
    return topics .. (#(command.options or {}) > 0 and " [options]" or "")
  end
  return topics .. (command.recipe == "maybe" and " [RECIPE]" or " RECIPE")
    .. " [key=value ..] [options]"
end

--- All commands in the order of the list.
function manual.commands()
  local list = {}
  for _, group in ipairs { commands.list, commands.outside } do
    for _, command in ipairs(group) do list[#list + 1] = command end
  end
  return list
end

--- The examples of a command, the table's own first.
function manual.examples_of(command)
  local list = { command.example }
  for _, text in ipairs(manual.examples[command.name] or {}) do list[#list + 1] = text end
  return list
end

--- Topics of a command, as { name, what it is about }.
local function topics_of(command)
  local rows, about = {}, manual.topics[command.name]
  for i, topic in ipairs(command.topics or {}) do rows[i] = { topic, about[topic] } end
  return rows
end

--- Topics, options and what they do, in two columns.
local function option_rows(command)
  local rows, width, lines = topics_of(command), 22, {}
  for _, option in ipairs(command.options or {}) do
    rows[#rows + 1] = { manual.option_words(option), option.about }
  end
  if command.recipe or command.overrides then
    rows[#rows + 1] = { "key=value", "a field of the recipe, as layout.tp=2: ./tl help recipe" }
  end
  for _, row in ipairs(rows) do width = math.max(width, #row[1]) end
  for i, row in ipairs(rows) do
    lines[i] = "  " .. row[1] .. (" "):rep(width - #row[1] + 1) .. row[2]
  end
  return lines
end

local function page_of(command)
  local head = "./tl " .. command.name .. manual.takes(command)
  local lines = { head .. "   " .. command.about }
  if #lines[1] > 100 then lines = { head, "  " .. command.about } end
  for _, line in ipairs(option_rows(command)) do lines[#lines + 1] = line end
  for i, example in ipairs(manual.examples_of(command)) do
    lines[#lines + 1] = (i == 1 and "  e.g. ./tl " or "       ./tl ") .. example
  end
  if command.session then lines[#lines + 1] = "       > " .. command.session end
  return lines
end

local function overview()
  local lines = { "./tl COMMAND [RECIPE] [key=value ..] [options]" }
  for _, command in ipairs(manual.commands()) do
    lines[#lines + 1] = ("  %-9s %s"):format(command.name, command.about)
  end
  lines[#lines + 1] = "key=value sets a field of the recipe: layout.tp=2 train.steps=10"
  lines[#lines + 1] = "options of a command: ./tl help run; fields: ./tl help recipe, layout, "
    .. "nn.moe; functions: g, tl"
  lines[#lines + 1] = "how to begin: README.md"
  lines[#lines + 1] = "exit status: 0 good, 1 run or check failed, 2 bad command or recipe, "
    .. "75 stopped, or a rank was lost"
  return lines
end

--- The text of `help` or, with a command's name, of `help NAME`. Where a section of recipes has
--- that name too, as serve, its fields follow.
---@param topic? string
---@return string
function manual.page(topic)
  local command = topic and (find(commands.outside, topic) or find(commands.list, topic))
  if not topic then return table.concat(overview(), "\n") end
  local field_pages = require "tidelock.commands.field_pages"
  if not command then return field_pages.page(topic) or commands.find(topic) end
  local lines, found = page_of(command), field_pages.find(topic)
  if found and found.section then
    lines[#lines + 1] = "fields of a recipe:"
    lines[#lines + 1] = field_pages.page(topic)
  end
  return table.concat(lines, "\n")
end

-- the manual page -------------------------------------------------------------------------------

--- Text as troff reads it: no request at the start of a line, no escape inside.
local function escaped(text)
  return (text:gsub("\\", "\\e"):gsub("%-", "\\-"):gsub("^%.", "\\&."):gsub("^'", "\\&'"))
end

local function add(lines, ...)
  for _, line in ipairs { ... } do lines[#lines + 1] = line end
end

local function command_section(lines, command)
  add(lines, ".SS " .. escaped(command.name), ".B ./tl " .. escaped(command.name))
  if manual.takes(command) ~= "" then add(lines, escaped(manual.takes(command):sub(2))) end
  add(lines, ".PP", escaped(command.about:sub(1, 1):upper() .. command.about:sub(2)) .. ".")
  for _, topic in ipairs(topics_of(command)) do
    add(lines, ".TP", ".B " .. escaped(topic[1]), escaped(topic[2]))
  end
  for _, option in ipairs(command.options or {}) do
    add(lines, ".TP", ".B " .. escaped(manual.option_words(option)), escaped(option.about))
  end
  add(lines, ".PP", "Examples:", ".PP", ".nf", ".RS")
  for _, example in ipairs(manual.examples_of(command)) do
    add(lines, "\\&./tl " .. escaped(example))
  end
  if command.session then add(lines, "> " .. escaped(command.session)) end
  add(lines, ".RE", ".fi")
end

--- The manual page, for man(7): `./tl help --man > tidelock.1`.
---@param version string
---@return string
function manual.roff(version)
  local lines = { '.TH TIDELOCK 1 "" "tidelock ' .. version .. '" "User Commands"' }
  add(lines, ".SH NAME", "tidelock, tl \\- models in Lua, with the same bits in any layout")
  add(lines, ".SH SYNOPSIS", ".B ./tl", "COMMAND [RECIPE] [key=value ..] [options]")
  add(lines, ".SH DESCRIPTION", "A recipe describes a model, its data and its training; a word")
  add(lines, "key=value behind it sets one of its fields, as layout.tp=2. Results go to the")
  add(lines, "standard output, messages to the standard error. Installed, the program is called")
  add(lines, ".BR tidelock ;", "in a clone it is", ".BR ./tl .")
  add(lines, ".SH COMMANDS")
  for _, command in ipairs(manual.commands()) do command_section(lines, command) end
  add(lines, ".SH EXIT STATUS")
  for _, exit in ipairs(manual.exits) do add(lines, ".TP", ".B " .. exit[1], escaped(exit[2])) end
  add(lines, ".SH ENVIRONMENT", "docs/operations.md lists all variables, under Environment.")
  add(lines, ".SH FILES", ".TP", ".I runs/NAME\\-KEY", "what a run leaves behind: recipe, log,"
    .. " weights", ".TP", ".I docs/recipes.md", "every field of a recipe")
  return table.concat(lines, "\n") .. "\n"
end

return manual
