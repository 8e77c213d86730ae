--- traces.lua - reads the folder that recorder.lua writes.
---
---     local a = traces.open "trace-a"
---     a:hash(rank, 3, 17)                 -- output 17 of its program, in step 3
---     a:after(rank, 3, 17)                -- the tensor itself, where --values kept it
---
--- Ranks and steps count as everywhere (ranks from 0, step 0 is the initial values), instructions
--- and outputs from 1. Blocks of one size follow each other, so that one is read without the
--- others. Every file that is read is held against its checksums (recorder.lua): a trace that says
--- nothing true is refused by the name of the file.
local core = require "tidelock.core"
local recorder = require "tidelock.run.recorder"
local seal = require "tidelock.run.seal"
local waits = require "tidelock.trace.waits"

local traces = {}

local Trace = {}
Trace.__index = Trace

local record_bytes, hash_bytes = 64, 8

local function usage(format, ...) error({ status = 2, message = format:format(...) }, 0) end

--- Whether a folder holds a trace.
function traces.is(dir) return core.files.exists(dir .. "/trace.json") end

--- What an output says of itself, by name.
local function output_of(row)
  local o = {}
  for i, name in ipairs(recorder.output_fields) do o[name] = row[i] end
  return o
end

--- Holds bytes of a file against the checksum that was written of them.
local function check(path, what, bytes, written)
  local own = core.hash(bytes)
  if own ~= written then
    usage("tidelock: %s is damaged: its bytes of %s have the checksum %s, and %s was written", path,
      what, own, written)
  end
end

