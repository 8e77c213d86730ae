--- loader.lua - what generates text from a folder: its recipe, its weights, its tokenizer.
---
---     runs/quickstart-eaf6        a run: recipe.lua, weights.safetensors or its newest checkpoint
---     runs/../checkpoints/step-00000060     one checkpoint of a run
---     models/llama                a Hugging Face folder: config.json, safetensors, tokenizer.json
---
--- Weights are read slice by slice, each rank its own. A recipe of another run than the weights is
--- refused with the fields that differ.
local checkpoint = require "tidelock.run.checkpoint"
local beside = require "tidelock.text.beside"
local core = require "tidelock.core"
local differences = require "tidelock.run.differences"
local explain = require "tidelock.forecast.explain"
local requests = require "tidelock.plan.requests"
local runs = require "tidelock.run.runs"
local sorted_keys = require "tidelock.text.sorted_keys"
local suggest = require "tidelock.text.suggest"

local loader = {}

---@class tidelock.Model
---@field path string
---@field recipe tidelock.Recipe
---@field read fun(param: table, row: integer, col: integer): tidelock.Tensor # (rows, cols), f32
---@field tokenizer tidelock.Tokenizer
---@field description string # "runs/x, step 200"
---@field stop? integer[] # ids that end a text
---@field wordless? string # nothing says what its ids mean; what might

local function usage(format, ...)
  error({ status = 2, message = "tidelock: " .. format:format(...) }, 0)
end

