--- recorder.lua - writes what a run did into a folder: `./tl run R --trace DIR`.
---
---     trace.json       the run: key, recipe, layout; ranks; programs with their instructions and
---                      what each output is in the whole run (logical.lua)
---     steps.jsonl      a line a step: its number, loss, scalars of the step
---     rank-0003.bin    a block a step (step 0: the initial values): times and messages of its
---                      instructions, 64 bytes each (runtime/bind/bind_trace.c), then all hashes
---     values-17-0003.bin   with --values: the operands of step 17 on rank 3, see captures.lua
---
--- trace.json and the lines of steps.jsonl end with the hash of what stands before (seal.lua); a
--- line also has the hash of each rank's block, and of every 16 MiB of its values.
---
--- Nothing is allocated within a step; the folder is written between steps.
local arena_view = require "tidelock.forecast.arena_view"
local captures = require "tidelock.run.captures"
local core = require "tidelock.core"
local experts = require "tidelock.plan.experts"
local logical = require "tidelock.plan.logical"
local seal = require "tidelock.run.seal"

local recorder = {}

local Recorder = {}
Recorder.__index = Recorder

recorder.version = 2
recorder.chunk_bytes = 16 << 20

---@class tidelock.RecorderOptions
---@field dir string
---@field first? integer # steps to record; 0 is the initial values. All unless set
---@field last? integer
---@field full? boolean # every element is hashed, not one run of 64 in 4,096
---@field values? boolean # operands are kept too
---@field select? fun(program: integer, instruction: integer): boolean # whose values; all unless
---  set
---@field recipe? string # the file, and what was set on the command line
---@field overrides? string[]
---@field point? integer

---@param options tidelock.RecorderOptions
function recorder.new(options)
  local self = setmetatable({ files = {} }, Recorder)
  for key, value in pairs(options) do self[key] = value end
  self.first, self.last = options.first or 0, options.last or math.maxinteger
  return self
end

--- "3:5", "3" or "3:" as first and last step.
---@return integer? first
---@return integer? last
function recorder.window(text)
  local first, last = text:match "^(%d+):(%d*)$"
  if not first then first, last = text:match "^(%d+)$", text end
  first, last = math.tointeger(tonumber(first)), math.tointeger(tonumber(last)) or math.maxinteger
  if not first or last < first then return nil end
  return first, last
end

local function writer(path, append)
  local file, message = io.open(path, append and "ab" or "wb")
  if not file then
    error({ status = 2, message = "tidelock: --trace: cannot write " .. message }, 0)
  end
  return file
end

local function put(file, path, text)
  local good, message = file:write(text)
  if not good then error(("tidelock: --trace: cannot write %s: %s"):format(path, message), 0) end
end

--- Rows of numbers for ranks:trace, and what trace.json says of them.
local function plan_program(self, plan, shared, index, at)
  local place = experts.plan_index(plan.spec.layout, at)
  local rank = plan.ranks[place]
  local outputs = logical.outputs(plan, shared, rank, at.tp)
  local rows = {}
  for i, o in ipairs(outputs) do rows[i] = logical.row(o, not self.full) end
  local kept
  if self.values then
    local select = self.select and function(i) return self.select(index, i) end
    kept = captures.plan(rank, select)
  end
  return {
    rank = rank, bytes = plan.places[place].bytes, outputs = outputs, kept = kept,
    program = plan.programs[index],
    options = {
      outputs = rows, captures = kept and kept.rows or {}, capture_bytes = kept and kept.bytes or 0,
    },
  }
end

--- The arena of a rank, for `./tl trace --memory`.
local function memory_of(rank, bytes)
  local buffers, begin, finish = arena_view.buffers(rank)
  local rows = {}
  for k, b in ipairs(buffers) do
    rows[k] = { b.name, b.bytes, b.offset, b.first, b.last, b.kind, b.site }
  end
  return { buffers = rows, begin = begin, finish = finish, bytes = bytes }
end

--- What a program is, as trace.json has it.
local function program_text(planned)
  local program, rank = planned.program, planned.rank
  local in_order = logical.instructions(rank)
  local instructions, tensors, outputs = {}, {}, {}
  for i, made in ipairs(program.instructions) do
    local path = in_order[i].path
    instructions[i] = {
      op = made.op, site = program.sites[made.site], path = path ~= "" and path or nil,
      phase = made.phase, micro = made.micro, lane = made.lane, attrs = made.attrs,
      ins = core.json.array(made.inputs), outs = core.json.array(made.outputs),
    }
  end
  for i, tensor in ipairs(program.tensors) do
    tensors[i] = { tensor.dtype, tensor.shape, program.name_of[i] }
  end
  for i, o in ipairs(planned.outputs) do
    outputs[i] = {
      o.instruction, o.position, o.key, o.own, o.phase, o.order, o.micro, o.rows, o.cols, o.pitch,
      o.row_first, o.piece_rows, o.piece_stride, o.col_first, o.cols_full, o.rows_per_sample,
      o.rows_full,
    }
  end
  local kept = planned.kept
  return {
    instructions = instructions, tensors = tensors, outputs = outputs,
    sections = program.sections, groups = program.groups,
    memory = memory_of(rank, planned.bytes),
    captures = kept and { bytes = kept.bytes, of = kept.text } or nil,
  }
