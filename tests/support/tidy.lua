--- The rules of style that no other tool checks, as functions of paths and texts.
---
---     tidy.check(files)  ->  list of complaints "path:line: what"      files: path -> text
---
--- Layers: a file includes or requires only what stands in its own layer or before it.
---
---     C     status dtype view memory random hash tensor cores team cuda   one after the other
---           kernels/        the rest of runtime/        runtime/bind/        runtime/main.c
---     Lua   the rooms of lua/tidelock/ in the order of docs/design.md, then init.lua and cli.lua;
---           inside a room files may stand in any order, but never in a circle
local tidy = {}

local columns_max, lines_max, function_lines_max = 100, 500, 60

local c_base = { status = 1, dtype = 2, view = 3, memory = 4, random = 5, hash = 6, tensor = 7,
  cores = 8, team = 9, cuda_driver = 10, cublaslt = 10, cuda_images = 10, cubin = 10,
  manifest = 11, cuda = 12 }
local lua_place = { tidelock = 100, cli = 100 } -- the two files beside the rooms
for place, room in ipairs { "text", "language", "hf", "model", "plan", "forecast", "machine", "run",
  "trace", "jinja", "serve", "verify", "bench", "sweep", "report", "commands", "meta" } do
  lua_place[room] = place
end

-- Written in pieces, or this file would break its own rule.
local banned = { "TO" .. "DO", "FIX" .. "ME", "X" .. "XX", "st" .. "ub", "place" .. "holder" }

local function extension(path) return path:match "%.([^./]+)$" or "" end

local function each_line(text)
  local number = 0
  return function(rest, _)
    if rest.at > #text then return nil end
    local stop = text:find("\n", rest.at, true) or #text + 1
    local line = text:sub(rest.at, stop - 1)
    rest.at = stop + 1
    number = number + 1
    return number, line
  end, { at = 1 }
end

--- Length in characters; bytes where the text is not UTF-8.
local function columns(line) return utf8.len(line) or #line end

local function check_lines(path, text, complain)
  local total, kind = 0, extension(path)
  for number, line in each_line(text) do
    total = number
    if kind ~= "def" and kind ~= "md" and columns(line) > columns_max then
      complain(path, number, ("%d columns, at most %d"):format(columns(line), columns_max))
    end
    if line:find "%s$" then complain(path, number, "space at the end of the line") end
    if line:find "\t" then complain(path, number, "tab") end
    for _, word in ipairs(banned) do
      for _, form in ipairs { word, word:lower() } do
        if line:find("%f[%w_]" .. form .. "%f[^%w_]") then
          complain(path, number, "the word " .. form)
          break
        end
      end
    end
  end
  if kind ~= "md" and total > lines_max then
    complain(path, total, ("%d lines, at most %d"):format(total, lines_max))
  end
  if text:sub(-1) ~= "\n" then complain(path, total, "no newline at the end") end
end

--- Functions start and end in column 1, in C and in Lua alike.
local function check_functions(path, text, complain)
  local is_lua = extension(path) == "lua"
  local starts = is_lua and { "^local function ", "^function " }
    or { "^%a.*%) {$", "^ +.*%) {$" }
  local stop = is_lua and "^end" or "^}"
  local start
  for number, line in each_line(text) do
    if line:find(stop) then
      if start and number - start + 1 > function_lines_max then
        complain(path, start, ("a function of %d lines, at most %d"):format(number - start + 1,
          function_lines_max))
      end
      start = nil
    elseif not start and not (is_lua and line:find "%f[%w]end$") then
      for _, pattern in ipairs(starts) do
        if line:find(pattern) then
          start = number
          break
        end
      end
    end
  end
end

