--- hf/export.lua - what a checkpoint says of itself, so that transformers can load its weights.
--
--     run --note--> state.json: hf = { facts, scopes, folder, kept } --folder--> config.json, ..
--                            or hf = { reason }                                  and new names
--
-- Written when a checkpoint is, because only then the modules are known. `kept` are fields of the
-- config.json that the model came from; `folder` is where that stood: tokenizer files are copied
-- from there if it is still there.
local config = require "tidelock.hf.config"
local core = require "tidelock.core"
local modules = require "tidelock.hf.modules"
local names = require "tidelock.hf.names"

local export = {}

local copied = {
  "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
  "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json",
}
local dtypes = { F32 = "float32", BF16 = "bfloat16", F16 = "float16" }

--- Tables by layer as lists without holes, as JSON keeps them.
local function packed(facts)
  local other, windows, sparse = {}, {}, {}
  for key, value in pairs(facts) do other[key] = value end
  for i = 1, facts.layers do
    windows[i], sparse[i] = facts.windows[i] or 0, facts.sparse[i] or false
  end
  other.windows, other.sparse = windows, sparse
  return other
end

local function unpacked(facts)
  for i = 1, facts.layers do
    if facts.windows[i] == 0 then facts.windows[i] = nil end
  end
  local scaling = facts.rope.scaling
  if scaling then scaling[1] = scaling.name end
  return facts
end

--- What state.json holds of the model of a run.
---@param plan table
function export.note(plan)
  local described = modules.describe(plan.spec)
  if described.reason then return described end
  local facts, hf = packed(described.facts), plan.spec.model.hf
  local scaling = facts.rope.scaling
  if scaling then
    scaling.name, scaling[1] = scaling[1], nil
  end
  local scopes, norm = described.scopes, described.scopes.norm
  scopes.norm = nil
  return {
    facts = facts, scopes = core.json.array(scopes), norm = norm,
    folder = hf and hf.folder, kept = hf and config.kept(hf.config()),
  }
end

--- Our name -> theirs, and the texts of the folder beside the weights; or nil and the reason.
---@param note table? # state.hf
---@param dtype string # "F32"
---@return table<string, string>?, table[]|string, string[]? notes
function export.folder(note, dtype)
  if not note then return nil, "the checkpoint was written before models described themselves" end
  if note.reason then return nil, note.reason end
  local facts, scopes, map, notes = unpacked(note.facts), note.scopes, {}, {}
  scopes.norm = note.norm
  for _, weight in ipairs(names.of(facts, scopes)) do map[weight.ours] = weight.theirs end
  local own = config.write(facts, dtypes[dtype], note.kept)
  local texts = { { name = "config.json", text = core.json.encode(own) .. "\n" } }
  local generation = core.json.encode {
    _from_model_config = true, bos_token_id = own.bos_token_id, eos_token_id = own.eos_token_id,
    pad_token_id = own.pad_token_id,
  } .. "\n"
  for _, name in ipairs(note.folder and copied or {}) do
    local path = note.folder .. "/" .. name
    if core.files.exists(path) then
      local text = assert(core.files.read_all(path))
      texts[#texts + 1] = { name = name, text = text }
      if name == "generation_config.json" then generation = nil end
    end
  end
  if generation then
    texts[#texts + 1] = { name = "generation_config.json", text = generation }
  end
  if note.folder and not core.files.is_directory(note.folder) then
    notes[1] = ("%s is not there any more: no tokenizer was copied"):format(note.folder)
  end
  return map, texts, notes
end

return export
