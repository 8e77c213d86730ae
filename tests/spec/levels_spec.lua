local support = require "support"

describe("the levels of the processor", function()
  local function lines(level)
    local pipe = assert(io.popen(("TL_SIMD=%s %s lua tests/support/levels.lua 2>&1"):format(level,
      support.program)))
    local list = {}
    for line in pipe:lines() do list[#list + 1] = line end
    assert.is_true(pipe:close(), list[#list])
    return list
  end

  it("give the same bits in every operator", function()
    local expected = lines "portable"
    assert.is_true(#expected > 100)
    for _, level in ipairs { "avx2", "avx512", "" } do -- "": the best there is
      local actual, at = lines(level), 1
      while actual[at] and actual[at]:find "^TL_SIMD: this processor has no" do at = at + 1 end
      for i, line in ipairs(expected) do assert.equal(line, actual[i + at - 1]) end
    end
  end)

  it("are reported when there is no such level", function()
    local text = lines "mmx"
    assert.equal('TL_SIMD: "mmx" is not avx512, avx2 or portable',
      text[1]:match "^(.-);" or text[1])
  end)
end)
