-- How the launchers of decode steps share work out among the multiprocessors of a GPU: a wave, no
-- multiprocessor with much more than another (tests/support/shape_choice.c). Bits do not depend on
-- it.
local support = require "support"

--- The lines behind a heading, up to the next one.
local function lines(heading)
  local text, inside, list = support.run("", "shape_choice"), false, {}
  for line in text:gmatch "[^\n]+" do
    if not line:find "%d" then
      inside = line == heading
    elseif inside then
      list[#list + 1] = line
    end
  end
  return list
end

describe("shapes of decode steps", function()
  it("give gate and up the largest tile that leaves three of four multiprocessors work", function()
    assert.same({
      "8 x 5632: none",
      "9 x 5632: 64 x 48, 118 blocks",
      "64 x 5632: 64 x 48, 118 blocks",
      "65 x 5632: 128 x 48, 118 blocks",
      "128 x 5632: 128 x 48, 118 blocks",
      "129 x 5632: 128 x 88, 128 blocks",
      "256 x 5632: 128 x 88, 128 blocks",
      "257 x 5632: none",
      "256 x 3072: 128 x 48, 128 blocks",
      "128 x 192: 64 x 48, 8 blocks", -- too few for large tiles
      "64 x 6336: 64 x 48, 132 blocks",
      "64 x 6337: none", -- a second wave
      "64 x 14336: none",
    }, lines "gate up")
  end)

  it("give all blocks of attention as many rows and KV heads, or one less", function()
    assert.same({
      "1: 1 blocks of 145408 bytes, depth 16, 1 to 1",
      "256: 256 blocks of 112640 bytes, depth 12, 1 to 1",
      "396: 396 blocks of 71680 bytes, depth 7, 1 to 1",
      "397: 397 blocks of 55296 bytes, depth 5, 1 to 1",
      "528: 528 blocks of 55296 bytes, depth 5, 1 to 1",
      "529: 528 blocks of 55296 bytes, depth 5, 1 to 2",
      "1024: 528 blocks of 55296 bytes, depth 5, 1 to 2",
      "2044: 528 blocks of 55296 bytes, depth 5, 3 to 4",
    }, lines "attention")
  end)
end)
