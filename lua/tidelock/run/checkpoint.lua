--- checkpoint.lua - what a run needs to go on, as a folder that is there whole or not at all.
--
--     DIR/step-00000060/                a checkpoint: the state after step 60
--       weights.safetensors             logical tensors by their names, in their dtypes
--       optimizer.safetensors           m.NAME, v.NAME, and master.NAME beside 16-bit weights
--       state.json                      step, key, hashes, shapes, fields of the recipe; the last
--     DIR/step-00000080.tmp/            being written, or left by a killed writer: never read
--
-- Tensors are whole: any layout reads what any layout wrote. A file holds 4 GiB at most, or one
-- tensor; more become weights-00001-of-00003.safetensors and so on. Random numbers and the order of
-- the data are functions of seed and step, so the step is all that they need.
--
-- Nothing in a folder is code, and nothing of it is believed unchecked: state.json says which
-- tensors there are and what they hash to, and ends with the hash of its own text (seal.lua).

local contracts = require "tidelock.language.contracts"
local beside = require "tidelock.text.beside"
local core = require "tidelock.core"
local differences = require "tidelock.run.differences"
local emit = require "tidelock.plan.stages.emit"
local experts = require "tidelock.plan.experts"
local first_rate = require "tidelock.run.first_rate"
local hf_export = require "tidelock.hf.export"
local key = require "tidelock.language.key"
local seal = require "tidelock.run.seal"

local checkpoint = {}

local version = 2 -- 1 has no seal
local file_bytes_max = 4 << 30

--- Where each kind of tensor lives in a rank's arena, and in the files.
local kinds = {
  { arena = "weight ", file = "weights", prefix = "" },
  { arena = "master ", file = "optimizer", prefix = "master." },
  { arena = "m ", file = "optimizer", prefix = "m." },
  { arena = "v ", file = "optimizer", prefix = "v." },
}
checkpoint.kinds = kinds

--- The element types that are saved, as files name them.
local dtypes = { f32 = "F32", bf16 = "BF16" }

local function step_name(step) return ("step-%08d"):format(step) end

local function usage(format, ...) error({ status = 2, message = format:format(...) }, 0) end

-- what is in a folder ---------------------------------------------------------------------------

---@class tidelock.CheckpointState
---@field version integer
---@field step integer # steps that were done
---@field updates integer # of them, those that changed weights
---@field key string
---@field recipe_hash string
---@field contracts integer
---@field weights_hash string
---@field optimizer_hash string
---@field fields string # "path = value" lines of the recipe as it was understood
---@field parts table<string, string> # what the key covers, hashed part by part
---@field tensors { file: string, name: string, hash: string, shape?: integer[] }[]
---@field parent? { key: string, step: integer }
---@field hf? table # the model as transformers would have it, or the reason why not

local kinds_of_fields = {
  step = "integer", version = "integer", updates = "integer", contracts = "integer",
  key = "string", recipe_hash = "string", fields = "string", weights_hash = "string",
  optimizer_hash = "string", tensors = "table", parts = "table",
}

local function whole_state(state)
  for name, kind in pairs(kinds_of_fields) do
    if (math.type(state[name]) or type(state[name])) ~= kind then return false end
  end
  for _, entry in ipairs(state.tensors) do
    if type(entry) ~= "table" or type(entry.file) ~= "string" or type(entry.name) ~= "string"
      or type(entry.hash) ~= "string" then return false end
  end
  return state.step >= 0
end

--- The state of the checkpoint in `folder`, or nil and what is wrong with it.
---@return tidelock.CheckpointState?, string?
function checkpoint.read(folder)
  local path = folder .. "/state.json"
  local text, message = core.files.read_all(path)
  if not text then return nil, message end
  local good, state = pcall(core.json.decode, text)
  if not good or type(state) ~= "table" then state = {} end
  if math.type(state.version) == "integer" and state.version > version then
    return nil, ("%s: version %d of the format; this program reads up to %d"):format(path,
      state.version, version)
  end
  local sealed = seal.decode(text) or state.version == 1 and not state.xxh64
  if not sealed or not whole_state(state) then
    return nil, path .. ": it is damaged: not the state of a checkpoint"
  end
  return state
end

