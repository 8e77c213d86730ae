--- Builds small programs by hand: tensors one after the other in the arena, instructions by name.
---
---     local b = programs.new { "tp" }
---     local x = b:tensor("f32", { 4 }, { persistent = true })
---     b:add("step", "all_reduce", { x }, { y }, { group = 0 })
---     local program = b:program()
local core = require "tidelock.core"

local programs = {}
local Builder = {}
Builder.__index = Builder

local bytes = { f32 = 4, bf16 = 2, i32 = 4, i64 = 8, u8 = 1 }

function programs.new(groups)
  return setmetatable({
    tables = {
      arena_bytes = 0, groups = groups or {}, tensors = {}, sites = {}, instructions = {},
      sections = {}, results = {}, name_of = {}, persistent = {},
    },
  }, Builder)
end

--- A tensor at the end of the arena, or at options.offset.
function Builder:tensor(dtype, shape, options)
  local t = self.tables
  options = options or {}
  local size = bytes[dtype]
  for _, n in ipairs(shape) do size = size * n end
  local offset = options.offset or t.arena_bytes
  t.tensors[#t.tensors + 1] = { offset = offset, dtype = dtype, shape = shape }
  t.arena_bytes = math.max(t.arena_bytes, (offset + size + 63) // 64 * 64)
  if options.persistent then t.persistent[#t.persistent + 1] = #t.tensors end
  t.name_of[#t.tensors] = options.name
  return #t.tensors
end

--- An instruction at the end of `section`; sections are filled one after the other. Its recipe line
--- is "by_hand.lua:<its number from 0>". Returns its number from 1.
function Builder:add(section, op, inputs, outputs, attrs, more)
  local t = self.tables
  local i = { op = op, inputs = inputs, outputs = outputs, attrs = attrs }
  for name, value in pairs(more or {}) do i[name] = value end
  t.sites[#t.sites + 1] = "by_hand.lua:" .. #t.instructions
  i.site = #t.sites
  t.instructions[#t.instructions + 1] = i
  t.sections[section] = t.sections[section] or { #t.instructions, 0 }
  t.sections[section][2] = t.sections[section][2] + 1
  return #t.instructions
end

function Builder:program() return core.program(self.tables) end

--- Ranks that all run the same program, in one group of all of them.
function programs.ranks(program, count, options)
  local all, ranks, group = {}, {}, options and options.group or "all"
  for rank = 0, count - 1 do all[rank + 1] = rank end
  for rank = 1, count do ranks[rank] = { groups = { [group] = all } } end
  local settings = { programs = { program }, ranks = ranks }
  for name, value in pairs(options or {}) do
    if name ~= "group" then settings[name] = value end
  end
  return core.ranks(settings)
end

--- The message of an error raised by f(...), or nil.
function programs.message(f, ...)
  local ok, text = pcall(f, ...)
  if ok then return nil end
  return text
end

--- A step that doubles x (persistent), sums it over all ranks, and halves what comes out.
function programs.summing()
  local b = programs.new { "all" }
  local x = b:tensor("f32", { 64 }, { persistent = true, name = "x" })
  local y = b:tensor("f32", { 64 }, { name = "y" })
  b:add("step", "scale", { x }, { y }, { factor = 2 })
  b:add("step", "all_reduce", { y }, { y }, { group = 0 }, { micro = 3 })
  b:add("step", "scale", { y }, { x }, { factor = 0.5 })
  return b
end

return programs
