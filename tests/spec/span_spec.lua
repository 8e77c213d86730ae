-- tl.memory: what it refuses, and why. That kernels of two GPUs work on one range is a case of
-- tests/gpu/ranks.lua.
local core = require "tidelock.core"
local tl = require "tidelock"

local function refused(options, words)
  local made, problem = pcall(tl.memory.span, options)
  assert.is_false(made)
  assert.is_true(tostring(problem):find(words, 1, true) ~= nil, problem)
end

describe("tl.memory", function()
  it("says what is taken, as core.memory does", function()
    local before = tl.memory().tensor.current
    local t <close> = core.tensor("f32", { 1000 })
    assert.is_true(tl.memory().tensor.current >= before + 4000)
    assert.equal(t:shape()[1], 1000)
  end)

  it("refuses a span that cannot be", function()
    refused({ gpus = { 0, 0 }, bytes = 1 }, "memory.span: GPU 0 stands twice")
    refused({ gpus = {}, bytes = 1 }, "memory.span: 0 GPUs; it takes 1 to 64")
    refused({ gpus = { 0 }, bytes = 0 }, "memory.span: 0 bytes of each GPU; it takes 1 to 2^46")
    refused({ gpus = { 0 } }, "memory.span: bytes is missing")
    refused({ gpus = { 0 }, bytes = 1, size = 2 }, "memory.span: size: no such key")
  end)

  it("names itself where there is no such GPU", function()
    local gpus = core.cuda_count()
    refused({ gpus = { gpus }, bytes = 1 },
      gpus == 0 and "memory.span: " or "memory.span: there is no GPU " .. gpus)
  end)
end)
