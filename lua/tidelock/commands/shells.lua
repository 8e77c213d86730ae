--- shells.lua - scripts that complete the words of `./tl` in bash, zsh and fish.
---
---     source <(./tl help --completion bash)              # in ~/.bashrc, or typed once
---     ./tl help --completion zsh > ~/.zfunc/_tl          # a folder of fpath
---     ./tl help --completion fish > ~/.config/fish/completions/tl.fish
---
--- Made from the table of commands and the list of fields: commands, topics, options and what they
--- take, recipes, and the keys of overrides.
local commands = require "tidelock.commands"
local fields = require "tidelock.language.fields"
local manual = require "tidelock.commands.manual"

local shells = {}

--- What stands in the place of a command that takes this kind of value.
local files = { file = true, folder = true }

--- "layout.tp=": every field of a section that the command line can set.
function shells.keys()
  local list = {}
  for _, entry in ipairs(fields.sections.recipe.fields) do
    local inner = fields.sections[entry.of or ""] or fields.sections[entry.name]
    if inner and entry.type ~= "list" then
      for _, field in ipairs(inner.fields) do
        list[#list + 1] = ("%s.%s="):format(entry.name, field.name)
      end
    else
      list[#list + 1] = entry.name .. "="
    end
  end
  table.sort(list)
  return list
end

local function option_list(command)
  local list = {}
  for _, option in ipairs(command.options or {}) do list[#list + 1] = "--" .. option.name end
  return list
end

--- The words that a value of an option can be, where they are few: { "md", "json" }.
local function choices(option)
  if option.kind == "shell" then return { "bash", "zsh", "fish" } end
  local words = {}
  local text = option.kind and commands.kinds[option.kind].word or ""
  if text:find("|", 1, true) then
    for word in text:gmatch "[^|]+" do words[#words + 1] = word end
  end
  return words
end

local function names()
  local list = {}
  for i, command in ipairs(manual.commands()) do list[i] = command.name end
  return list
end

--- Whether its words are names of files.
local function takes_files(command)
  if command.words or command.takes then
    return manual.takes(command):find "%f[%u][FDMOA][%u]*" ~= nil
  end
  return command.recipe and true or false
end

--- The words that may stand behind a command, options aside.
local function own_words(command)
  if command.name == "help" then return names() end
  return command.topics or {}
end

-- bash ------------------------------------------------------------------------------------------

local bash_head = [==[
# Completes the words of ./tl and tidelock in bash; made by ./tl help --completion bash.
_tidelock() {
  local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
  local words= keys= files=
  COMPREPLY=()
  if [[ $COMP_CWORD == 1 ]]; then
    COMPREPLY=($(compgen -W "%s" -- "$word"))
    return
  fi
  case "$command $last" in]==]

local bash_tail = [==[
  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    return
  fi
  COMPREPLY=($(compgen -W "$topics $keys" -- "$word"))
  [[ -z $files ]] || COMPREPLY+=($(compgen -f -- "$word"))
  [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
}
complete -o filenames -F _tidelock ./tl tl tidelock]==]

local function bash()
  local lines = { bash_head:format(table.concat(names(), " ")) }
  for _, command in ipairs(manual.commands()) do
    for _, option in ipairs(command.options or {}) do
      local words, what = choices(option), nil
      if files[option.kind] then what = "-f" end
      if #words > 0 then what = ('-W "%s"'):format(table.concat(words, " ")) end
      if option.kind then
        lines[#lines + 1] = ('    "%s --%s") COMPREPLY=(%s); return ;;'):format(command.name,
          option.name, what and ('$(compgen %s -- "$word")'):format(what) or "")
      end
    end
  end
  lines[#lines + 1] = "  esac\n  local topics=\n  case $command in"
  for _, command in ipairs(manual.commands()) do
    lines[#lines + 1] = ('    %s) words="%s" topics="%s" files=%s keys=%s ;;'):format(command.name,
      table.concat(option_list(command), " "), table.concat(own_words(command), " "),
      takes_files(command) and "yes" or "", command.recipe and '"$(_tidelock_keys)"' or "")
  end
  lines[#lines + 1] = bash_tail
  local keys = ("_tidelock_keys() { echo \"%s\"; }"):format(table.concat(shells.keys(), " "))
  return keys .. "\n" .. table.concat(lines, "\n") .. "\n"
end

-- zsh -------------------------------------------------------------------------------------------

--- Text inside '..:..': quotes, colons and brackets mean something there.
local function zsh_text(text)
  return (text:gsub("[%[%]:]", "\\%0"):gsub("'", "'\\''"))
end

local function zsh_option(option)
  local action = ""
  if option.kind then
    local words = choices(option)
    local what = files[option.kind] and "_files" or #words > 0
      and ("(%s)"):format(table.concat(words, " ")) or " "
    action = (":%s:%s"):format(zsh_text(commands.kinds[option.kind].expected), what)
  end
  return ("'--%s[%s]%s'"):format(option.name, zsh_text(option.about), action)
end

local function zsh_words(command)
  local parts = {}
  local own = own_words(command)
  if #own > 0 then parts[#parts + 1] = ("compadd %s"):format(table.concat(own, " ")) end
  if command.recipe then parts[#parts + 1] = "compadd -S '' $keys" end
  if takes_files(command) then parts[#parts + 1] = "_files" end
  return #parts > 0 and ("'*::word:{ %s }'"):format((table.concat(parts, "; "):gsub("'", "'\\''")))
    or ""
end

local function zsh()
  local lines = {
    "#compdef tl tidelock ./tl",
    "# Completes the words of ./tl and tidelock in zsh; made by ./tl help --completion zsh.",
    ("local -a keys commands\nkeys=(%s)\ncommands=("):format(table.concat(shells.keys(), " ")),
  }
  for _, command in ipairs(manual.commands()) do
    lines[#lines + 1] = ("  '%s:%s'"):format(command.name, zsh_text(command.about))
  end
  lines[#lines + 1] = ")\nif (( CURRENT == 2 )); then\n  _describe command commands\n  return\nfi"
  lines[#lines + 1] = "local command=$words[2]\nshift words; (( CURRENT-- ))\ncase $command in"
  for _, command in ipairs(manual.commands()) do
    local parts = {}
    for i, option in ipairs(command.options or {}) do parts[i] = zsh_option(option) end
    local words = zsh_words(command)
    if words ~= "" then parts[#parts + 1] = words end
    lines[#lines + 1] = ("  %s) _arguments %s ;;"):format(command.name, #parts > 0
      and "\\\n    " .. table.concat(parts, " \\\n    ") or "'*: :'")
  end
  lines[#lines + 1] = "esac"
  return table.concat(lines, "\n") .. "\n"
end

-- fish ------------------------------------------------------------------------------------------

local function fish_text(text) return (text:gsub("\\", "\\\\"):gsub("'", "\\'")) end

local function fish()
  local lines = {
    "# Completes the words of ./tl and tidelock in fish; made by ./tl help --completion fish.",
  }
  local function add(text) lines[#lines + 1] = "complete -c $program " .. text end
  for _, command in ipairs(manual.commands()) do
    local here = ("-n '__fish_seen_subcommand_from %s'"):format(command.name)
    add(("-f -n __fish_use_subcommand -a %s -d '%s'"):format(command.name,
      fish_text(command.about)))
    for _, option in ipairs(command.options or {}) do
      local words, value = choices(option), ""
      if option.kind then value = files[option.kind] and " -r -F" or " -x" end
      if #words > 0 then value = (" -x -a '%s'"):format(table.concat(words, " ")) end
      add(("%s -l %s -d '%s'%s"):format(here, option.name, fish_text(option.about), value))
    end
    local own = own_words(command)
    if #own > 0 then add(("%s -f -a '%s'"):format(here, table.concat(own, " "))) end
    if takes_files(command) then add(here .. " -F") end
    if command.recipe then add(here .. " -a \"$keys\"") end
  end
  table.insert(lines, 2, ("set -l keys %s\nfor program in tl ./tl tidelock"):format(
    table.concat(shells.keys(), " ")))
  lines[#lines + 1] = "end"
  return table.concat(lines, "\n") .. "\n"
end

local scripts = { bash = bash, zsh = zsh, fish = fish }

---@param shell "bash"|"zsh"|"fish"
---@return string
function shells.script(shell) return scripts[shell]() end

return shells
