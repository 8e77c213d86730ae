--- `./tl export CHECKPOINT OUT --dtype bf16`: the weights alone, gathered, in the dtype wanted.
--
--     checkpoint   weights.safetensors  optimizer.safetensors (f32 masters)  state.json
--     or a run     weights.safetensors after its last step, where no checkpoint is as new
--         |  read while written: needs no memory for the model
--     OUT/         model.safetensors, or model-00001-of-00003.safetensors .. with
--                  model.safetensors.index.json
--
--     --format hf: the names of Hugging Face, config.json, generation_config.json, and the
--                  tokenizer of the folder that the model came from; transformers loads OUT
--
-- Without it tensors keep their names. A run of 16 bits has its f32 masters in checkpoints alone. A
-- weight that is trained in 16 bits is exported from its f32
-- master when f32 is asked for; rounding is to the nearest, ties to even. OUT appears whole or not
-- at all.

local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local hf_export = require "tidelock.hf.export"
local loader = require "tidelock.run.loader"
local requests = require "tidelock.plan.requests"
local runs = require "tidelock.run.runs"
local screen = require "tidelock.text.screen"

local export = {}

local file_bytes_max = 5 * 1000 * 1000 * 1000 -- as Hugging Face cuts files
local dtype_names = { f32 = "F32", bf16 = "BF16", f16 = "F16" }
local element_bytes = { F32 = 4, BF16 = 2, F16 = 2 }

local function usage(format, ...)
  error({ status = 2, message = "tidelock: export: " .. format:format(...) }, 0)
end

local function open(path)
  local file, message = core.weights.open(path)
  if not file then usage("%s", message) end
  return file
end

--- Why an f32 master of a weight of 16 bits is not there, and what to do.
local function no_master(path, weight, dtype, newest)
  if newest then
    usage("%s: %s is %s at the end of the run, and f32 masters are in checkpoints alone; the "
      .. "newest is %s, or --dtype bf16", path, weight, dtype, newest)
  end
  usage("%s: %s is %s, and this run has no checkpoint with its f32 master; --dtype bf16, or "
    .. "run again with train.save.every", path, weight, dtype)
end

--- The newest checkpoint of a run: its step, or 0, and its folder.
local function newest_checkpoint(path)
  for _, dir in ipairs { checkpoint.dir(path), path } do
    local steps = checkpoint.list(dir)
    if #steps > 0 then return steps[#steps], ("%s/step-%08d"):format(dir, steps[#steps]) end
  end
  return 0
end

--- What the end of a run has left where no checkpoint is as new: a run that saves none, or that
--- went on from its checkpoints without saving. Else nil. `options` as in sources_of.
local function finished_run(path, options)
  local weights = path .. "/weights.safetensors"
  if core.files.exists(path .. "/state.json") or not core.files.exists(weights) then return nil end
  local file, tensors = open(weights), {}
  local known, saved, newest = file:metadata(), newest_checkpoint(path)
  local step = math.tointeger(tonumber(known.step))
  if newest and saved >= (step or 0) then return nil end
  if not step or not known.key or not known.weights_hash then
    usage("%s is damaged: it does not say its step, key and hash", weights)
  end
  local shapes = {}
  for i, name in ipairs(file:names()) do
    tensors[i] = { file = "weights.safetensors", name = name }
    local dtype, shape = file:look(name)
    shapes[i] = { name = name, shape = shape }
    if options.dtype == "f32" and dtype ~= "F32" then no_master(path, name, dtype, newest) end
  end
  if known.shapes_hash and known.shapes_hash ~= runs.shapes_hash(shapes) then
    usage("%s is damaged: other names or shapes of tensors than were saved", weights)
  end
  local note = options.format and hf_export.note(requests.plan(loader.open(path).recipe, "check"))
  return { folder = path, run_folder = path, notes = {}, state = { tensors = tensors, hf = note,
    key = known.key, step = step, weights_hash = known.weights_hash } }
end

--- The checkpoint that `path` means, or the weights of a run whose end is newer.
---@param path string
---@param options { dtype?: string, format?: string }
---@return tidelock.Checkpoint
function export.find(path, options)
  local folder = path:match "^(.-)/*$"
  return finished_run(folder, options) or checkpoint.find(path, "export")
end

--- The dtype and shape of a saved tensor. No hash covers them, so they are compared with what
--- state.json says; checkpoints of before say no shape.
local function header_of(found, from, file)
  local stored, shape = file:look(from.name)
  if not stored then usage("%s/%s has no tensor %s", found.folder, from.file, from.name) end
  if stored ~= "F32" and stored ~= "BF16" then
    usage("%s is damaged: %s is %s in %s, and weights are F32 or BF16", found.folder, from.name,
      stored, from.file)
  end
  local here, saved = table.concat(shape, ", "), from.shape and table.concat(from.shape, ", ")
  if saved and here ~= saved then
    usage("%s is damaged: %s is (%s) in %s, and (%s) was saved", found.folder, from.name, here,
      from.file, saved)
  end
  return stored, shape
end

