--- emit.lua - the flat program of a rank: tensors by offset, instructions by number.
---
--- Ranks with the same pipeline and tensor-parallel coordinates run the same program; programs of
--- one pipeline rank differ only in the numbers that `by_tp` lists hold.
local experts = require "tidelock.plan.experts"
local ByTp = require("tidelock.plan.stages.shard").ByTp
local lanes = require "tidelock.plan.lanes"
local sorted_keys = require "tidelock.text.sorted_keys"

local emit = {}

--- The groups that programs name: the axes, then "kv2", "kv4", ..: ranks that share a KV head.
local function groups_of(ranks)
  local names, index, shared = { "tp", "dp", "pp" }, {}, {}
  for _, name in ipairs(names) do index[name] = true end
  for _, rank in ipairs(ranks) do
    for _, made in ipairs(rank.instructions) do
      local name = made.attrs.group
      if name and not index[name] then
        index[name] = true
        shared[#shared + 1] = name
      end
    end
  end
  table.sort(shared)
  table.move(shared, 1, #shared, #names + 1, names)
  for i, name in ipairs(names) do index[name] = i - 1 end
  return names, index
end

local Emit = {}
Emit.__index = Emit

--- The index of a view's tensor; equal views share one.
function Emit:tensor(v)
  if not v then return 0 end
  local offset = v.buffer.offset + (v.offset or 0)
  local key = offset .. " " .. v.dtype .. " " .. table.concat(v.shape, ",")
    .. (v.buffer.persistent and "p" or v.buffer.id)
  local index = self.index[key]
  if not index then
    index = #self.tensors + 1
    self.index[key] = index
    self.tensors[index] = { offset = offset, dtype = v.dtype, shape = v.shape }
    self.names[index] = v.buffer.name
  end
  return index
end

local function attributes(attrs, group_index)
  local flat, varies = {}, false
  for key, value in pairs(attrs) do
    if key == "group" then value = group_index[value] elseif key == "name" then value = nil end
    if type(value) == "boolean" then value = value and 1 or 0 end
    flat[key] = value
    if type(value) == "table" then
      varies = varies or getmetatable(value) == ByTp
      for _, item in ipairs(value) do varies = varies or getmetatable(item) == ByTp end
    end
  end
  return flat, varies
end

--- The program of tp rank 0 with `by_tp` lists still inside; `varying` lists where they are.
local function base_program(rank, bytes, group_names, group_index)
  local self = setmetatable({ index = {}, tensors = {}, names = {} }, Emit)
  local sites, site_index, instructions, varying = {}, {}, {}, {}
  for i, made in ipairs(rank.instructions) do
    local inputs, outputs = {}, {}
    for j = 1, #made.inputs do inputs[j] = self:tensor(made.inputs[j]) end
    for j = 1, #made.outputs do outputs[j] = self:tensor(made.outputs[j]) end
    local site = made.site or "?"
    if not site_index[site] then
      sites[#sites + 1] = site
      site_index[site] = #sites
    end
    local attrs, varies = attributes(made.attrs, group_index)
    if varies then varying[#varying + 1] = i end
    instructions[i] = {
      op = made.op, inputs = inputs, outputs = outputs, attrs = attrs, site = site_index[site],
      micro = made.micro,
      lane = 0, phase = made.phase, waits = {},
    }
  end
  local results = {}
  for _, name in ipairs { "loss", "grad_norm", "control", "count" } do
    local v = rank.persistent[(name:gsub("_", " "))]
    results[name] = v and self:tensor(v) or nil
  end
  local sections = {}
  for name, range in pairs(rank.sections) do
    if range[2] > 0 then sections[name] = range end
  end
  for _, facts in ipairs(rank.kept) do facts.tensor = self:tensor(facts.view) end
  for _, key in ipairs(sorted_keys(rank.persistent)) do -- tensors are numbered here
    local v = rank.persistent[key]
    v.tensor = self:tensor(v)
  end
  return {
    arena_bytes = bytes, groups = group_names, tensors = self.tensors, sites = sites,
    sections = sections, instructions = instructions, results = results, name_of = self.names,
  }, varying
end

local function resolve(value, tp)
  if type(value) ~= "table" then return value end
  if getmetatable(value) == ByTp then return value[tp + 1] end
  local list = {}
  for i, item in ipairs(value) do list[i] = resolve(item, tp) end
  return list
end
emit.resolve = resolve

--- The program of (pp, tp): the base program with the varying attributes set.
local function program_of(base, varying, tp)
  local program, instructions = {}, {}
  for key, value in pairs(base) do program[key] = value end
  for i, made in ipairs(base.instructions) do instructions[i] = made end
  for _, i in ipairs(varying) do
    local made, attrs = {}, {}
    for key, value in pairs(base.instructions[i]) do made[key] = value end
    for key, value in pairs(made.attrs) do attrs[key] = resolve(value, tp) end
    made.attrs = attrs
    instructions[i] = made
  end
  program.instructions = instructions
  return program
end

function emit.run(plan)
  local programs, layout = {}, plan.spec.layout
  local names, index = groups_of(plan.ranks)
  for i, rank in ipairs(plan.ranks) do
    local base, varying = base_program(rank, plan.places[i].bytes, names, index)
    if plan.spec.device == "cuda" then
      local position = lanes.assign(base, rank.ordered)
      rank.position = position -- of each instruction in the program
      for k, old in ipairs(varying) do -- sections of generation keep their order
        varying[k] = position[old] or old
      end
    end
    for tp = 0, layout.tp - 1 do -- the place in the expert grid fixes that in the tensor's
      if layout.ep == 1 or rank.ep % layout.tp == tp then
        local at = { pp = rank.rank, tp = tp, dp = rank.ep // layout.tp }
        programs[experts.program_index(layout, at)] = program_of(base, varying, tp)
      end
    end
  end
  return { programs = programs }
end

return emit
