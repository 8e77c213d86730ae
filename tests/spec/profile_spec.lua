-- ./tl run --profile: ranges of exactly these steps, for a profiler that speaks NVTX.
local core = require "tidelock.core"
local new_folder = require "support.folder"
local profile = require "tidelock.run.profile"
local support = require "support"

local recipe = [[
  local tl = require "tidelock"
  local nn = tl.nn
  return tl.recipe {
    model = nn.decoder { vocab = 256, dim = 16, layers = 2, layer = function()
      return { nn.residual { nn.rms_norm {}, nn.attention { heads = 4 } } }
    end },
    data = tl.data.text { "LICENSE" },
    batch = { samples = 4, micro = 2, length = 16 },
    train = { steps = 4, lr = 1e-3 },
  }]]

describe("--profile", function()
  local folder, file
  before_each(function()
    folder = new_folder()
    file = folder:write("tiny.lua", recipe)
  end)
  after_each(function() folder:remove() end)

  local function run(words, before)
    return support.run(("run %s --runs %s %s"):format(file, folder:path "runs", words), nil, before)
  end

  --- Compiles the profiler of tests/tools; the variables that make the program use it.
  local function tool()
    local library, log = folder:path "tool.so", folder:path "ranges"
    assert.is_true(os.execute(("cc -shared -fPIC -o %s tests/tools/nvtx_tool.c"):format(library)))
    return ("NVTX_INJECTION64_PATH=%s NVTX_TOOL_LOG=%s "):format(library, log), log
  end

  it("opens step, micro-batch and instruction, names recipe lines, and closes all", function()
    local before, log = tool()
    local text, status = run("--profile 2-3", before)
    assert.equal(0, status, text)
    assert.matches("profile +steps 2 to 3, a profiler listens", text)
    local lines, depth, seen = {}, 0, {}
    for line in core.files.read_all(log):gmatch "[^\n]+" do lines[#lines + 1] = line end
    assert.equal("domain tidelock", lines[1])
    for i = 2, #lines do
      local sign, level, name = lines[i]:match "^([+-]) (%d+) ?(.*)$"
      if sign == "-" then depth = depth - 1 end
      assert.equal(depth, tonumber(level), lines[i])
      if sign == "+" then
        depth = depth + 1
        seen[depth] = seen[depth] or {}
        table.insert(seen[depth], name)
      end
    end
    assert.equal(0, depth)
    assert.same({ "step 2", "step 3" }, seen[1])
    assert.equal("micro-batch 0", seen[2][1])
    assert.equal("micro-batch 1", seen[2][2])
    local attention = 0
    for _, name in ipairs(seen[3]) do
      if name:find("instruction %d+ attention %(" .. file:gsub("%p", "%%%0") .. ":5%)$") then
        attention = attention + 1
      end
    end
    assert.equal(2 * 2 * 2, attention) -- steps, micro-batches, layers
    -- the bits are those of a run without ranges
    local plain
    plain, status = run "--quiet"
    assert.equal(0, status, plain)
    assert.matches("bits +equal to .-: 4 losses, 4 gradient norms", plain)
  end)

  it("of several ranks closes every thread's ranges, also when a step fails", function()
    local before, log = tool()
    local text, status = run("--profile 2 --quiet layout.tp=2 train.lr=1e38", before)
    assert.equal(1, status, text)
    local opened, closed = 0, 0
    for line in core.files.read_all(log):gmatch "[^\n]+" do
      opened, closed = opened + (line:find "^%+" and 1 or 0), closed + (line:find "^%-" and 1 or 0)
    end
    assert.is_true(opened > 100)
    assert.equal(opened, closed)
  end)

  it("says what to type where nothing listens, and what is no window", function()
    local text, status = run("--profile 2 train.steps=2", "env -u NVTX_INJECTION64_PATH ")
    assert.equal(0, status, text)
    assert.matches("step 2; NVTX_INJECTION64_PATH is not set", text)
    assert.matches("nsys profile %-%-trace=cuda,nvtx %-%-capture%-range=cudaProfilerApi", text)
    assert.matches("%./tl run %S+ train.steps=2 %-%-profile 2", text)
    for _, words in ipairs { "3-2", "0", "3:", "soon" } do
      text, status = run("--profile " .. words)
      assert.equal(2, status, text)
      assert.matches("steps are written 10 or 10:12", text)
    end
    text, status = run("--profile 5:6 train.steps=2")
    assert.equal(2, status, text)
    assert.matches("%-%-profile 5:6: this run has the steps 1 to 2", text)
    text, status = run("--quiet --profile 1", "NVTX_INJECTION64_PATH=/no/such/library.so ")
    assert.equal(0, status, text)
    assert.same({ 10, 12 }, profile.window "10:12")
    assert.is_nil(profile.window(nil))
  end)
end)