--- A file opens with what it is.
local function check_opening(path, text, complain)
  local kind, name = extension(path), path:match "[^/]+$"
  local first = text:match "^[^\n]*"
  if kind == "c" or kind == "h" or kind == "def" or kind == "cu" or kind == "cuh" then
    local opening = (kind == "cu" or kind == "cuh") and first:gsub("^//", "/*") or first
    if opening:sub(1, #name + 4) ~= "/* " .. name .. " " then
      complain(path, 1, "the first line does not say what " .. name .. " is")
    end
  elseif kind == "lua" and not name:find "_spec%.lua$" and not path:find "^tests/errors/" then
    if first:sub(1, 2) ~= "--" then
      complain(path, 1, "the first line does not say what this is")
    end
  end
end

--- Folder + relative name -> path without "..".
local function resolve(path, relative)
  local joined = path:gsub("[^/]*$", "") .. relative
  local changed = 1
  while changed > 0 do joined, changed = joined:gsub("[^/]+/%.%./", "", 1) end
  return joined
end

--- { number of the layer, place inside it, or nil where order is free }
local function c_layer(path)
  local name = path:match "([^/]+)%.%a+$"
  if path:find "^runtime/bind/" then return 4 end
  if path == "runtime/main.c" then return 5 end
  if path:find "^kernels/" then return 2 end
  if c_base[name] then return 1, c_base[name] end
  return 3
end

local function check_include(path, number, target, complain)
  local layer, place = c_layer(path)
  local other, other_place = c_layer(target)
  if other > layer or place and other_place and other_place > place then
    complain(path, number, "includes " .. target .. ", which stands in a later layer")
  end
end

--- Headers of the outside world that one kind of file may know.
local function check_system(path, number, header, complain)
  if header == "lua.h" or header == "lauxlib.h" or header == "lualib.h" then
    if not path:find "^runtime/bind/" and path ~= "runtime/main.c" then
      complain(path, number, "only runtime/bind/ and main.c include " .. header)
    end
  elseif header:find "^cuda" or header:find "^nccl" then
    if not path:find "_cuda%.[ch]$" and not path:find "%.cuh?$" and not path:find "_nccl%.c$" then
      complain(path, number, "only *_cuda.c and *_nccl.c include " .. header)
    end
  end
end

local function lua_layer(module) return lua_place[module:match "^tidelock%.([%w_]+)" or module] end

local function module_of(path)
  local name = path:match "^lua/(.+)%.lua$"
  return name and name:gsub("/init$", ""):gsub("/", ".")
end

local function check_require(path, number, module, complain)
  local own, other = lua_layer(module_of(path)), lua_layer(module)
  if own and other and other > own then
    complain(path, number, "requires " .. module .. ", which stands in a later layer")
  end
end

--- edges: name -> list of names. Complains about each edge that closes a circle.
local function check_circles(edges, complain)
  local state = {}
  local function visit(name)
    state[name] = "open"
    for _, edge in ipairs(edges[name] or {}) do
      if state[edge.target] == "open" then
        complain(edge.path, edge.number, "closes a circle with " .. edge.target)
      elseif not state[edge.target] then
        visit(edge.target)
      end
    end
    state[name] = "done"
  end
  local names = {}
  for name in pairs(edges) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    if not state[name] then visit(name) end
  end
end

local function add_edge(edges, source, target, path, number)
  edges[source] = edges[source] or {}
  table.insert(edges[source], { target = target, path = path, number = number })
end

local function check_c_includes(path, text, edges, used, complain)
  for number, line in each_line(text) do
    local near = line:match '^%s*#%s*include%s+"([^"]+)"'
    local far = line:match "^%s*#%s*include%s+<([^>]+)>"
    if near then
      local target = resolve(path, near)
      used[target] = true
      check_include(path, number, target, complain)
      if extension(path) == "h" then add_edge(edges, path, target, path, number) end
    elseif far then
      check_system(path, number, far, complain)
    end
  end
end

--- A require in column 1 counts; one inside a function is a choice made later. All count as use.
--- known: the modules that there are, or nil where the files are not the whole tree.
local function check_lua_requires(path, text, edges, used, known, complain)
  for number, line in each_line(text) do
    for module in line:gmatch "[\"'](tidelock[%w_.]*)[\"']" do used[module] = true end
    local named = line:match "require[ (]*[\"'](tidelock[%w_.]*%w)[\"']"
    if named and known and named ~= "tidelock.core" and not known[named] then
      complain(path, number, "there is no module " .. named)
    end
    local module = line:match "^local [%w_]+ = require%s*%(?[\"'](tidelock[%w_.]*)[\"']"
    if module and module_of(path) then
      check_require(path, number, module, complain)
      add_edge(edges, module_of(path), module, path, number)
    end
  end
end

--- A new list, a loop that gathers keys in it, and a plain sort: one function does all.
local function check_key_loops(path, text, complain)
  local at = 1
  while module_of(path) do
    local first, stop, key, list, pushed, sorted = text:find("for ([%w_]+) in pairs%(%C*%) do "
      .. "([%w_]+)%[#%C* %+ 1%] = ([%w_]+) end\n%s*table%.sort%(([%w_]+)%)\n", at)
    if not first then return end
    local before = text:sub(1, first - 1):match "([^\n]*)\n[^\n]*$" or ""
    local is_new = before:find("^%s*local .*%f[%w_]" .. list .. ".*{}")
    if key == pushed and list == sorted and is_new then
      local _, above = text:sub(1, first):gsub("\n", "")
      complain(path, above + 1, "tidelock.text.sorted_keys does this")
    end
    at = stop
  end
end

--- Files that nothing uses: headers, tables, Lua modules.
local function check_orphans(paths, files, used, complain)
  local all = {}
  for _, path in ipairs(paths) do all[#all + 1] = files[path] end
  all = table.concat(all)
  for _, path in ipairs(paths) do
    local kind, module = extension(path), module_of(path)
    if (kind == "h" or kind == "def") and not used[path] then
      complain(path, 1, "nothing includes this file")
    elseif module and not used[module] and module ~= "tidelock" and module ~= "tidelock.cli"
      and not all:find('"' .. module:match "[^.]+$" .. '"', 1, true) then
      complain(path, 1, "nothing requires this module")
    end
  end
end

--- The modules of the whole tree as a set; nil where the files are only some of it.
local function known_modules(paths, files, complain)
  if not files["lua/tidelock/init.lua"] then return nil end
  local known = {}
  for _, path in ipairs(paths) do
    local module = module_of(path)
    if module then
      known[module] = true
      if not lua_layer(module) then complain(path, 1, "stands in no room of lua/tidelock/") end
    end
  end
  return known
end

--- All complaints about `files` (path -> text), in order of paths.
function tidy.check(files)
  local complaints, paths = {}, {}
  local function complain(path, number, what)
    complaints[#complaints + 1] = ("%s:%d: %s"):format(path, number, what)
  end
  for path in pairs(files) do paths[#paths + 1] = path end
  table.sort(paths)
  local edges, used, known = {}, {}, known_modules(paths, files, complain)
  for _, path in ipairs(paths) do
    local text, kind = files[path], extension(path)
    check_lines(path, text, complain)
    check_opening(path, text, complain)
    if kind == "c" or kind == "h" then check_functions(path, text, complain) end
    if kind == "lua" and not path:find "^tests/" then check_functions(path, text, complain) end
    if kind == "lua" then
      check_lua_requires(path, text, edges, used, known, complain)
      check_key_loops(path, text, complain)
    else
      check_c_includes(path, text, edges, used, complain)
    end
  end
  check_circles(edges, complain)
  check_orphans(paths, files, used, complain)
  return complaints
end

return tidy