--- The words of "layout.tp=2 layout.stages=3 3 2": a new one begins where a key does.
local function split_overrides(text)
  local words = {}
  for word in (text or ""):gmatch "%S+" do
    if word:find "^[%a_][%w_.]*=" or #words == 0 then
      words[#words + 1] = word
    else
      words[#words] = words[#words] .. " " .. word
    end
  end
  return words
end

--- What the weights of a run were when they were saved: the hash of each, by name, or of all.
---@class tidelock.SavedHashes
---@field each table<string, string>
---@field whole string?

--- Raises where weights have other bytes than were saved: a model that lost some would write a text
--- all the same.
---@param files table<string, tidelock.Weights> # by name of tensor
---@param where_from string
---@param hashes tidelock.SavedHashes
local function check_bytes(files, where_from, hashes)
  local sum, wrong = 0, {}
  for _, name in ipairs(sorted_keys(files)) do
    local good, tensor = pcall(files[name].read, files[name], name)
    if not good then usage("%s: %s", where_from, tensor) end
    local hash = tensor:hash_int(name)
    tensor:close()
    sum = sum + hash
    local known = hashes.each[name]
    if known and known ~= ("%016x"):format(hash) then wrong[#wrong + 1] = name end
  end
  if hashes.whole and hashes.whole ~= ("%016x"):format(sum) then
    wrong[1] = ("its tensors have the hash %016x, and %s was written"):format(sum, hashes.whole)
  end
  if #wrong > 0 then
    usage("%s is damaged: other bytes than were saved: %s", where_from, table.concat(wrong, ", "))
  end
end

--- A function that is told the parts of weights as they are read, and looks at their bytes: shares
--- of a hash add up, so nothing is read twice for it. Only where a sum is wrong is all read again,
--- to name what is damaged.
---@param files table<string, tidelock.Weights>
---@param where_from string
---@param hashes tidelock.SavedHashes
local function watch(files, where_from, hashes)
  local seen, sums, left, sum, unread = {}, {}, {}, 0, #sorted_keys(files)
  return function(param, row, col, part)
    local name, weight = param.name, param.weight
    local place = ("%s %d %d"):format(name, row, col)
    if seen[place] then return end
    seen[place] = true
    sums[name] = (sums[name] or 0) + part:hash_int(name, row, col, weight.cols)
    left[name] = (left[name] or weight.rows * weight.cols) - param.rows * param.cols
    if left[name] ~= 0 then return end
    sum, unread = sum + sums[name], unread - 1
    local each, whole = hashes.each[name], unread == 0 and hashes.whole
    if each and each ~= ("%016x"):format(sums[name])
      or whole and whole ~= ("%016x"):format(sum) then
      check_bytes(files, where_from, hashes)
    end
  end
end

--- A function that reads the part of a weight which a rank holds, as it is stored.
---@param files table<string, tidelock.Weights> # by name of tensor
---@param where_from string
---@param hashes tidelock.SavedHashes
local function reader(files, where_from, hashes)
  local names, look_at = sorted_keys(files), watch(files, where_from, hashes)
  return function(param, row, col)
    local file = files[param.name]
    if not file then
      usage("%s has no weight %s; %s", where_from, param.name, #names == 0 and "it has none at all"
        or "nearest: " .. suggest.nearest(param.name, names, 3))
    end
    local dtype, shape = file:look(param.name)
    local rows, cols = shape[1], shape[2] or 1
    if #shape > 2 or rows ~= param.weight.rows or cols ~= param.weight.cols then
      usage("%s: %s is (%s), and the recipe's is (%d, %d)", where_from, param.name,
        table.concat(shape, ", "), param.weight.rows, param.weight.cols)
    end
    local good, part = pcall(file.slice, file, param.name, row, param.rows, col, param.cols,
      dtype ~= "BF16" and "f32" or nil) -- nothing else is a weight's
    if not good then usage("%s: %s", where_from, part) end
    look_at(param, row, col, part)
    return part
  end
end

local function open_weights(path)
  local file, message = core.weights.open(path)
  if not file then usage("%s", message) end
  return file
end

--- A file with every weight under its own name.
---@param path string
---@param folder string? # of the run that left it
function loader.file(path, folder)
  local file, files = open_weights(path), {}
  for _, name in ipairs(file:names()) do files[name] = file end
  return reader(files, folder or path, { each = {}, whole = file:metadata().weights_hash })
end

--- The weights of a checkpoint.
local function checkpoint_reader(found)
  local files, opened, hashes = {}, {}, {}
  for _, entry in ipairs(found.state.tensors) do
    if entry.file:find "^weights" then
      opened[entry.file] = opened[entry.file] or open_weights(found.folder .. "/" .. entry.file)
      files[entry.name], hashes[entry.name] = opened[entry.file], entry.hash
    end
  end
  return reader(files, found.folder, { each = hashes })
end

local function is_no_layout(word) return not word:find "^layout[.=]" end

--- The recipe of a run folder as it ran, but for the layout that it was told: it was for training.
local function recipe_of(folder, words)
  local path, summary = folder .. "/recipe.lua", runs.summary(folder)
  if core.files.exists(folder .. "/origin.json") then
    return requests.recipe(folder, words, nil, is_no_layout), summary
  end
  if not core.files.exists(path) then
    local weights = core.files.exists(folder .. "/model.safetensors")
    usage("%s holds no recipe.lua: it is no run%s", folder,
      weights and ", and without config.json no model of Hugging Face: take the run itself, or "
      .. "./tl export --format hf" or beside.hint(folder .. "/?", true))
  end
  local all = {}
  for _, word in ipairs(split_overrides(summary and summary.overrides)) do
    if is_no_layout(word) then all[#all + 1] = word end
  end
  table.move(words, 1, #words, #all + 1, all)
  return requests.recipe(path, all), summary
end

--- Whether one of two paths of fields is the other's beginning: layout and layout.tp.
local function overlap(a, b)
  local shorter, longer = #a <= #b and a or b, #a <= #b and b or a
  return longer == shorter or longer:sub(1, #shorter + 1) == shorter .. "."
end

--- Fields that decide what the weights mean; others may differ.
local function compare(folder, known, recipe, words)
  if not known then return end
  local text = explain.text(requests.plan(recipe, "check"), "check")
  local lines = {}
  for _, d in ipairs(differences.of(known, text)) do
    local ours = false -- a field that the run did not know has its default
    for _, section in ipairs { "dtype", "model", "policy", "blocks" } do
      ours = ours or d.path:match "^%w+" == section and d.old ~= "unset"
    end
    for _, word in ipairs(words) do
      local key = word:match "^[^=]*"
      ours = ours and not overlap(key, d.path)
        and not (key == "dtype" and d.path == "policy.arithmetic") -- which follows it
    end
    if ours then lines[#lines + 1] = ("  %s: %s -> %s"):format(d.path, d.old, d.new) end
  end
  if #lines == 0 then return end
  local with = #words > 0 and ", with " .. table.concat(words, " ") .. "," or ""
  usage("%s: its recipe.lua does not give%s what it ran with; %ssay what it was, as key=value:\n%s",
    folder, with, #words > 0 and "leave out what it was not, or " or "", table.concat(lines, "\n"))
end

local function read_text(path)
  return core.files.exists(path) and core.files.read_all(path) or nil
end

--- Weights of a run: those after its last step, or of its newest checkpoint.
local function run_weights(folder, summary)
  local path = folder .. "/weights.safetensors"
  if summary and core.files.exists(path) then
    return loader.file(path, folder), ("%s, step %d"):format(folder, summary.steps)
  end
  local found = checkpoint.find(folder, folder)
  return checkpoint_reader(found), ("%s, step %d"):format(found.folder, found.state.step),
    found.state.fields
end

--- The tokenizer of a model, whose table may have more rows than there are tokens: an id beyond
--- them can be drawn like any other, and adds nothing to a text.
local function of_model(tokenizer)
  local wider = {}
  function wider.encode(_, ...) return tokenizer:encode(...) end
  function wider.vocab() return tokenizer:vocab() end
  function wider.token(_, id)
    local good, bytes, special = pcall(tokenizer.token, tokenizer, id)
    if not good then return "", true end
    return bytes, special
  end
  function wider.decode(_, ids, special)
    local known = {}
    for _, id in ipairs(ids) do
      if pcall(tokenizer.token, tokenizer, id) then known[#known + 1] = id end
    end
    return tokenizer:decode(known, special)
  end
  return wider
end

local function open_tokenizer(path)
  local tokenizer, message = core.tokenizer(path)
  if not tokenizer then
    usage("--tokenizer: %s; it can be a tokenizer.json, its folder, or bytes, where bytes are "
      .. "tokens", message)
  end
  return of_model(tokenizer)
end

local array_of_json = getmetatable(core.json.array {})

--- Ids that end a text: eos_token_id of generation_config.json, or of config.json. One that is none
--- is refused: a text would have no end, or every request would be refused for it.
local function stop_of(folder, vocab)
  for _, name in ipairs { "/generation_config.json", "/config.json" } do
    local path = folder .. name
    local good, values = pcall(core.json.decode, read_text(path) or "{}")
    if not good or type(values) ~= "table" then usage("%s: not a JSON object", path) end
    local id = values.eos_token_id
    if id ~= nil and id ~= core.json.null then
      local list = getmetatable(id) == array_of_json and id or { id }
      for _, one in ipairs(list) do
        if math.type(one) ~= "integer" or one < 0 or one >= vocab then
          usage("%s: eos_token_id is %s; it can be an id, from 0 to %d, or a list of such", path,
            core.json.encode(id), vocab - 1)
        end
      end
      return list
    end
  end
  return {}
end

--- The recipe of a Hugging Face folder: its model, and as much context as it was trained for.
local function foreign_recipe(folder, words)
  return requests.guarded(function()
    local tl = require "tidelock"
    local model = tl.nn.from_hf(folder)
    local context = math.min(model.options.hf.context or 2048, 2048)
    return tl.recipe {
      model = model, data = tl.data.given { { tokens = { 0 } } },
      batch = { samples = 1, length = context }, train = { steps = 1, lr = 0 },
    }:override(words)
  end)
end

--- A model of others. Its weights are read from its own files.
local function open_foreign(folder, words, options)
  local function read(param, row, col)
    local stored = param.fields.stored
    return stored.file:slice(stored.name, row, param.rows, col, param.cols, "f32")
  end
  local recipe = foreign_recipe(folder, words)
  return {
    path = folder, recipe = recipe, read = read, description = folder,
    tokenizer = open_tokenizer(options.tokenizer or options.ids and "bytes" or folder),
    stop = stop_of(folder, recipe.values.model.options.vocab),
  }
end

--- Whether some of the data are ids of a tokenizer, not bytes.
local function reads_ids(source)
  if type(source) ~= "table" then return false end
  local any = source.kind == "tokens"
  for _, child in ipairs(source.sources or {}) do any = any or reads_ids(child) end
  return any
end

--- What may say what the ids of a run mean, where it was trained on such: the folder that its model
--- came from, or any. Else nil.
local function wordless(recipe)
  if not reads_ids(recipe.values.data) then return nil end
  local model = recipe.values.model
  local hf = type(model) == "table" and type(model.options) == "table" and model.options.hf
  local given = hf and core.files.exists(hf.folder .. "/tokenizer.json")
  return given and ("--tokenizer %s, which its model came from"):format(hf.folder)
    or "--tokenizer FILE or its folder"
end

--- Opens what `path` means. `words` are overrides of its recipe.
---@param path string
---@param words? string[]
---@param options? { tokenizer?: string, ids?: boolean } # ids: nobody asks for words
---@return tidelock.Model
function loader.open(path, words, options)
  words, options = words or {}, options or {}
  path = #path > 1 and path:gsub("/+$", "") or path
  if core.files.exists(path) and not core.files.is_directory(path) then
    usage("%s is a file; a model is the folder of a run, as runs/quickstart-eaf6, or one of "
      .. "Hugging Face: here %s", path, path:match "^(.*)/[^/]*$" or ".")
  elseif not core.files.is_directory(path) then
    usage("there is no folder %s; a model is the folder of a run, as runs/quickstart-eaf6, or one "
      .. "of Hugging Face%s", path, beside.hint(path, true))
  end
  local folder, one = path, nil
  if not core.files.exists(path .. "/recipe.lua") and #checkpoint.list(path) > 0 then
    path = checkpoint.find(path, path).folder -- a folder of checkpoints: its newest
  end
  if core.files.exists(path .. "/state.json") then
    one = checkpoint.find(path, path)
    folder = one.run_folder
    if not folder then
      usage("%s is a checkpoint outside the folder of its run, which has the recipe; a model is "
        .. "that folder, as runs/quickstart-eaf6", path)
    end
  elseif core.files.exists(path .. "/config.json") then
    return open_foreign(path, words, options)
  end
  local recipe, summary = recipe_of(folder, words)
  local read, description, known
  if one then
    read, known = checkpoint_reader(one), one.state.fields
    description = ("%s, step %d"):format(path, one.state.step)
  else
    read, description, known = run_weights(folder, summary)
  end
  compare(folder, known or read_text(folder .. "/resolved.txt"), recipe, words)
  return {
    path = path, recipe = recipe, read = read, description = description,
    tokenizer = open_tokenizer(options.tokenizer or "bytes"),
    wordless = not options.tokenizer and wordless(recipe) or nil,
  }
end

--- Raises where nothing says what the ids of a model mean: as bytes they would be noise.
---@param model tidelock.Model
function loader.needs_words(model)
  if model.wordless then
    usage("%s: it was trained on ids (tl.data.tokens), and nothing here says what they mean; "
      .. "%s, or --tokenizer bytes where ids are bytes", model.path, model.wordless)
  end
end

--- Notes on stderr that the tokenizer has ids which the model has not: it is hardly the one that
--- made the training data. The other way round is usual: tables are padded.
---@param model tidelock.Model
---@param vocab integer # of the model
function loader.note_words(model, vocab)
  local count = model.tokenizer:vocab()
  if count > vocab then
    io.stderr:write(("note: the tokenizer has %d ids, the model %d: is it that of the training "
      .. "data?\n"):format(count, vocab))
  end
end

return loader
