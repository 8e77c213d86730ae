-- Block sizes that a recipe may name are those that are compiled.
local blocks = require "tidelock.language.blocks"

describe("blocks.gemm", function()
  it("has every tile of gemm_hopper.def, and no other", function()
    local known, found = {}, {}
    for _, tile in ipairs(blocks.gemm_tiles) do known[table.concat(tile, " ")] = true end
    for line in io.lines "kernels/gemm/gemm_hopper.def" do
      local columns = line:match "^LARGE%(%d+, (%d+),"
      local rows, few = line:match "^FEW%((%d+), (%d+),"
      if columns then found["128 " .. columns .. " 64"] = true end
      if rows then found[rows .. " " .. few .. " 64"] = true end
    end
    assert.same(found, known)
  end)

  it("may leave sizes open", function()
    local said = {}
    local function report(path, format, ...)
      said[#said + 1] = path .. ": " .. format:format(...)
    end
    for _, gemm in ipairs { {}, { m = 128 }, { n = 256 }, { n = 128, k = 64 },
      { m = 64, n = 88 } } do
      blocks.check({ attention = { split = 8192 }, gemm = gemm }, report)
    end
    assert.same({}, said)
    blocks.check({ attention = { split = 8192 }, gemm = { m = 16, n = 64 } }, report)
    assert.matches("^blocks.gemm: no compiled product has m 16, n 64; as { m, n, k } there are {",
      said[1])
  end)
end)
