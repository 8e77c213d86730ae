--- Run folders: what a run leaves behind, and the comparison with the run that had its key.
--
--   runs/quickstart-eaf6/          <name>-<first four digits of the key>
--     recipe.lua                   the recipe as it was, and the overrides in the summary
--     resolved.txt                 every field as it was understood (explain --stage check)
--     origin.json                  recipe, data, versions: what repeats the run (origin.lua)
--     log.jsonl                    a record a step, the summary last
--     summary.json                 written last: a folder without it is not a finished run
--     weights.safetensors          the weights after the last step
--     checkpoints/                 where the recipe has train.save (checkpoint.lua)
--
-- The key is a hash of everything that can change bits, so two runs with one key must agree. The
-- first finished run of a key is the reference. A later one, in whatever layout, writes into a
-- folder with a number (quickstart-eaf6-2) while it runs, which it locks: of two runs at a time
-- each has its own. At its end it
--
--   agrees, not longer       the numbered folder goes away; its checkpoints join the reference's
--   agrees, more steps       its files take the place of the reference's
--   agrees, but its checkpoints cannot be moved: the numbered folder stays, and that is said
--   differs in a bit         the numbered folder stays, for a comparison; the run fails
--
-- Folders of other keys that happen to share name and four digits are passed over; what a run that
-- was killed left behind is written over.

local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local log = require "tidelock.run.log"
local saved = require "tidelock.run.saved"
local screen = require "tidelock.text.screen"

local runs = {}

local files = { "recipe.lua", "resolved.txt", "origin.json", "log.jsonl", "weights.safetensors",
  "summary.json" }

local function join(folder, name) return folder .. "/" .. name end

--- The summary of a finished run, or nil: also where it is damaged.
function runs.summary(folder)
  local text = core.files.exists(join(folder, "summary.json"))
    and core.files.read_all(join(folder, "summary.json"))
  local good, summary = pcall(core.json.decode, text or "")
  local whole = good and type(summary) == "table" and type(summary.key) == "string"
    and math.type(summary.steps) == "integer" and type(summary.weights_hash) == "string"
  return whole and summary or nil
end

--- The folder of a run's checkpoints, where it has one.
local function checkpoints_of(folder)
  local dir = join(folder, "checkpoints")
  return core.files.is_directory(dir) and dir or nil
end

--- Remove a folder of checkpoints with all that is in it.
local function remove_checkpoints(dir)
  for _, name in ipairs(core.files.list(dir) or {}) do checkpoint.remove(join(dir, name)) end
  os.remove(dir)
end