--- Steps of the finished checkpoints in `dir`, ascending, and the names of unfinished ones.
function checkpoint.list(dir)
  local steps, unfinished = {}, {}
  for _, name in ipairs(core.files.is_directory(dir) and core.files.list(dir) or {}) do
    local digits = name:match "^step%-(%d+)"
    local step = digits and math.tointeger(tonumber(digits))
    local state = dir .. "/" .. name .. "/state.json"
    if step and name == step_name(step) and core.files.exists(state) then
      steps[#steps + 1] = step
    elseif digits then
      unfinished[#unfinished + 1] = name
    end
  end
  table.sort(steps)
  return steps, unfinished
end

--- Where a run has its checkpoints: where its fields say (train.save.dir), or in its folder.
---@param run_folder string
function checkpoint.dir(run_folder)
  local path = run_folder .. "/resolved.txt"
  local fields = core.files.exists(path) and core.files.read_all(path) or ""
  return ("\n" .. fields):match '\ntrain%.save[^\n]-%f[%w]dir = "([^"\n]*)"'
    or run_folder .. "/checkpoints"
end

---@class tidelock.Checkpoint
---@field folder string
---@field state tidelock.CheckpointState
---@field run_folder? string # of the run that wrote it
---@field notes string[]

--- The checkpoint that a path means: itself, the newest of that run, or the newest in it.
---@param path string
---@param who? string # whose mistake it is, "--resume" unless given
---@return tidelock.Checkpoint
function checkpoint.find(path, who)
  who = who or "--resume"
  path = path:match "^(.-)/*$"
  if not core.files.is_directory(path) then
    usage("tidelock: %s: there is no folder %s%s", who, path, beside.hint(path, true))
  end
  local function opened(folder, run_folder, notes)
    local state, message = checkpoint.read(folder)
    if not state then usage("tidelock: %s: %s", who, message) end
    return { folder = folder, state = state, run_folder = run_folder, notes = notes }
  end
  if core.files.exists(path .. "/state.json") then
    return opened(path, path:match "^(.*)/checkpoints/[^/]+$", {})
  end
  local notes = {}
  for _, dir in ipairs { checkpoint.dir(path), path } do
    local steps, unfinished = checkpoint.list(dir)
    for _, name in ipairs(unfinished) do
      notes[#notes + 1] = ("%s/%s was not finished and is not used"):format(dir, name)
    end
    if #steps > 0 then
      return opened(dir .. "/" .. step_name(steps[#steps]), dir ~= path and path or nil, notes)
    end
  end
  local why = #notes > 0 and "; " .. table.concat(notes, "; ")
    or "; a run writes them where its recipe has train.save, e.g. train.save.every=50"
  usage("tidelock: %s: %s holds no finished checkpoint%s", who, path, why)
end

-- may this recipe go on from it? ----------------------------------------------------------------

local function allowed(path, forks)
  for _, fork in ipairs(forks) do
    local rest = path:sub(1, #fork) == fork and path:sub(#fork + 1, #fork + 1)
    if rest == "" or rest == "." or rest == "[" then return true end
  end
  return false
end

--- "  train.steps (command line): 200 -> 300", and what the key covers but no field says.
local function refusal(state, plan, parts, forks)
  local lines, paths, list, rates_named = {}, {}, {}, allowed("train.lr", forks)
  for _, d in ipairs(differences.of(state.fields, plan.fields_text)) do
    if allowed(d.path, forks) then
      rates_named = rates_named or d.path:find "^train%.lr%." ~= nil
    else
      list[#list + 1] = d
      local fork = d.path:match "^model%f[^%w]" or d.path:match "^%w+%.?[%w_]*"
      if fork ~= paths[#paths] then paths[#paths + 1] = fork end
    end
  end
  for _, d in ipairs(differences.gathered(list)) do
    local site = plan.spec.site(d.path)
    lines[#lines + 1] = ("  %s%s: %s -> %s"):format(d.label, site and " (" .. site .. ")" or "",
      d.old, d.new)
  end
  for _, d in ipairs(list) do rates_named = rates_named and not d.path:find "^train%.lr" end
  if state.parts.lr ~= parts.lr and not rates_named then
    if not allowed("train.lr", paths) then paths[#paths + 1] = "train.lr" end
    local step, before, now = first_rate(state.fields, plan.fields_text, state.step)
    lines[#lines + 1] = step and ("  the first learning rate that differs is that of step %d: %.9g "
      .. "-> %.9g"):format(step, before, now)
  end
  for _, name in ipairs { "data", "contracts" } do
    if state.parts[name] ~= parts[name] and not allowed(name, forks) then
      lines[#lines + 1] = name == "data" and "  data: its bytes are others"
        or ("  contracts: version %s of the operators' contracts -> %s; other results: %s"):format(
          state.contracts, key.contracts, contracts.between(state.contracts, key.contracts))
      paths[#paths + 1] = name
    end
  end
  if #lines == 0 and #forks == 0 then
    for _, name in ipairs(key.parts) do
      if state.parts[name] ~= parts[name] then
        lines[#lines + 1], paths[#paths + 1] = "  " .. name, name
      end
    end
  end
  return lines, paths
end

--- Raises unless `plan` may go on from the checkpoint: the same key, or every field that differs is
--- named in `forks`. Returns true when it forks.
---@param found tidelock.Checkpoint
---@param plan table # with key, key_parts and fields_text
---@param forks string[]
function checkpoint.check(found, plan, forks)
  local state = found.state
  if state.key == plan.key then return false end
  if state.contracts > key.contracts then
    usage("%s: saved under version %d of the operators' contracts; this program has %d: bits would "
      .. "change in silence", found.folder, state.contracts, key.contracts)
  end
  local lines, paths = refusal(state, plan, plan.key_parts, forks)
  if #lines == 0 then return true end
  paths = table.move(paths, 1, #paths, #forks + 1, table.move(forks, 1, #forks, 1, {}))
  usage("%s: saved under key %s, this recipe has %s; what can change bits:\n%s\n"
    .. "to fork on purpose: --fork %s (the new run records its parent and the step)",
    found.folder, key.spaced(state.key), key.spaced(plan.key), table.concat(lines, "\n"),
    table.concat(paths, ","))
end

-- loading ---------------------------------------------------------------------------------------

local function open_files(found)
  local files = {}
  for _, entry in ipairs(found.state.tensors) do
    if not files[entry.file] then
      local file, message = core.weights.open(found.folder .. "/" .. tostring(entry.file))
      if not file then usage("tidelock: --resume: %s", message) end
      files[entry.file] = file
    end
  end
  return files
end

--- The file and entry of each tensor by its name.
local function index_of(found, files)
  local index = {}
  for _, entry in ipairs(found.state.tensors) do
    local dtype, shape = files[entry.file]:look(entry.name)
    if not dtype then
      usage("tidelock: --resume: %s/%s has no tensor %s, which state.json names", found.folder,
        entry.file, entry.name)
    end
    index[entry.file:match "^(%a+)" .. " " .. entry.name] = {
      file = files[entry.file], shape = shape, entry = entry, dtype = dtype,
    }
  end
  return index
end

--- Writes one kind of a weight into every rank that holds it; returns the bytes that were read.
local function load_tensor(run, found, index, param, kind)
  local name, bytes = kind.prefix .. param.name, 0
  for rank, entry in ipairs(run.table) do
    local at = entry.coordinates
    local planned = run.plan.ranks[experts.plan_index(run.spec.layout, at)]
    local v = planned.persistent[kind.arena .. param.name]
    if v and v.tensor then
      local stored = index[kind.file .. " " .. name]
      if not stored then
        usage("tidelock: --resume: %s has no %s", found.folder, name)
      end
      local rows, cols = stored.shape[1], stored.shape[2] or 1
      if stored.dtype ~= dtypes[v.dtype] then
        usage("tidelock: --resume: %s is %s in %s and %s here", name, stored.dtype, found.folder,
          dtypes[v.dtype] or v.dtype)
      elseif #stored.shape > 2 or rows ~= param.weight.rows or cols ~= param.weight.cols then
        usage("tidelock: --resume: %s is (%s) in %s and (%d, %d) here", name,
          table.concat(stored.shape, ", "), found.folder, param.weight.rows, param.weight.cols)
      end
      local part = stored.file:slice(name, emit.resolve(param.row_first, at.tp), param.rows,
        emit.resolve(param.col_first, at.tp), param.cols)
      run.ranks:write(rank - 1, v.tensor, part)
      bytes = bytes + param.rows * param.cols * (part:dtype() == "bf16" and 2 or 4)
      part:close()
    end
  end
  return bytes
end

--- The tensors whose bytes do not hash to what state.json says.
local function damaged(found, index)
  local names = {}
  for _, entry in ipairs(found.state.tensors) do
    local stored = index[entry.file:match "^(%a+)" .. " " .. entry.name]
    if stored.file:read(entry.name):hash(entry.name) ~= entry.hash then
      names[#names + 1] = entry.file .. ": " .. entry.name
    end
  end
  return names
end

--- Puts a started run into the state of the checkpoint. Each rank reads only its own slices.
---@return integer bytes, number seconds
function checkpoint.load(run, found)
  local clock, bytes = core.files.seconds(), 0
  local index = index_of(found, open_files(found))
  for _, param in ipairs(run.plan["local"].params) do
    for _, kind in ipairs(kinds) do
      bytes = bytes + load_tensor(run, found, index, param, kind)
    end
  end
  local state = found.state
  if run:weights_hash() ~= state.weights_hash or run:optimizer_hash() ~= state.optimizer_hash then
    usage("tidelock: --resume: %s is damaged: other bytes than were saved in %s", found.folder,
      table.concat(damaged(found, index), ", "))
  end
  return bytes, core.files.seconds() - clock
end

-- saving ----------------------------------------------------------------------------------------

--- Everything that is saved: { file, name, tensor, hash, bytes }, in the order of the model.
local function gather(run)
  local list = {}
  for _, param in ipairs(run.plan["local"].params) do
    for _, kind in ipairs(kinds) do
      local tensor = run:stored(param, kind.arena)
      if tensor then
        local name = kind.prefix .. param.name
        local element = tensor:dtype() == "bf16" and 2 or 4
        list[#list + 1] = {
          file = kind.file, name = name, tensor = tensor,
          hash = run:stored_hash(param, kind.arena, name),
          bytes = param.weight.rows * param.weight.cols * element,
        }
      end
    end
  end
  return list
end

--- Bytes of the tensors of a checkpoint, or of its weights alone.
---@param plan table
---@param weights boolean? # no more than these
---@return integer
function checkpoint.bytes(plan, weights)
  local bytes = 0
  for _, param in ipairs(plan["local"].params) do
    for _, kind in ipairs(kinds) do
      local dtype
      for _, rank in ipairs(plan.ranks) do
        local view = rank.persistent[kind.arena .. param.name]
        dtype = dtype or view and view.tensor and view.dtype
      end
      if dtype and (not weights or kind.arena == "weight ") then
        bytes = bytes + param.weight.rows * param.weight.cols * (dtype == "bf16" and 2 or 4)
      end
    end
  end
  return bytes
end

--- Cuts each file where it would grow past the limit, and names the files.
local function cut(list, limit)
  local groups, order = {}, {}
  for _, item in ipairs(list) do
    local parts = groups[item.file]
    if not parts then
      parts = { { bytes = 0 } }
      groups[item.file], order[#order + 1] = parts, item.file
    end
    local last = parts[#parts]
    if last.bytes > 0 and last.bytes + item.bytes > limit then
      last = { bytes = 0 }
      parts[#parts + 1] = last
    end
    last[#last + 1], last.bytes = item, last.bytes + item.bytes
  end
  local files = {}
  for _, name in ipairs(order) do
    for i, part in ipairs(groups[name]) do
      local numbered = #groups[name] > 1 and ("%s-%05d-of-%05d"):format(name, i, #groups[name])
      files[#files + 1] = { name = (numbered or name) .. ".safetensors", items = part }
    end
  end
  return files
end
checkpoint.cut = cut

--- Starts writing the state of `run` to a new folder in `dir`. The tensors are copied before this
--- returns; the files are written in the background.
---@param dir string
---@param options? { parent?: table, file_bytes_max?: integer }
---@return { saver: table, folder: string, step: integer, bytes: integer, state: table }
function checkpoint.start(run, dir, options)
  options = options or {}
  local list = gather(run)
  local files, tensors, bytes = cut(list, options.file_bytes_max or file_bytes_max), {}, 0
  local step, plan = run.done, run.plan
  local metadata = { format = "pt", key = plan.key, step = tostring(step) }
  for i, file in ipairs(files) do
    local sources = {}
    for j, item in ipairs(file.items) do
      sources[j] = { name = item.name, tensor = item.tensor }
      tensors[#tensors + 1] = {
        file = file.name, name = item.name, hash = item.hash, shape = item.tensor:shape(),
      }
      bytes = bytes + item.bytes
    end
    files[i] = { name = file.name, tensors = sources, metadata = metadata }
  end
  local state = {
    version = version, step = step, updates = run.updates, key = plan.key,
    recipe_hash = plan.recipe_hash, contracts = key.contracts, fields = plan.fields_text,
    parts = plan.key_parts, weights_hash = run:weights_hash(),
    optimizer_hash = run:optimizer_hash(), tensors = tensors, parent = options.parent,
    hf = hf_export.note(plan),
  }
  local folder = dir .. "/" .. step_name(step)
  local saver = core.saver(folder, files, {
    { name = "state.json", text = seal.encode(state) .. "\n" },
  })
  return { saver = saver, folder = folder, step = step, bytes = bytes, state = state }
end

--- Removes a finished checkpoint; state.json goes first, so that half of it is never taken for one.
function checkpoint.remove(folder)
  os.remove(folder .. "/state.json")
  for _, name in ipairs(core.files.list(folder) or {}) do os.remove(folder .. "/" .. name) end
  os.remove(folder)
end

return checkpoint