end

--- The names of output fields, in the order of the rows of trace.json.
recorder.output_fields = {
  "instruction", "position", "key", "own", "phase", "order", "micro", "rows", "cols", "pitch",
  "row_first", "piece_rows", "piece_stride", "col_first", "cols_full", "rows_per_sample",
  "rows_full",
}

local function describe(self, run)
  local plan, ranks, programs = run.plan, {}, {}
  for i, entry in ipairs(run.table) do
    ranks[i] = {
      program = entry.program, coordinates = entry.coordinates, sample_base = entry.sample_base,
      groups = entry.groups,
    }
  end
  local layout = plan.spec.layout
  for i, planned in ipairs(self.programs) do
    programs[i] = program_text(planned)
  end
  return {
    version = recorder.version, key = plan.key, recipe_hash = plan.recipe_hash,
    parts = plan.key_parts, fields = plan.fields_text,
    name = plan.spec.name, recipe = self.recipe, overrides = self.overrides and
      core.json.array(self.overrides), point = self.point,
    layout = { tp = layout.tp, dp = layout.dp, pp = layout.pp, ep = layout.ep },
    device = plan.spec.device or "host",
    dtype = plan.spec.dtype, seed = plan.spec.policy.seed, length = plan.spec.batch.length,
    samples = plan.spec.batch.samples, micro = plan.spec.batch.micro, full = self.full or false,
    values = self.values or false, ranks = ranks, programs = programs, build = core.build(),
    planned_bytes = plan.summary.planned_bytes,
  }
end

--- The trace's folder; a path that cannot be one is a mistake of the one who typed it.
local function make_folder(dir)
  local good, message = pcall(core.files.mkdirs, dir)
  if good then return end
  error({ status = 2, message = ("tidelock: no trace in %s: %s; --trace DIR names a folder, new or "
    .. "of an earlier trace"):format(dir, (message:gsub("^[^\n]-%.lua:%d+: ", ""))) }, 0)
end

--- Plans the recording of a run whose ranks are open and have not run; writes trace.json.
function Recorder:attach(run)
  local plan = run.plan
  local shared = logical.names(plan)
  make_folder(self.dir)
  for _, name in ipairs(core.files.list(self.dir) or {}) do -- of an earlier trace in this folder
    if name:find "^rank%-%d+%.bin$" or name:find "^values%-%d+%-%d+%.bin$"
      or name == "steps.jsonl" or name == "trace.json" then os.remove(self.dir .. "/" .. name) end
  end
  self.programs, self.list = {}, {}
  for _, entry in ipairs(run.table) do
    local index = entry.program
    self.programs[index] = self.programs[index]
      or plan_program(self, plan, shared, index, entry.coordinates)
  end
  for i, entry in ipairs(run.table) do
    self.list[i] = self.programs[entry.program].options
    local path = ("%s/rank-%04d.bin"):format(self.dir, i - 1)
    self.files[i] = { path = path, file = writer(path) }
  end
  self.steps = { path = self.dir .. "/steps.jsonl" }
  self.steps.file = writer(self.steps.path)
  local path = self.dir .. "/trace.json"
  local file <close> = writer(path)
  put(file, path, seal.encode(describe(self, run)) .. "\n")
end

--- Turns recording on or off before a step; 0 is the section init.
function Recorder:before(run, step)
  local wanted = step >= self.first and step <= self.last
  if wanted == (self.on or false) then return end
  run.ranks:trace(wanted and self.list or false)
  self.on = wanted
end

--- Writes a rank's operands; returns the hash of each chunk.
local function write_values(self, run, step, rank, bytes)
  local path = ("%s/values-%d-%04d.bin"):format(self.dir, step, rank)
  local file <close>, hashes = writer(path), core.json.array {}
  for first = 0, bytes - 1, recorder.chunk_bytes do
    local chunk = run.ranks:captured(rank, first, math.min(recorder.chunk_bytes, bytes - first))
    hashes[#hashes + 1] = core.hash(chunk)
    put(file, path, chunk)
  end
  return hashes
end

--- Writes what a step left behind.
---@param result table # of ranks:run
---@param scalars number[]
function Recorder:after(run, step, result, scalars)
  if not self.on then return end
  local blocks, values = {}, self.values and {} or nil
  for i, entry in ipairs(run.table) do
    local planned = self.programs[entry.program]
    local range = planned.program.sections[step == 0 and "init" or "step"]
    local block = run.ranks:record(i - 1, range[1], range[2])
    blocks[i] = core.hash(block)
    put(self.files[i].file, self.files[i].path, block)
    self.files[i].file:flush()
    if values then
      values[i] = write_values(self, run, step, i - 1, planned.options.capture_bytes)
    end
  end
  put(self.steps.file, self.steps.path, seal.encode {
    step = step, loss_bits = result.loss_bits, grad_norm_bits = result.grad_norm_bits,
    scalars = core.json.array(scalars), ms = result.ms,
    arena_peak = run.ranks:memory().peak.arena, blocks = blocks, values = values,
  } .. "\n")
  self.steps.file:flush()
end

function Recorder:close()
  for _, entry in ipairs(self.files) do entry.file:close() end
  if self.steps then self.steps.file:close() end
  self.files, self.steps = {}, nil
end

return recorder
