-- Variables of the environment that look like ours: what nothing reads is told.
local core = require "tidelock.core"
local support = require "support"
local variables = require "tidelock.commands.variables"

describe("a variable of the environment", function()
  local function doubts(...) return variables.doubts(table.concat({ ... }, "\0") .. "\0") end

  it("that is ours by its name and that nothing reads is told", function()
    assert.same({
      "note: TIDELOCK_LAU: nothing reads this variable; did you mean TIDELOCK_LUA?",
      "note: TIDELOCK_WHATEVER: nothing reads this variable; there are TIDELOCK_LUA, "
        .. "TIDELOCK_PYTHON, TIDELOCK_TRACEBACK, TIDELOCK_TYPED",
      "note: TL_SMID: nothing reads this variable; did you mean TL_SIMD?",
    }, doubts("TL_SMID=avx2", "TL_OTHERS=1", "TIDELOCK_WHATEVER=", "TL_PIN=off", "TIDELOCK=x",
      "X=TIDELOCK_A=1", "TIDELOCK_LAU=lua", "TIDELOCK_SHARED=y"))
    assert.same({}, doubts("TL_SMID=avx2", "RANK=1"))
    assert.equal(1, #doubts("TL_SMID=avx2", "RANK=0"))
    local text, status = support.run("version", nil, "TIDELOCK_LAU=x ")
    assert.equal(0, status)
    assert.matches("^note: TIDELOCK_LAU: nothing reads this variable; did you mean "
      .. "TIDELOCK_LUA%?\n", text)
  end)

  it("is known where the page about them has it, and no other", function()
    local page, known = core.files.read_all "docs/operations.md", {}
    for prefix, names in pairs(variables.known) do
      for _, name in ipairs(names) do known[prefix .. name] = true end
    end
    for name in page:match("\n## Environment\n(.*)"):gmatch "`(T[IDELOCK]*L[OCK]*_[%u]+)`" do
      assert.is_true(known[name], name)
      known[name] = nil
    end
    assert.is_nil(next(known))
  end)
end)
