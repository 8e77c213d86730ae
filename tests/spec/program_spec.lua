local core = require "tidelock.core"
local programs = require "support.programs"

local function built()
  local b = programs.new { "all" }
  local x = b:tensor("f32", { 2, 3 }, { name = "x" })
  local y = b:tensor("f32", { 2, 3 })
  b:add("step", "fill", {}, { x }, { value = 2 }, { phase = "forward", micro = 1 })
  b:add("step", "scale", { x }, { y }, { factor = 3 })
  return b
end

--- The error of core.program after `change` has been made to the tables.
local function refused(change)
  local b = built()
  change(b.tables, b.tables.instructions)
  return programs.message(core.program, b.tables)
end

describe("a program", function()
  it("is read, verified, and says how large it is", function()
    local p <close> = built():program()
    assert.equal(2, p:instructions())
    assert.equal(128, p:arena_bytes())
    assert.equal(128, p:scratch())
  end)

  it("may be closed twice, and is of no use afterwards", function()
    local p = built():program()
    p:close()
    p:close()
    assert.matches("program is closed", programs.message(p.instructions, p))
    assert.matches("program is closed", programs.message(core.ranks,
      { programs = { p }, ranks = { {} } }))
  end)

  it("cannot be closed while ranks use it", function()
    local p = built():program()
    local ranks = core.ranks { programs = { p }, ranks = { {} } }
    assert.matches("in use by ranks", programs.message(p.close, p))
    ranks:close()
    p:close()
  end)

  it("takes 1,000 instructions with lists of any length", function()
    local b = programs.new()
    local x = b:tensor("f32", { 600 })
    local norm, control = b:tensor("f32", { 1 }), b:tensor("f32", { 2 })
    local count, loss, counts = b:tensor("i64", { 1 }, { persistent = true }), b:tensor("f32",
      { 1 }), {}
    for i = 1, 600 do counts[i] = 1 end
    for _ = 1, 999 do b:add("step", "fill", {}, { x }, { value = 1 }) end
    b:add("step", "fill", {}, { loss }, { value = 1 })
    b:add("step", "grad_norm", { x, count, loss }, { norm, control }, { counts = counts, clip = 0 })
    local p <close> = b:program()
    assert.equal(1001, p:instructions())
  end)
end)

describe("a table that is no program", function()
  it("is refused with the place of the fault", function()
    local cases = {
      { "program: arena_bytes is missing", function(t) t.arena_bytes = nil end },
      { "program: arena_bytes is a lot, must be an integer",
        function(t) t.arena_bytes = "a lot" end },
      { "an arena of %-1 bytes", function(t) t.arena_bytes = -1 end },
      { "program: instructions is missing", function(t) t.instructions = nil end },
      { "program: sections is missing", function(t) t.sections = nil end },
      { "no section train; there are init, step, eval, serve0 to serve9",
        function(t) t.sections.train = { 1, 1 } end },
      { "section step: instructions 0 to 2; there are 2", function(t) t.sections.step = { 1,
        3 } end },
      { "tensor 1: dtype is missing", function(t) t.tensors[2].dtype = nil end },
      { "unknown dtype f16", function(t) t.tensors[2].dtype = "f16" end },
      { "tensor 1: shape is a number, must be a table", function(t) t.tensors[2].shape = 3 end },
      { "tensor 1 has 0 dims, must have 1 to 4", function(t) t.tensors[2].shape = {} end },
      { "tensor 1: size 0 of dim 0", function(t) t.tensors[2].shape = { 0, 3 } end },
      { "tensor 1: size %d+ of dim 1", function(t) t.tensors[2].shape = { 9,
        math.maxinteger } end },
      { "tensor 1 starts at byte 32, must be a multiple of 64",
        function(t) t.tensors[2].offset = 32 end },
      { "tensor 1 takes bytes 128 to 152 of an arena of 128",
        function(t) t.tensors[2].offset = 128 end },
      { "instruction 1: op is missing", function(_, i) i[2].op = nil end },
      { "instruction 1 %(by_hand.lua:1%): no operator scales; did you mean scale",
        function(_, i) i[2].op = "scales" end },
      { "instruction 1 scale %(by_hand.lua:1%): factor is missing", function(_,
        i) i[2].attrs = nil end },
      { "instruction 1 scale %(by_hand.lua:1%): factor is two, must be a number",
        function(_, i) i[2].attrs.factor = "two" end },
      { "instruction 1 scale %(by_hand.lua:1%): has no number facto",
        function(_, i) i[2].attrs.facto = 2 end },
      { "instruction 1: site is 7; there are 2", function(_, i) i[2].site = 7 end },
      { "instruction 1 scale %(by_hand.lua:1%): inputs is a number, must be a table",
        function(_, i) i[2].inputs = 1 end },
      { "instruction 1: lane 16, must be 0 to 15", function(_, i) i[2].lane = 16 end },
      { "group 16|group extra: there are 16 groups already",
        function(t) for i = 2, 17 do t.groups[i] = "extra" end end },
      { "program: name_of has tensor 9; there are 2", function(t) t.name_of[9] = "z" end },
      { "program: persistent has tensor 0; there are 2", function(t) t.persistent[1] = 0 end },
      { "result loss: tensor 8; there are 2", function(t) t.results.loss = 9 end },
      { "result loss: tensor 0 is 6 x f32, must be 1 x f32", function(t) t.results.loss = 1 end },
    }
    for _, case in ipairs(cases) do
      local text = refused(case[2])
      local found = false
      for pattern in case[1]:gmatch "[^|]+" do found = found or (text and text:find(pattern)) end
      assert(found, ("expected %q, got %q"):format(case[1], tostring(text)))
    end
  end)
end)
