-- Threads are pinned where each has a processor of its own, and only those that the runtime starts.
local core = require "tidelock.core"
local support = require "support"

local cores = core.files.cpu_count()

--- The mask of the first thread, and those of the others; nothing is left behind afterwards.
local function masks(setting, ranks, threads)
  local command = ("%s %s lua tests/support/places.lua %d %d 2>&1"):format(setting,
    support.program, ranks, threads)
  local pipe = assert(io.popen(command))
  local text = pipe:read "a"
  assert.is_true(pipe:close(), text)
  local main, after = text:match "^main (%S+)\n", text:match "\nmain (%S+)\n$"
  assert.equal(main, after)
  local list = {}
  for mask in text:gmatch "thread (%S+)" do list[#list + 1] = mask end
  return main, list
end

--- Every thread has one processor, and no two the same.
local function is_pinned(list)
  local seen = {}
  for _, mask in ipairs(list) do
    if not mask:find "^%d+$" or seen[mask] then return false end
    seen[mask] = true
  end
  return true
end

describe("threads", function()
  it("have a processor each, ranks and helpers, where there are enough", function()
    local most = math.min(cores, 4)
    for _, ranks in ipairs(most >= 2 and { 1, 2 } or { 1 }) do
      local _, list = masks("", ranks, most)
      assert.equal(most, #list)
      assert.is_true(is_pinned(list), table.concat(list, " "))
    end
  end)

  it("run where the system puts them when there are more than processors", function()
    local main, list = masks("", 1, cores + 1)
    assert.equal(cores + 1, #list)
    for _, mask in ipairs(list) do assert.equal(main, mask) end
  end)

  it("count the processors that the process may use, not those of the machine", function()
    local first = masks("", 1, 1):match "^%d+"
    local main, list = masks("taskset -c " .. first, 1, 2)
    assert.equal(first, main)
    assert.same({ first, first }, list)
  end)

  it("are left alone with TL_PIN=off", function()
    local main, list = masks("TL_PIN=off", 1, cores)
    for _, mask in ipairs(list) do assert.equal(main, mask) end
  end)

  it("give the same bits pinned or not, looking on or not", function()
    local expected
    for _, setting in ipairs { "TL_PIN=on TL_SPIN=on", "TL_PIN=off TL_SPIN=on",
      "TL_PIN=on TL_SPIN=off", "TL_PIN=off TL_SPIN=off" } do
      local pipe = assert(io.popen(("%s %s lua tests/support/trace.lua f32 2>&1"):format(setting,
        support.program)))
      local text = pipe:read "a"
      assert.is_true(pipe:close(), text)
      expected = expected or text
      assert.equal(expected, text)
    end
  end)

  it("refuse a setting that is neither on nor off", function()
    for _, name in ipairs { "TL_PIN", "TL_SPIN" } do
      local pipe = assert(io.popen(name .. "=maybe " .. support.program
        .. " lua tests/support/places.lua 1 1 2>&1"))
      local text = pipe:read "a"
      assert.is_nil((pipe:close()))
      assert.matches(name .. ': "maybe" is not on or off', text, 1, true)
    end
  end)
end)
