--- hf/files.lua - the safetensors files of a Hugging Face folder, opened and checked before use.
--
--     DIR/model.safetensors                                 or
--     DIR/model.safetensors.index.json  { "weight_map": { TENSOR: FILE, .. } }  and its files
--
-- Opening maps the files and reads their headers; the reader in C finds files that are cut short.
-- Then every weight of the model must be there with its shape and in a dtype of numbers, and every
-- tensor that is there must belong to a weight. All that is wrong is reported.
local core = require "tidelock.core"
local latent = require "tidelock.hf.latent"
local sorted_keys = require "tidelock.text.sorted_keys"
local suggest = require "tidelock.text.suggest"

local files = {}

local readable = { F32 = true, F16 = true, BF16 = true }
local element_bytes = { F32 = 4, F16 = 2, BF16 = 2 }
local listed_max = 8 -- tensors of one kind of fault that are named; the others are counted
local nearest_of = 64 -- names that are compared letter by letter

--- A JSON file as a table, or nil when something was reported.
function files.json(path, report)
  local text, message = core.files.read_all(path)
  if not text then
    report(message)
    return nil
  end
  local good, value = pcall(core.json.decode, text)
  if good and type(value) == "table" then return value end
  report(("%s: not a JSON object%s"):format(path, good and "" or ": "
    .. tostring(value):gsub("^[^\n]-%.lua:%d+: ", "")))
  return nil
end

local function open(path, report)
  local file, message = core.weights.open(path)
  if not file then report(message) end
  return file
end

--- Tensor -> opened file, for the shards that an index names.
local function from_index(folder, report)
  local path = folder .. "/model.safetensors.index.json"
  local index = files.json(path, report)
  if not index then return nil end
  if type(index.weight_map) ~= "table" then
    report(path .. ": weight_map is missing")
    return nil
  end
  local tensors, opened, good = {}, {}, true
  for _, name in ipairs(sorted_keys(index.weight_map)) do
    local shard = index.weight_map[name]
    if type(shard) ~= "string" or shard:find "/" then
      report(("%s: weight_map[%q] is no name of a file beside it"):format(path, name))
      good = false
    else
      if opened[shard] == nil then opened[shard] = open(folder .. "/" .. shard, report) or false end
      if not opened[shard] then good = false
      elseif not opened[shard]:look(name) then
        report(("%s/%s: there is no tensor %s, which the index says"):format(folder, shard, name))
        good = false
      else
        tensors[name] = opened[shard]
      end
    end
  end
  return good and tensors or nil
end

--- Tensor -> opened file of the folder; nil when something was reported.
---@param folder string
---@param report fun(text: string)
---@return table<string, tidelock.Weights>?
function files.open(folder, report)
  local single = folder .. "/model.safetensors"
  if core.files.exists(folder .. "/model.safetensors.index.json") then
    return from_index(folder, report)
  elseif core.files.exists(single) then
    local file, tensors = open(single, report), {}
    for _, name in ipairs(file and file:names() or {}) do tensors[name] = file end
    return file and tensors
  end
  local hint = core.files.exists(folder .. "/pytorch_model.bin")
    and "; pytorch_model.bin is a program, not data: transformers can save it as safetensors" or ""
  report(("%s: neither model.safetensors nor model.safetensors.index.json%s"):format(folder, hint))
  return nil
end

--- Reports up to listed_max entries of one kind of fault.
local function report_list(list, report)
  table.sort(list)
  for i = 1, math.min(#list, listed_max) do report(list[i]) end
  if #list > listed_max then report(("and %d more like this"):format(#list - listed_max)) end
end

--- Tensors that files carry and no weight needs: what a tied head repeats, tables of angles, layers
--- for further tokens.
local function needless(name, facts)
  return name == "lm_head.weight" and facts.tied or name:find "%.rotary_emb%.inv_freq$" ~= nil
    or latent.is_further(facts, name)
end

--- How many bytes two names share at their beginnings and at their ends.
local function shared(a, b)
  local most, first, last = math.min(#a, #b), 0, 0
  while first < most and a:byte(first + 1) == b:byte(first + 1) do first = first + 1 end
  while last < most - first and a:byte(-last - 1) == b:byte(-last - 1) do last = last + 1 end
  return first + last
end

--- The sorted name that is nearest to `name`. Models have tens of thousands: only those that share
--- most with it are compared letter by letter.
local function nearest(name, known)
  local ranked = {}
  for i, other in ipairs(known) do ranked[i] = { other, shared(name, other) } end
  table.sort(ranked, function(a, b)
    if a[2] ~= b[2] then return a[2] > b[2] end
    return a[1] < b[1]
  end)
  local few = {}
  for i = 1, math.min(#ranked, nearest_of) do few[i] = ranked[i][1] end
  return suggest.nearest(name, few, 1)
end

--- Reports the weights that no tensor is there for: where they were looked for, how many they are,
--- and what the file has instead: a tensor that belongs to no weight, or where there is none, any.
---@param missing { theirs: string, shape: integer[] }[]
---@param extra string[] # sorted
---@param wanted integer # tensors of the configuration
local function report_missing(missing, extra, tensors, wanted, folder, report)
  if #missing == 0 then return end
  table.sort(missing, function(a, b) return a.theirs < b.theirs end)
  local known, index = extra, "model.safetensors.index.json"
  if #extra == 0 then known = sorted_keys(tensors) end
  local file = core.files.exists(folder .. "/" .. index) and index or "model.safetensors"
  for i = 1, math.min(#missing, listed_max) do
    local theirs = missing[i].theirs
    local near = #known > 0 and "; nearest there: " .. nearest(theirs, known) or "; it is empty"
    report(("tensor %s (%s) is missing from %s, which lacks %d of %d%s"):format(theirs,
      table.concat(missing[i].shape, ", "), file, #missing, wanted, near))
  end
end

--- Checks that the tensors are those of `list` (hf/names.lua). Returns how many bytes they have.
---@param tensors table<string, tidelock.Weights>
---@param list { ours: string, theirs: string, shape: integer[] }[]
---@param folder string
---@return integer? bytes # nil when something was reported
function files.check(tensors, list, facts, folder, report)
  local missing, shapes, dtypes, extra, wanted, bytes = {}, {}, {}, {}, {}, 0
  for _, weight in ipairs(list) do
    wanted[weight.theirs] = true
    local file = tensors[weight.theirs]
    local dtype, shape = nil, nil
    if file then dtype, shape = file:look(weight.theirs) end
    local expected = table.concat(weight.shape, ", ")
    if not file then
      missing[#missing + 1] = weight
    elseif table.concat(shape, ", ") ~= expected then
      shapes[#shapes + 1] = ("tensor %s is (%s); the configuration makes it (%s)"):format(
        weight.theirs, table.concat(shape, ", "), expected)
    elseif not readable[dtype] then
      dtypes[#dtypes + 1] = ("tensor %s is %s; F32, BF16 and F16 are available"):format(
        weight.theirs, dtype)
    else
      bytes = bytes + weight.shape[1] * (weight.shape[2] or 1) * element_bytes[dtype]
    end
  end
  for name in pairs(tensors) do
    if not wanted[name] and not needless(name, facts) then
      extra[#extra + 1] = name
    end
  end
  table.sort(extra)
  report_missing(missing, extra, tensors, #list, folder, report)
  for i, name in ipairs(extra) do
    extra[i] = ("tensor %s belongs to no weight of this configuration"):format(name)
  end
  for _, faults in ipairs { shapes, dtypes, extra } do report_list(faults, report) end
  return #missing + #shapes + #dtypes + #extra == 0 and bytes or nil
end

return files
