--- saves.lua - the checkpoints of a run while it trains: when, where, how many are kept.
--
--     step  99  100 ---- copy ----> 101  102  103
--                          \--- files are written in the background ---/  then old ones go
--
-- A save that fails (a full disk) does not end the run: it is told at once, the next one tries
-- again, and a run whose last save failed ends with status 1.

local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local disk = require "tidelock.run.disk"

local Saves = {}
Saves.__index = Saves

local saves = {}

local function usage(format, ...) error({ status = 2, message = format:format(...) }, 0) end

--- Where checkpoints of another key lie, nothing is mixed in.
local function check_keys(dir, key, site)
  local steps = checkpoint.list(dir)
  local newest = steps[#steps]
  local state = newest and checkpoint.read(("%s/step-%08d"):format(dir, newest))
  if state and state.key ~= key then
    usage("%s: train.save.dir: %s holds checkpoints of key %s, this run has %s; give another "
      .. "folder", site, dir, state.key, key)
  end
end

---@class tidelock.Saves
---@field dir string
---@field failed? string # why the last save failed

--- Opens the folder of a run's checkpoints; nil when the recipe saves none.
---@param spec table
---@param folder string # of the run
---@param key string
---@param show table # the screen
---@return tidelock.Saves?
function saves.open(spec, folder, key, show)
  local wanted = spec.train.save
  if not wanted then return nil end
  local dir = wanted.dir or folder .. "/checkpoints"
  local good, message = pcall(core.files.mkdirs, dir)
  if not good then
    usage("%s: train.save.dir: %s", spec.site "train.save.dir" or spec.file,
      (message:gsub("^[^\n]-%.lua:%d+: ", "")))
  end
  local lock = core.files.lock(dir)
  if not lock then
    usage("%s: another run writes its checkpoints there; wait for its end, or give another "
      .. "train.save.dir", dir)
  end
  local self = setmetatable({
    dir = dir, lock = lock, every = wanted.every, keep = wanted.keep, show = show,
  }, Saves)
  check_keys(dir, key, spec.site "train.save.dir" or spec.file)
  local _, unfinished = checkpoint.list(dir)
  for _, name in ipairs(unfinished) do checkpoint.remove(dir .. "/" .. name) end -- of killed runs
  return self
end

--- Is a checkpoint due after this step? `last`: the run ends with it.
function Saves:due(step, last) return last or (self.every and step % self.every == 0) or false end

--- Removes the oldest beyond `keep`.
local function prune(self)
  if not self.keep then return end
  local steps = checkpoint.list(self.dir)
  for i = 1, #steps - self.keep do
    checkpoint.remove(("%s/step-%08d"):format(self.dir, steps[i]))
  end
end

--- Takes note of a save that has ended; waits for it when `wait` is set.
function Saves:settle(wait)
  local current = self.current
  if not current or (current.saver:busy() and not wait) then return end
  self.current = nil
  local good, message = pcall(current.saver.wait, current.saver)
  current.saver:close()
  if good then
    self.failed, self.newest = nil, current
    prune(self)
    return
  end
  self.failed = tostring(message):gsub("^[^\n]-%.lua:%d+: ", "")
  local steps = checkpoint.list(self.dir)
  self.show:note(("step %d was not saved: %s%s"):format(current.step, self.failed,
    disk.lack(self.dir, current.bytes, steps[#steps], self.failed)))
end

--- Whether those that are to come have room, before the first step: a list of notes.
---@param plan table
---@param first integer # step of this run
---@param last integer
---@return string[]
function Saves:doubts(plan, first, last)
  local text = disk.shortage { dir = self.dir, bytes = checkpoint.bytes(plan),
    planned = disk.planned(first, last, self.every),
    free = core.files.free(self.dir) or math.maxinteger, existing = #checkpoint.list(self.dir),
    keep = self.keep }
  return { text and ("%s: %s"):format(plan.spec.site "train.save" or plan.spec.file, text) }
end

--- Notes on the disks of a run, before its first step; `self` is nil where it saves no checkpoints.
---@param self tidelock.Saves?
---@param plan table
---@param first integer # step of this run
---@param last integer
---@param folder string # of the run
---@return string[]
function saves.notes(self, plan, first, last, folder)
  local list = self and self:doubts(plan, first, last) or {}
  list[#list + 1] = disk.ending(folder, checkpoint.bytes(plan, true),
    core.files.free(folder) or math.maxinteger)
  return list
end

--- A checkpoint of this step that an earlier run with this key left: the same bits, or a fault.
local function known(self, run)
  local folder = ("%s/step-%08d"):format(self.dir, run.done)
  if not core.files.exists(folder .. "/state.json") then return false end
  local state, message = checkpoint.read(folder)
  if not state then error(message, 0) end
  local ours = run:weights_hash()
  if state.weights_hash ~= ours or state.optimizer_hash ~= run:optimizer_hash() then
    error(("%s holds other bits: weights %s there, %s here"):format(folder, state.weights_hash,
      ours), 0)
  end
  self.newest = { folder = folder, step = run.done }
  return true
end

--- Starts a checkpoint of the state after the last step.
---@param parent? table # { key, step } of a fork
function Saves:save(run, parent)
  self:settle(true)
  if known(self, run) then return end
  local clock = core.files.seconds()
  local good, current = pcall(checkpoint.start, run, self.dir, { parent = parent })
  if not good then
    self.failed = tostring(current)
    self.show:note(("step %d was not saved: %s"):format(run.done, self.failed))
    return
  end
  self.current = current
  self.copy_ms = (core.files.seconds() - clock) * 1000
end

--- Waits for the last save. Returns whether the newest state is on disk.
function Saves:close()
  self:settle(true)
  self.lock:close()
  return not self.failed
end

return saves
