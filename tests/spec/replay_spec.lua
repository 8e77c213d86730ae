-- ./tl replay: a step of eight ranks again on one, with its bits, and its failure.
local core = require "tidelock.core"
local new_folder = require "support.folder"
local support = require "support"

local recipe = [[
  local tl = require "tidelock"
  local nn = tl.nn
  return tl.recipe {
    model = nn.decoder { vocab = 256, dim = 32, layers = 2, layer = function()
      return { nn.residual { nn.rms_norm {}, nn.attention { heads = 4 } },
        nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 32 } } }
    end },
    data = tl.data.text { "LICENSE" },
    batch = { samples = 8, micro = 1, length = 16 },
    train = { steps = 6, save = { every = 2 },
      lr = function(step) return step < 4 and 1e-3 or 1e38 end },
  }]]

describe("replay", function()
  local folder

  local function has(text, part)
    assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
  end

  --- Runs the recipe on eight ranks; the folder of the run, and what it said.
  local function trained(words)
    local text, status = support.run(("run %s --quiet --runs %s layout.tp=2 layout.dp=2 "
      .. "layout.pp=2 %s"):format(folder:write("nan.lua", recipe), folder:path "runs", words or ""))
    return folder:path("runs/" .. core.files.list(folder:path "runs")[1]), text, status
  end

  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  it("finds a NaN of eight ranks on one, at the same instruction, with its operands", function()
    local made, said, failed = trained()
    assert.equal(1, failed)
    local op, line, element = said:match "step 5, .-instruction %d+ (%S+) (%b()): element (%b[]) "
    local name = said:match "%(([%w_.]+), tensor %d+%) is NaN"
    assert.is_truthy(op and name, said)
    has(said, "\nits operands: ./tl replay " .. made)
    os.remove(folder:path "nan.lua")
    local text, status = support.run("replay " .. made)
    assert.equal(1, status, text)
    has(text, "step 5, from the checkpoint of step 4; one thread rank of the host")
    has(text, ("%s %s: element %s of"):format(op, line, element))
    has(text, name)
    assert.matches("\ninput 1 .-all finite", text)
    assert.matches("\noutput 1 .-not finite, the first at %[0, 0%]", text)
    local pipe = assert(io.popen(("echo 'inputs[1]:shape()[2], step' | %s replay %s --repl 2>&1")
      :format(support.program, made)))
    has(pipe:read "a", "\n32\tnil\n")
    pipe:close()
  end)

  it("gives a step's bits from the start and from a checkpoint, in another layout too", function()
    local made, _, status = trained "--stop-at 3"
    assert.equal(0, status)
    for _, words in ipairs { "--step 3", "--step 2", "--step 3 layout.tp=2", "" } do
      local text, code = support.run(("replay %s %s"):format(made, words))
      assert.equal(0, code, text)
      has(text, "bits       equal to the log")
    end
    local pipe = assert(io.popen(("echo step.step, inputs | %s replay %s --step 2 --repl 2>&1")
      :format(support.program, made)))
    local text = pipe:read "a"
    pipe:close()
    has(text, "run and step are there: ")
    has(text, "\n2\tnil\n")
  end)

  it("records the step for a comparison", function()
    local made = trained "--stop-at 2"
    for i, words in ipairs { "", "layout.tp=2" } do
      local text, code = support.run(("replay %s --step 2 --trace %s %s"):format(made,
        folder:path("t" .. i), words))
      assert.equal(0, code, text)
    end
    local text, code = support.run(("diff %s %s"):format(folder:path "t1", folder:path "t2"))
    assert.equal(0, code, text)
    assert.matches("all [%d,]+ .-s equal", text)
  end)

  it("says when the log has other bits, and what is no run", function()
    local made = trained "--stop-at 2"
    local path = made .. "/log.jsonl"
    local whole = core.files.read_all(path)
    core.files.write_atomic(path, (whole:gsub('"loss_bits":"%x+"', '"loss_bits":"00000000"')))
    local said, status = support.run(("replay %s --step 2"):format(made))
    assert.equal(1, status, said)
    has(said, "the log has 00000000")
    said, status = support.run(("replay %s --step 1"):format(made)) -- no step before it
    assert.equal(1, status, said)
    has(said, "bits       the log has loss 00000000")
    core.files.write_atomic(path, (whole:gsub('"grad_norm_bits":"%x+"',
      '"grad_norm_bits":"00000000"')))
    said, status = support.run(("replay %s --step 1"):format(made))
    assert.equal(1, status, said)
    has(said, "gradient norm 00000000")
    core.files.write_atomic(path, "")
    said, status = support.run(("replay %s --step 2"):format(made))
    assert.equal(0, status, said)
    has(said, "bits       the log has no step 2; nothing to compare")
    said, status = support.run(("replay %s --step 7"):format(made))
    assert.equal(2, status, said)
    has(said, "replay: --step 7 is behind the last: train.steps is 6")
    said, status = support.run "replay no/such/run"
    assert.equal(2, status)
    has(said, "no folder of a run with origin.json")
  end)
end)