--- { name, file, entry, dtype } of every weight: the source that is nearest to `wanted`.
local function sources_of(found, wanted)
  local files, masters, list = {}, {}, {}
  for _, entry in ipairs(found.state.tensors) do
    files[entry.file] = files[entry.file] or open(found.folder .. "/" .. entry.file)
    local name = entry.name:match "^master%.(.+)$"
    if name and entry.file:find "^optimizer" then masters[name] = entry end
  end
  for _, entry in ipairs(found.state.tensors) do
    if entry.file:find "^weights" then
      local from = wanted == "F32" and masters[entry.name] or entry
      local stored, shape = header_of(found, from, files[from.file])
      local dtype, count = wanted or stored, 1
      for _, size in ipairs(shape) do count = count * size end
      list[#list + 1] = {
        file = "model", name = entry.name, hash = from.hash, weight_hash = entry.hash,
        bytes = count * element_bytes[dtype],
        source = { name = entry.name, file = files[from.file], entry = from.name, dtype = dtype },
      }
    end
  end
  return list
end

--- Raises where a tensor has other bytes than were saved: those of a checkpoint are hashed one by
--- one, those that the end of a run has left all together; and where one is lacking.
local function check_bytes(found, list)
  local sum, wrong, whole = 0, {}, found.state.weights_hash
  for _, item in ipairs(list) do
    local source = item.source
    local tensor = source.file:read(source.entry)
    local hash = tensor:hash_int(source.entry)
    tensor:close()
    if item.hash and ("%016x"):format(hash) ~= item.hash then wrong[#wrong + 1] = source.entry end
    sum = sum + (item.weight_hash and tonumber(item.weight_hash, 16) or hash)
  end
  if #wrong == 0 and ("%016x"):format(sum) ~= whole then
    wrong[1] = ("its tensors have the hash %016x, and %s was written"):format(sum, whole)
  end
  if #wrong > 0 then
    usage("%s is damaged: other bytes than were saved: %s", found.folder,
      table.concat(wrong, ", "))
  end
end

--- Renames the sources to what transformers reads; returns the texts beside them, and notes.
local function as_hf(found, list)
  local map, texts, notes = hf_export.folder(found.state.hf, list[1].source.dtype)
  if not map then
    usage("--format hf: transformers has no architecture for this model: %s", texts)
  end
  for _, item in ipairs(list) do
    local theirs = map[item.name]
    if not theirs then
      usage("--format hf: %s has no name there", item.name)
    end
    item.name, item.source.name = theirs, theirs
  end
  return texts, notes
end

--- The index that names the file of each tensor, as Hugging Face writes it.
local function index_text(files, bytes)
  local map = {}
  for _, file in ipairs(files) do
    for _, item in ipairs(file.items) do map[item.name] = file.name end
  end
  return core.json.encode { metadata = { total_size = bytes }, weight_map = map } .. "\n"
end

--- Writes the folder. Returns the bytes of its tensors, the names of its files, and notes.
---@param found tidelock.Checkpoint
---@param out string
---@param options? { dtype?: string, format?: string, file_bytes_max?: integer }
function export.write(found, out, options)
  options = options or {}
  local wanted = options.dtype and dtype_names[options.dtype]
  if options.dtype and not wanted then
    usage("--dtype: expected f32, bf16 or f16, got %q", options.dtype)
  end
  if options.format and options.format ~= "hf" then
    usage("--format: expected hf, got %q", options.format)
  end
  if core.files.exists(out) then usage("%s exists already; give a new folder", out) end
  local list, bytes, names = sources_of(found, wanted), 0, {}
  check_bytes(found, list)
  local parent = out:match "^(.*)/[^/]*$"
  if parent and parent ~= "" then core.files.mkdirs(parent) end
  local texts, notes = {}, {}
  if options.format then texts, notes = as_hf(found, list) end
  local files = checkpoint.cut(list, options.file_bytes_max or file_bytes_max)
  local state, written = found.state, {}
  local metadata = {
    format = "pt", key = state.key, step = tostring(state.step), weights_hash = state.weights_hash,
  }
  for i, file in ipairs(files) do
    local tensors = {}
    for j, item in ipairs(file.items) do tensors[j], bytes = item.source, bytes + item.bytes end
    written[i], names[i] = { name = file.name, tensors = tensors, metadata = metadata }, file.name
  end
  if #files > 1 then
    texts[#texts + 1] = { name = "model.safetensors.index.json", text = index_text(files, bytes) }
  end
  local saver <close> = core.saver(out, written, texts)
  saver:wait()
  return bytes, names, notes
end

--- The command.
---@param request tidelock.Request
function export.command(request)
  local options = { dtype = request.options.dtype, format = request.options.format }
  local found = export.find(request.words[1], options)
  local out = request.words[2]:match "^(.-)/*$"
  local good, bytes, names, notes = pcall(export.write, found, out, options)
  if not good then
    error(type(bytes) == "string" and bytes:gsub("^[^\n]-%.lua:%d+: ", "") or bytes, 0)
  end
  print(("%s: %s, %s MiB; step %d of key %s"):format(out, screen.plural(#names, "file"),
    screen.mib(bytes), found.state.step, found.state.key))
  for _, note in ipairs(notes) do print("note: " .. note) end
  return 0
end

return export
