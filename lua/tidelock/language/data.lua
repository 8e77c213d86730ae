--- Where the tokens of a run come from.
--
--     tl.data.text   { "book.txt", "more/*.txt", sha256 = { "ab12..", .. } }   a file is a document
--     tl.data.tokens { "web_*.bin", dtype = "uint16", eos = 50256 }            eos ends a document
--     tl.data.mix    { { 8, web }, { 2, code } }                               whole shares
--     tl.data.given  { { tokens = {..}, targets = {..}, cu_seqlens = {..} } }  written out
--     train, held = source:split(0.99)                                         whole documents
--
-- sha256, targets and cu_seqlens may be left out. All of these only describe: a recipe that is
-- loaded opens no file. data.open does, once the length of a sample, the vocabulary and the seed
-- are known. What a sample then holds is said in runtime/data.h. Patterns are those of the shell,
-- relative to the current folder.
local beside = require "tidelock.text.beside"
local core = require "tidelock.core"
local where = require "tidelock.language.where"
local suggest = require "tidelock.text.suggest"

local data = {}

---@class tidelock.Source
---@field kind "text"|"tokens"|"mix"|"given"
---@field site string # recipe line, "" when unknown
---@field patterns? string[] # text, tokens
---@field parts? { fraction: number, held: boolean }[] # text, tokens: splits, the outermost first
---@field sha256? string[] # text: one for each file, in the order in which they are read
---@field dtype? "uint16"|"uint32" # tokens
---@field eos? integer # tokens
---@field shares? integer[] # mix
---@field sources? tidelock.Source[] # mix
---@field samples? table[] # given
local Source = {}
Source.__index = Source
Source.__name = "tidelock.Source"

local PARTS_MAX, VOCAB_MAX = 16, (1 << 31) - 1

local function lead_of(site) return site ~= "" and site .. ": " or "" end

local function fail(site, path, text) error(lead_of(site) .. path .. ": " .. text, 0) end

local function describe(kind, fields)
  fields.kind = kind
  fields.site = where.here() or ""
  return setmetatable(fields, Source)
end

--- Is `value` what tl.data.* returned?
function data.is(value) return getmetatable(value) == Source end

local function show(value)
  return type(value) == "string" and ("%q"):format(value) or tostring(value)
end

local function check_table(path, value)
  if type(value) == "table" then return end
  local fitting = type(value) == "string" and ("; write tl.%s { %q }"):format(path, value) or ""
  fail(where.here() or "", path, "expected a table, got " .. show(value) .. fitting)
end

