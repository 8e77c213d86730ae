--- disk.lua - whether checkpoints have room on their disk: told before the first step, and when one
--- was not written.
---
---     step-00000100   the newest, whole          stays until
---     step-00000200.tmp   being written          this one is: so the disk holds one more than
---                                                train.save.keep for a while
---
--- What is told has what is needed, what is free, and what would work; nothing is deleted for it.
local core = require "tidelock.core"
local screen = require "tidelock.text.screen"

local disk = {}

--- How many checkpoints a run writes in the steps `first` to `last`: the last step has one.
---@param first integer
---@param last integer
---@param every integer? # of train.save
---@return integer
function disk.planned(first, last, every)
  if last < first then return 0 end
  return 1 + (every and (last - 1) // every - (first - 1) // every or 0)
end

--- How many checkpoints have to find room beside those that are there.
---@param existing integer # checkpoints that are there
---@param planned integer # that this run writes
---@param keep integer? # of train.save
---@return integer
function disk.wanted(existing, planned, keep)
  if planned == 0 then return 0 end
  if not keep then return planned end
  return math.max(1, math.min(existing + planned, keep + 1) - existing)
end

--- What is wrong before the first step, or nil. `bytes`: of a checkpoint.
---@param facts { dir: string, bytes: integer, free: integer, existing: integer, planned: integer,
---  keep: integer? }
---@return string?
function disk.shortage(facts)
  local wanted = disk.wanted(facts.existing, facts.planned, facts.keep)
  if wanted * facts.bytes <= facts.free then return nil end
  local enough = disk.wanted(facts.existing, facts.planned, 1) * facts.bytes
  local ways = { "make room" }
  if facts.keep ~= 1 and enough <= facts.free then ways[2] = "train.save.keep=1" end
  ways[#ways + 1] = "another disk by train.save.dir"
  return ("train.save: %s of %s MiB %s room%s, and %s has %s MiB free: what does not fit is not "
    .. "saved%s; %s"):format(screen.plural(wanted, "checkpoint"), screen.mib(facts.bytes),
    wanted == 1 and "needs" or "need",
    facts.existing > 0 and " beside " .. screen.plural(facts.existing, "older one") or "",
    facts.dir, screen.mib(facts.free), facts.keep
    and ", since an old one stays until the new one is whole" or "", table.concat(ways, ", or "))
end

--- What is wrong before the first step with the disk that every run leaves its weights on, or nil.
---@param folder string
---@param bytes integer # of the weights
---@param free integer
---@return string?
function disk.ending(folder, bytes, free)
  if bytes <= free then return nil end
  return ("%s has %s MiB free, and the weights that this run ends with take %s; make room before "
    .. "its end, or --runs DIR keeps them elsewhere"):format(folder, screen.mib(free),
    screen.mib(bytes))
end

--- What a checkpoint that was not written lacked, as the end of a sentence; "" if it was not room.
---@param dir string
---@param bytes integer # of the checkpoint
---@param newest integer? # step of the newest that is there
---@param message string # why it was not written
---@return string
function disk.lack(dir, bytes, newest, message)
  local free = core.files.free(dir)
  if not free or free >= bytes and not message:find "No space left" then return "" end
  return ("; it takes %s MiB, and %s are free%s; make room for it before the next one is due, or "
    .. "write to another disk by train.save.dir"):format(screen.mib(bytes), screen.mib(free),
    newest and (" beside step %d, which stays until a newer one is whole"):format(newest) or "")
end

return disk