local function read_steps(self)
  local text = core.files.read_all(self.dir .. "/steps.jsonl") or ""
  local count = 0
  for line, ended in text:gmatch "([^\n]+)(\n?)" do
    count = count + 1
    local step, problem = seal.decode(line)
    if ended == "" and not step then break end -- the run was killed while it wrote this
    if not step then
      usage("tidelock: %s/steps.jsonl: line %d is damaged: %s", self.dir, count, problem)
    end
    self.steps[#self.steps + 1] = step
    self.by_step[step.step] = step
  end
end

--- Where each step's block begins in the file of a rank with program `p`.
local function block_offsets(self, p)
  local at, offsets = 0, {}
  for _, step in ipairs(self.steps) do
    local bytes = self:block_bytes(p, step.step)
    offsets[step.step] = at
    at = at + bytes
  end
  return offsets
end

---@param dir string
function traces.open(dir)
  dir = dir:match "^(.-)/*$"
  local text, message = core.files.read_all(dir .. "/trace.json")
  if not text then usage("tidelock: %s: it holds no trace: %s", dir, message) end
  local version = math.tointeger(tonumber(text:match '"version":(%d+)'))
  local meta, problem = seal.decode(text)
  if version and version ~= recorder.version and (meta or version < recorder.version) then
    usage("tidelock: %s: a trace of version %d; this program reads version %d", dir, version,
      recorder.version)
  end
  if not meta then usage("tidelock: %s/trace.json is damaged: %s", dir, problem) end
  local self = setmetatable({ dir = dir, meta = meta, steps = {}, by_step = {}, outputs = {},
    offsets = {}, files = {}, blocks = {}, checked = {} }, Trace)
  read_steps(self)
  for p, program in ipairs(meta.programs) do
    local list = {}
    for i, row in ipairs(program.outputs) do list[i] = output_of(row) end
    self.outputs[p] = list
    self.offsets[p] = block_offsets(self, p)
  end
  return self
end

function Trace:ranks() return #self.meta.ranks end

--- The number of a rank's program.
function Trace:program_of(rank) return self.meta.ranks[rank + 1].program end

function Trace:program(rank) return self.meta.programs[self:program_of(rank)] end

--- First and last instruction of the section that a step runs.
function Trace:section(rank, step)
  local range = self:program(rank).sections[step == 0 and "init" or "step"]
  return range[1], range[1] + range[2] - 1
end

function Trace:block_bytes(p, step)
  local program = self.meta.programs[p]
  local range = program.sections[step == 0 and "init" or "step"]
  return range[2] * record_bytes + #program.outputs * hash_bytes
end

--- All bytes of a rank's step.
function Trace:block(rank, step)
  if self.blocks[rank] and self.blocks[rank].step == step then return self.blocks[rank].bytes end
  local p = self:program_of(rank)
  local path = ("%s/rank-%04d.bin"):format(self.dir, rank)
  local file = self.files[rank]
  if not file then
    local opened, message = io.open(path, "rb")
    if not opened then usage("tidelock: %s", message) end
    file, self.files[rank] = opened, opened
  end
  file:seek("set", self.offsets[p][step])
  local want = self:block_bytes(p, step)
  local bytes = file:read(want) or ""
  if #bytes ~= want then usage("tidelock: %s: it ends before step %d does", path, step) end
  check(path, ("step %d"):format(step), bytes, self.by_step[step].blocks[rank + 1])
  self.blocks[rank] = { step = step, bytes = bytes }
  return bytes
end

--- The hashes of a rank's step, as bytes: equal layouts compare them at once.
function Trace:hash_text(rank, step)
  local first, last = self:section(rank, step)
  return self:block(rank, step):sub((last - first + 1) * record_bytes + 1)
end

---@return integer
function Trace:hash(rank, step, output)
  local first, last = self:section(rank, step)
  local at = (last - first + 1) * record_bytes + (output - 1) * hash_bytes + 1
  return (string.unpack("<i8", self:block(rank, step), at))
end

--- Whether an output belongs to the section that a step runs.
function Trace:ran(rank, step, o)
  local first, last = self:section(rank, step)
  return o.instruction >= first and o.instruction <= last
end

--- Ids of a rank's messages, in the order of its instructions (waits.lua).
function Trace:messages(rank)
  return waits.counter(rank, self:program(rank).groups, self.meta.ranks[rank + 1].groups)
end

--- What ranks on GPUs waited for each other in a step, by rank and place in the section; nil on the
--- host, whose records have it.
local function waits_of(self, step)
  if self.meta.device ~= "cuda" or self:ranks() == 1 then return nil end
  if self.waited and self.waited.step == step then return self.waited.list end
  local ranks = {}
  for rank = 0, self:ranks() - 1 do
    local first, last = self:section(rank, step)
    local block, list = self:block(rank, step), {}
    for i = first, last do
      local start, stop = string.unpack("<i8i8", block, (i - first) * record_bytes + 1)
      list[i - first + 1] = { made = self:program(rank).instructions[i], ns = stop - start }
    end
    ranks[rank + 1] = { counter = self:messages(rank), list = list }
  end
  self.waited = { step = step, list = waits.of(ranks) }
  return self.waited.list
end

--- Times of an instruction, in nanoseconds, and what it moved and launched.
function Trace:times(rank, step, instruction)
  local first, list = self:section(rank, step), waits_of(self, step)
  local at = (instruction - first) * record_bytes + 1
  local start, stop, wait, moved, launches, bx, by, bz, tx, ty, tz, shared =
    string.unpack("<i8i8i8i8I4I4I4I4I4I4I4I4", self:block(rank, step), at)
  if list then wait = list[rank + 1][instruction - first + 1] end
  return {
    start_ns = start, end_ns = stop, wait_ns = wait, moved = moved, launches = launches,
    blocks = { bx, by, bz }, threads = { tx, ty, tz }, shared = shared,
  }
end

--- Dtype, shape and name of a tensor of a rank's program; nil for 0.
function Trace:tensor_facts(rank, index)
  local row = self:program(rank).tensors[index]
  if row then return row[1], row[2], row[3] end
end

--- Bytes of a file of values, from chunks that are whole.
local function read_chunks(self, rank, step, offset, bytes)
  local path = ("%s/values-%d-%04d.bin"):format(self.dir, step, rank)
  local file <close>, message = io.open(path, "rb")
  if not file then usage("tidelock: %s", message) end
  local hashes, size = self.by_step[step].values[rank + 1], recorder.chunk_bytes
  for k = offset // size, (offset + bytes - 1) // size do
    local id = path .. " " .. k
    if not self.checked[id] then
      file:seek("set", k * size)
      check(path, ("MiB %d on"):format(16 * k), file:read(size) or "", hashes[k + 1])
      self.checked[id] = true
    end
  end
  file:seek("set", offset)
  return file:read(bytes) or ""
end

local function read_values(self, rank, step, offset, dtype, shape)
  local bytes = require("tidelock.forecast.work").bytes_of { dtype, shape }
  return core.trace_tensor(dtype, shape, read_chunks(self, rank, step, offset, bytes))
end

--- An operand of an instruction as it was kept; nil where it was not.
---@param which "before"|"into"|"after" # an input; an output before it was written; an output
---@param position integer
function Trace:operand(rank, step, instruction, which, position)
  local program = self:program(rank)
  local kept = program.captures and program.captures.of[instruction]
  local offset = kept and kept[which][position]
  if not offset or offset < 0 then return nil end
  local made = program.instructions[instruction]
  local index = (which == "before" and made.ins or made.outs)[position]
  local dtype, shape = self:tensor_facts(rank, index)
  return read_values(self, rank, step, offset, dtype, shape)
end

--- Whether the values of a step are there.
function Trace:has_values(step)
  return core.files.exists(("%s/values-%d-0000.bin"):format(self.dir, step))
end

--- "instruction 214 linear (recipes/x.lua:7)", counted from 0 as in messages of a run.
function Trace:describe(rank, instruction)
  local made = self:program(rank).instructions[instruction]
  local group = made.attrs.group and self:program(rank).groups[made.attrs.group + 1]
  return ("instruction %d %s%s (%s)"):format(instruction - 1, made.op,
    group and " over " .. group or "", made.site)
end

function Trace:close()
  for _, file in pairs(self.files) do file:close() end
  self.files = {}
end
Trace.__close = Trace.close

return traces