--- Splits the argument of a constructor into its list and its named options, which must be `known`.
local function read_options(path, options, known)
  check_table(path, options)
  local named, keys, site = {}, {}, where.here() or ""
  for key in pairs(options) do
    if math.type(key) ~= "integer" then keys[#keys + 1] = key end
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do
    local found = false
    for _, name in ipairs(known) do found = found or name == key end
    if not found then
      local has = #known > 0 and "it has " .. table.concat(known, ", ") or "it has a list only"
      fail(where.field(site, path, key), path .. "." .. tostring(key), "no such key; " .. has)
    end
    named[key] = options[key]
  end
  if #options == 0 then fail(site, path, "the list is empty; it starts with what is read") end
  return { table.unpack(options) }, named, site
end

local function check_patterns(path, list, site)
  for i, pattern in ipairs(list) do
    if type(pattern) ~= "string" or pattern == "" then
      fail(site, path, ("entry %d: expected a file or a pattern, got %s"):format(i, show(pattern)))
    end
  end
end

--- Files of text; their bytes are the tokens (vocab 256).
function data.text(options)
  local list, named, site = read_options("data.text", options, { "sha256" })
  local pins = named.sha256
  if pins ~= nil then
    check_table("data.text.sha256", pins)
    for i, pin in ipairs(pins) do
      if type(pin) ~= "string" or not pin:match("^%x+$") or #pin ~= 64 then
        local text = ("entry %d: expected 64 hex digits, got %s"):format(i, show(pin))
        fail(site, "data.text.sha256", text)
      end
    end
  end
  check_patterns("data.text", list, site)
  return describe("text", { patterns = list, sha256 = pins, parts = {} })
end

--- Files of binary little-endian token ids.
function data.tokens(options)
  local list, named, site = read_options("data.tokens", options, { "dtype", "eos" })
  if named.dtype ~= "uint16" and named.dtype ~= "uint32" then
    local text = named.dtype == nil and 'missing: of the ids in the files; write dtype = "uint16", '
      .. 'or "uint32"' or 'expected "uint16" or "uint32", got ' .. show(named.dtype)
    fail(where.field(site, "data.tokens", "dtype"), "data.tokens.dtype", text)
  end
  local eos, bound = named.eos, named.dtype == "uint16" and 0xffff or 0x7fffffff
  if eos ~= nil and (math.type(eos) ~= "integer" or eos < 0 or eos > bound) then
    local text = "expected a token id, 0 to %d in %s, got %s"
    text = text:format(bound, named.dtype, show(eos))
    fail(where.field(site, "data.tokens", "eos"), "data.tokens.eos", text)
  end
  check_patterns("data.tokens", list, site)
  return describe("tokens", { patterns = list, dtype = named.dtype, eos = eos, parts = {} })
end

--- Of every cycle of as many samples as the shares add up to, each source gives its share.
function data.mix(options)
  local list, _, site = read_options("data.mix", options, {})
  local shares, sources = {}, {}
  for i, entry in ipairs(list) do
    local share, source
    if type(entry) == "table" and not data.is(entry) then share, source = entry[1], entry[2] end
    if math.type(share) ~= "integer" or share < 1 or not data.is(source) then
      local text = "entry %d: expected { share, source } with a whole share from 1"
      fail(site, "data.mix", text:format(i))
    end
    shares[i], sources[i] = share, source
  end
  return describe("mix", { shares = shares, sources = sources })
end

--- Samples that are written out, taken in their order again and again.
function data.given(options)
  local list, _, site = read_options("data.given", options, {})
  local known = { tokens = true, targets = true, cu_seqlens = true }
  for i, sample in ipairs(list) do
    if type(sample) ~= "table" or type(sample.tokens) ~= "table" then
      fail(site, "data.given", ("sample %d: expected { tokens = {..} }"):format(i - 1))
    end
    for key in pairs(sample) do
      if not known[key] then
        local text = "sample %d has %s; it can have tokens, targets, cu_seqlens"
        fail(site, "data.given", text:format(i - 1, show(key)))
      end
    end
  end
  return describe("given", { samples = list })
end

--- What can be said about a source without opening it: add(place, path, text) for each mistake.
function data.check(source, vocab, add)
  for _, child in ipairs(source.sources or {}) do data.check(child, vocab, add) end
  if source.eos and vocab and source.eos >= vocab then
    add(where.field(source.site, "data.tokens", "eos"), "data.tokens.eos",
      ("eos %d is not below the vocabulary, %d; try vocab = %d, if eos is right"):format(
        source.eos, vocab, source.eos + 1))
  end
end

local function with_part(source, fraction, held)
  local copy = {}
  for key, value in pairs(source) do copy[key] = value end
  if source.kind == "mix" then
    copy.sources = {}
    for i, child in ipairs(source.sources) do copy.sources[i] = with_part(child, fraction, held) end
  else
    copy.parts = table.move(source.parts, 1, #source.parts, 1, {})
    copy.parts[#copy.parts + 1] = { fraction = fraction, held = held }
  end
  return setmetatable(copy, Source)
end

local function check_splittable(source, site)
  for _, child in ipairs(source.sources or {}) do check_splittable(child, site) end
  if source.kind == "given" then fail(site, "split", "given samples have no documents to deal") end
  if source.parts and #source.parts >= PARTS_MAX then
    fail(site, "split", ("already split %d times"):format(PARTS_MAX))
  end
end

--- Two sources: `fraction` of the documents, and the rest. Content alone decides about a document.
function Source:split(fraction)
  local site = where.here() or ""
  if type(fraction) ~= "number" or not (fraction > 0 and fraction < 1) then
    fail(site, "split", "expected a fraction between 0 and 1, got " .. show(fraction))
  end
  check_splittable(self, site)
  return with_part(self, fraction, false), with_part(self, fraction, true)
end

function Source:__tostring()
  local list = self.patterns or self.sources or self.samples
  local noun = self.patterns and "pattern" or self.sources and "source" or "sample"
  return ("data.%s(%d %s%s)"):format(self.kind, #list, noun, #list == 1 and "" or "s")
end

--- Which part of its documents a source takes, as text: sources with equal text read the same.
local function parts_text(source)
  local text = {}
  for i, part in ipairs(source.parts) do
    text[i] = ("%s %a"):format(part.held and "held" or "first", part.fraction)
  end
  return table.concat(text, ", ")
end

--- The names that `pattern` stands for; none and a problem when there are none.
local function expand(pattern, is_pattern)
  local readable, found = pcall(core.files.glob, pattern)
  if readable and #found > 0 then return found end
  local folder = beside.missing_folder(pattern)
  if folder then
    return {}, ("%s: there is no folder %s%s"):format(pattern, folder, beside.hint(folder, true))
  end
  if not readable then return {}, found end
  return {}, pattern .. ": " .. (is_pattern and "no file matches this pattern"
    or "there is no such file") .. beside.hint(pattern)
end

--- What is wrong with reading `path`, the file `real`, which an earlier name may have read
--- (`before`); nil when nothing is.
local function problem_of(path, real, before, source)
  if before and before.source == source then
    local text = "%s: read twice: it is the same file as %s (%s); leave one of the two names out"
    return text:format(path, before.path, real)
  elseif before then
    local text = "%s: read twice: another source reads the same file as %s (%s%s); leave it out of "
      .. "one source"
    return text:format(path, before.path, lead_of(before.source.site), real)
  elseif core.files.is_directory(real) then
    return ("%s: a folder, not a file; %s/* is the files in it"):format(path, path)
  elseif core.files.size(real) == 0 then
    return path .. ": the file is empty (0 bytes); leave it out"
  end
end

local function name_of(path) return path:match "[^/]*$" end

--- "data.text: 2 names lead to files that are read already and are left out: GPL-3 (GPL), .."
local function left_out_text(source, list)
  if #list == 0 then return nil end
  local one = #list == 1
  return ("data.%s: %s to %s and %s left out: %s%s"):format(source.kind,
    one and "a name leads" or #list .. " names lead",
    one and "a file that is read already" or "files that are read already", one and "is" or "are",
    table.concat(list, ", ", 1, math.min(#list, 4)), #list > 4 and ", .." or "")
end

--- The files of a source in the order in which they are read. A pattern may match several names of
--- one file (links): it is read once, under its first name. What is wrong goes to state.problems,
--- all of it.
local function find_files(source, state)
  local paths, left_out = {}, {}
  local seen, parts = state.seen, parts_text(source)
  local function add_problem(text)
    state.problems[#state.problems + 1] = lead_of(source.site) .. "data." .. source.kind .. ": "
      .. text
  end
  for _, pattern in ipairs(source.patterns) do
    local is_pattern = pattern:find "[*?[]" ~= nil
    local found, nothing = expand(pattern, is_pattern)
    if nothing then add_problem(nothing) end
    for _, path in ipairs(found) do
      local real, message = core.files.realpath(path)
      local id = (real or path) .. "\0" .. parts
      local before = seen[id]
      if before and before.source == source and is_pattern then
        left_out[#left_out + 1] = ("%s (%s)"):format(name_of(path), name_of(before.path))
      else
        local problem = message or problem_of(path, real, before, source)
        if problem then add_problem(problem) end
        seen[id] = before or { path = path, source = source }
        paths[#paths + 1] = path
      end
    end
  end
  state.warnings[#state.warnings + 1] = left_out_text(source, left_out)
  return paths
end

--- Compares files with their pins; adds a warning for each that differs. Returns how many agree.
local function compare_pins(source, paths, warnings)
  local pins, same = source.sha256, 0
  if not pins then return 0 end
  if #pins ~= #paths then
    fail(source.site, "data.text.sha256", ("%d hashes for %d files"):format(#pins, #paths))
  end
  for i, path in ipairs(paths) do
    local hash = assert(core.files.sha256(path))
    if hash == pins[i]:lower() then
      same = same + 1
    else
      local text = "%s: not the pinned text (sha256 %s, pinned %s): another key, other bits"
      warnings[#warnings + 1] = text:format(path, hash, pins[i]:lower())
    end
  end
  return same
end

local widths = { text = 1, uint16 = 2, uint32 = 4 }

local open_source

local openers = {}

--- A vocabulary that is smaller than the ids of the files: said where the vocabulary was written.
local function check_ids(source, about, paths, options, state)
  if not about.beyond_file then return end
  local text = "%snn.decoder.vocab: vocab %d is too small for %s (%sdata.%s): %s %d at position "
    .. "%d; "
  text = text:format(lead_of(options.vocab_site or source.site), options.vocab,
    paths[about.beyond_file], lead_of(source.site), source.kind,
    source.kind == "text" and "byte" or "token", about.beyond_token, about.beyond_position)
  if source.kind == "text" then
    local all = about.token_max == 255 and "" or ", or 256, which holds any byte"
    text = text .. ("try vocab = %d, above the largest here%s"):format(about.token_max + 1, all)
  elseif about.token_max < VOCAB_MAX then
    text = text .. ("try vocab = %d, above the largest here, if the tokens are %s"):format(
      about.token_max + 1, source.dtype)
  else
    text = text .. ("no vocabulary has %d: these are not %s tokens"):format(about.token_max,
      source.dtype)
  end
  state.problems[#state.problems + 1] = text
end

function openers.text(source, options, state)
  local known = #state.problems
  local paths = find_files(source, state)
  if #state.problems > known then return nil end
  table.move(paths, 1, #paths, #state.files + 1, state.files)
  state.pinned = state.pinned + compare_pins(source, paths, state.warnings)
  local width, eos = widths[source.dtype or "text"], source.eos or -1
  local opened, message = core.data.files(paths, {
    width = width, eos = eos, parts = source.parts,
  }, options)
  if opened then check_ids(source, opened:about(), paths, options, state) end
  return opened, message
end

openers.tokens = openers.text

function openers.mix(source, options, state)
  local sources = {}
  for i, child in ipairs(source.sources) do
    sources[i] = open_source(child, options, state) or false
  end
  if #state.problems > 0 then return nil end
  return core.data.mix(sources, source.shares, options)
end

function openers.given(source, options)
  local good, opened, message = pcall(core.data.given, source.samples, options)
  if good then return opened, message end
  local text = tostring(opened):gsub("^[^\n]-%.lua:%d+: ", "")
  return nil, (source.site and source.site .. ": " or "") .. text
end

function open_source(source, options, state)
  local own = {
    length = options.length, vocab = options.vocab, seed = options.seed,
    vocab_site = options.vocab_site, site = source.site,
  }
  local opened, message = openers[source.kind](source, own, state)
  if message then state.problems[#state.problems + 1] = message end
  return opened
end

--- 1234567 -> "1,234,567"
local function grouped(number)
  local text = tostring(number)
  local head = #text % 3
  local first, rest = text:sub(1, head), text:sub(head + 1):gsub("(%d%d%d)", ",%1")
  return ((first .. rest):gsub("^,", ""))
end

local function count(number, noun)
  return grouped(number) .. " " .. noun .. (number == 1 and "" or "s")
end

local function summary_of(source, about, state)
  if source.kind == "given" then return count(about.samples_per_epoch, "sample") .. ", as given" end
  if source.kind == "text" then
    local text = count(about.documents, "text") .. ", " .. count(about.bytes, "byte")
    if not source.sha256 then return text end
    return text .. (state.pinned == #state.files and ", as pinned" or ", not as pinned")
  end
  return ("%s, %s in %s"):format(
    count(about.files, "file"),
    count(about.tokens, "token"),
    count(about.documents, "document")
  )
end

---@class tidelock.Notes # what a header or a log may want to say about an opened source
---@field summary string # "12 texts, 231,870 bytes, as pinned"
---@field files string[] # in the order in which they are read
---@field warnings string[] # texts that are not the pinned ones, links that are left out
---@field pinned integer # files that are as pinned

--- Opens what a recipe describes. options: length (tokens of a sample), vocab, seed (policy.seed),
--- vocab_site (the recipe line of the vocabulary).
--- Returns a source of the C half (micro, targets, fingerprint, about, close) and notes about it.
--- Raises, with the recipe line, all that is wrong with the files.
---@return userdata, tidelock.Notes
function data.open(description, options)
  assert(data.is(description), "data.open takes what tl.data.* returned")
  local state = { seen = {}, files = {}, warnings = {}, problems = {}, pinned = 0 }
  local source = open_source(description, options, state)
  if #state.problems > 0 then error(table.concat(state.problems, "\n"), 0) end
  return source,
    {
      summary = summary_of(description, source:about(), state),
      files = state.files,
      warnings = state.warnings,
      pinned = state.pinned,
    }
end

return setmetatable(data, {
  __index = function(_, key)
    error(suggest.missing(where.here(), "tl.data", key, { "given", "mix", "text", "tokens" }), 0)
  end,
})