--- Whether a run wrote the file `name`: one of the list, or its text before it was renamed.
local function is_ours(name)
  for _, known in ipairs(files) do
    if name == known or name:sub(1, #known + 5) == known .. ".tmp-" then return true end
  end
  return false
end

--- Remove the files of a run, then the folder, as far as nothing else lies in it.
local function remove(folder)
  local dir = checkpoints_of(folder)
  if dir then remove_checkpoints(dir) end
  for _, name in ipairs(core.files.list(folder) or {}) do
    if is_ours(name) then os.remove(join(folder, name)) end
  end
  os.remove(folder)
end

--- Calls a function of the C half that writes; what it raises says what, not where in this file.
function runs.write(fn, ...)
  local good, message = pcall(fn, ...)
  if not good then error((message:gsub("^[^\n]-%.lua:%d+: ", "")), 0) end
end

--- A hash of names and shapes, which no hash of a tensor's bytes covers.
---@param list { name: string, shape: integer[] }[]
---@return string
function runs.shapes_hash(list)
  local lines = {}
  for i, one in ipairs(list) do lines[i] = one.name .. " " .. table.concat(one.shape, " ") end
  table.sort(lines)
  return core.hash(table.concat(lines, "\n"))
end

--- Writes the weights after the last step, and what they are checked with when they are read.
---@param path string
---@param tensors { name: string, tensor: tidelock.Tensor }[]
---@param summary table # key, steps and weights_hash of the run
function runs.write_weights(path, tensors, summary)
  local shapes = {}
  for i, one in ipairs(tensors) do shapes[i] = { name = one.name, shape = one.tensor:shape() } end
  runs.write(core.weights.write, path, tensors, {
    key = summary.key, step = tostring(summary.steps), weights_hash = summary.weights_hash,
    shapes_hash = runs.shapes_hash(shapes),
  })
end

--- Makes the folder, locks it and empties it of what a killed run left, checkpoints aside. Nil when
--- it cannot be had; then also whether another run has it. What else lies in a folder is not
--- touched.
local function claim(folder)
  for _, name in ipairs(core.files.list(folder) or {}) do
    if not is_ours(name) and name ~= "checkpoints" then return nil, false end
  end
  runs.write(core.files.mkdirs, folder)
  local lock = core.files.lock(folder)
  if not lock then return nil, true end
  if runs.summary(folder) then return nil, false end -- it was finished since we looked
  for _, name in ipairs(core.files.list(folder)) do os.remove(join(folder, name)) end
  return lock
end

--- The records of steps, by step.
local function steps_of(records)
  local by_step = {}
  for _, record in ipairs(records or {}) do
    if record.step and record.loss_bits and record.grad_norm_bits then
      by_step[record.step] = record
    end
  end
  return by_step
end

local Run = {}
Run.__index = Run

---@class tidelock.RunFolder
---@field folder string # where this run writes
---@field lock userdata # on the folder
---@field reference string? # the finished run with the same key
---@field in_use string? # the folder that this run would have had: another run is writing there
---@field first_difference string? # what differs, in words

--- Choose and make the folder of a run.
---@param root string # "runs" unless --runs says otherwise
---@param name string # of the recipe, without folder and ending
---@param key string # sixteen hexadecimal digits
function runs.open(root, name, key)
  local self = setmetatable({ compared = 0, inherited = 0 }, Run)
  local base, n = join(root, ("%s-%s"):format(name, key:sub(1, 4))), 0
  repeat
    n = n + 1
    local folder = n == 1 and base or base .. "-" .. n
    local known, summary = core.files.exists(folder), runs.summary(folder)
    if summary and summary.key == key and not self.reference then
      self.reference, self.reference_summary = folder, summary
      self.reference_steps = steps_of(log.read(join(folder, "log.jsonl")))
    elseif not summary and not self.folder then
      local lock, in_use = claim(folder)
      if lock then self.folder, self.lock = folder, lock end
      if in_use then self.in_use = self.in_use or folder end
    end
  until self.folder and not known
  return self
end

--- Path of one of the run's files.
function Run:path(name) return join(self.folder, name) end

--- Keep the recipe (its own file first, then those that it loaded) and what it was understood as.
---@param loaded { path: string, text: string }[]
---@param resolved string
---@param origin_text string
function Run:describe(loaded, resolved, origin_text)
  local texts = { loaded[1].text }
  for i = 2, #loaded do
    texts[#texts + 1] = ("\n--[==[ %s, loaded by this recipe:\n%s]==]\n"):format(loaded[i].path,
      loaded[i].text)
  end
  runs.write(core.files.write_atomic, self:path "recipe.lua", table.unpack(texts))
  runs.write(core.files.write_atomic, self:path "resolved.txt", resolved)
  runs.write(core.files.write_atomic, self:path "origin.json", origin_text)
end

local function show(value, bits, places)
  return ("%s (%s)"):format(places(value or 0 / 0), screen.bits(bits))
end

--- Compare a step with the reference's. Remembers the first difference; returns it when it is new.
function Run:compare(record)
  local known = self.reference and self.reference_steps[record.step]
  if not known or self.first_difference then return nil end
  for _, field in ipairs { "loss", "grad_norm" } do
    local ours, theirs = screen.bits(record[field .. "_bits"]), screen.bits(known[field .. "_bits"])
    if ours ~= theirs then
      self.first_difference = ("step %d: %s %s | %s"):format(record.step,
        field == "loss" and "loss" or "gradient norm", show(known[field], theirs, screen.loss),
        show(record[field], ours, screen.loss))
      return self.first_difference
    end
  end
  self.compared = self.compared + 1
end

--- A step that was logged in folder `from` before the checkpoint that this run goes on from. Where
--- `from` is the reference, both are one record, and comparing them would prove nothing.
function Run:inherit(record, from)
  if self.reference and core.files.realpath(self.reference) == core.files.realpath(from) then
    self.inherited = self.inherited + 1
  else
    self:compare(record)
  end
end

--- What both runs kept on the way. Checkpoints in one folder were compared when they were written.
local function compare_saved(self, summary)
  local other = self.reference_summary
  local result, message = saved.compare(
    { folder = self.reference, key = other.key, last = other.steps, weights = other.weights_hash },
    { folder = self.folder, key = other.key, last = summary.steps, weights = summary.weights_hash })
  if not result then return { equal = {}, damaged = message } end
  return result.shared and { equal = {} } or result
end

--- What was compared of the weights where one run is longer, in words that go on behind those of
--- the losses. What was not has a line of its own.
local function weights_text(other, kept)
  if #kept.equal > 0 then return ", weights " .. saved.equal_text(kept) end
  return "\n" .. screen.summary_line("", ("(weights not compared: %s)"):format(kept.damaged
    or "it has " .. screen.plural(other.steps, "step")))
end

--- What was compared, in words.
local function agreement(self, summary, same_length, kept)
  local other = self.reference_summary
  local both = math.min(summary.steps, other.steps)
  local lacks = both - self.compared - self.inherited
  if self.compared == 0 and self.inherited > 0 and not same_length then
    return ("nothing to compare: %s has %s, and this run went on behind them"):format(
      self.reference, screen.plural(other.steps, "step"))
  end
  local text = ("equal to %s: %s, %s%s"):format(self.reference,
    screen.plural(self.compared, "loss"), screen.plural(self.compared, "gradient norm"),
    same_length and ", weights " .. summary.weights_hash or weights_text(other, kept))
  if self.inherited > 0 then
    text = text .. "\n" .. screen.summary_line("", ("(its own before the checkpoint: %s)"):format(
      screen.plural(self.inherited, "step")))
  end
  if lacks > 0 then
    text = text .. "\n" .. screen.summary_line("", ("(its log.jsonl lacks %s)"):format(
      screen.plural(lacks, "step")))
  end
  return text
end

--- Checkpoints go to the reference's: it has the same key, and the bits agree. One that is there
--- already is dropped, unless what is there is no whole one. Returns why one could not be moved:
--- then it lies where it was written, and nothing of this folder may go.
---@return string?
local function move_checkpoints(self)
  local from = checkpoints_of(self.folder)
  if not from then return nil end
  local to, problem = join(self.reference, "checkpoints"), nil
  local good, message = pcall(runs.write, core.files.mkdirs, to)
  if not good then return message end
  for _, name in ipairs(core.files.list(from) or {}) do
    local place = join(to, name)
    if name:find "^step%-%d+$" and not checkpoint.read(place) then
      if core.files.is_directory(place) then checkpoint.remove(place) end
      local moved, why = os.rename(join(from, name), place)
      if not moved then problem = problem or why end
    end
  end
  if not problem then remove_checkpoints(from) end
  return problem
end

--- Take the place of a shorter reference.
local function replace_reference(self)
  os.remove(join(self.reference, "summary.json")) -- unfinished until the last rename
  for _, name in ipairs(files) do
    os.remove(join(self.reference, name))
    os.rename(self:path(name), join(self.reference, name))
  end
  os.remove(self.folder)
  self.folder = self.reference
end

--- Close the run: write the summary, compare the weights, keep or remove the folder.
---@param summary table # key, steps, weights_hash, ...
---@return table verdict # { saved = folder?, equal = bool?, text = what to print after "bits" }
function Run:finish(summary)
  runs.write(core.files.write_atomic, self:path "summary.json", core.json.encode(summary), "\n")
  self:release()
  if not self.reference then return { saved = self.folder } end
  local other, same_length = self.reference_summary, self.reference_summary.steps == summary.steps
  if not self.first_difference and same_length and other.weights_hash ~= summary.weights_hash then
    self.first_difference = ("the weights after step %d: %s | %s"):format(summary.steps,
      other.weights_hash, summary.weights_hash)
  end
  local kept = not same_length and compare_saved(self, summary) or nil
  if kept and kept.differs and not self.first_difference then
    self.first_difference = ("step %d: %s"):format(kept.differs, kept.text)
  end
  if self.first_difference then
    return {
      saved = self.folder, equal = false,
      text = ("differ from %s at %s"):format(self.reference, self.first_difference),
    }
  end
  local text = agreement(self, summary, same_length, kept)
  local problem = move_checkpoints(self)
  if problem then
    text = ("%s; its checkpoints stay in its own folder: %s"):format(text, problem)
    return { saved = self.folder, equal = true, text = text }
  end
  if summary.steps > other.steps then
    replace_reference(self)
    return { saved = self.folder, equal = true, text = text }
  end
  remove(self.folder)
  return { equal = true, text = text }
end

--- Others may have the folder.
function Run:release()
  if self.lock then self.lock:close() end
  self.lock = nil
end

--- End without a result (the run failed): what was written stays if there is no reference, or if
--- somebody may go on from it: its `newest` checkpoint is of a step that the reference has not, or
--- a rank was `lost`. Returns whether it stays.
---@param newest? { step: integer }
---@param lost? boolean
---@return boolean
function Run:abandon(newest, lost)
  local known = self.reference_summary
  local stays = not known or newest ~= nil and (lost or newest.step > known.steps)
  if not stays then remove(self.folder) end
  self:release()
  return stays
end

--- End before the first step: nothing stays.
function Run:discard()
  remove(self.folder)
  self:release()
end

return runs
