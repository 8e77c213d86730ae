--- Folders of runs that a crash, a full disk or a hand has damaged.
local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local log = require "tidelock.run.log"
local new_folder = require "support.folder"
local runs = require "tidelock.run.runs"
local seal = require "tidelock.run.seal"

local key = "5e1c09af77d2c340"
local summary = { key = key, steps = 2, weights_hash = "9d41c7e2a05b88f3" }

local function record(step)
  return { step = step, loss = 1, loss_bits = "3f800000", grad_norm = 1,
    grad_norm_bits = "3f800000" }
end

--- A finished run whose log is `text`; then what a second run of two steps is told.
local function verdict_of(text)
  local root = new_folder().root
  local first = runs.open(root, "small", key)
  core.files.write_atomic(first:path "log.jsonl", text)
  first:finish(summary)
  local second = runs.open(root, "small", key)
  for step = 1, 2 do second:compare(record(step)) end
  return second:finish(summary)
end

describe("a run whose key is known", function()
  it("says how many records of a damaged log it could not compare", function()
    for _, text in ipairs { "", "{", '{"step":1}\n', "3\n", '{"step":"1"}\n', '{"step":1.5}\n',
      '{"step":1,"loss_bits":3,"grad_norm_bits":"0"}', '{"step":1,"loss_bits":"z"}' } do
      local verdict = verdict_of(text)
      assert.is_true(verdict.equal)
      assert.matches("its log.jsonl lacks 2 steps", verdict.text, 1, true)
    end
  end)

  it("does not compare the steps before a checkpoint of that run with themselves", function()
    local function went_on(steps, same)
      local root = new_folder().root
      local first = runs.open(root, "small", key)
      local lines = {}
      for step = 1, 2 do lines[step] = core.json.encode(record(step)) .. "\n" end
      core.files.write_atomic(first:path "log.jsonl", table.concat(lines))
      first:finish(summary)
      local second = runs.open(root, "small", key)
      local folder = same and first.folder or root -- another run's
      for step = 1, steps - 1 do second:inherit(record(step), folder) end
      second:compare(record(steps))
      return second:finish { key = key, steps = steps, weights_hash = summary.weights_hash }.text
    end
    assert.matches(": 1 loss, 1 gradient norm, weights 9d41c7e2a05b88f3\n" .. (" "):rep(11)
      .. "%(its own before the checkpoint: 1 step%)$", went_on(2, true))
    assert.matches("^nothing to compare: .*/small%-5e1c has 2 steps, and this run went on behind "
      .. "them$", went_on(3, true))
    assert.matches(": 2 losses, 2 gradient norms, weights 9d41c7e2a05b88f3$", went_on(2, false))
  end)

  it("compares the checkpoints that a shorter or longer one has too", function()
    local function verdict_with(steps, weights)
      local root = new_folder().root
      local function finished(last, saves)
        local run = runs.open(root, "small", key)
        for step, hash in pairs(saves) do
          local state = { version = 2, step = step, updates = step, key = key, recipe_hash = key,
            contracts = 1, weights_hash = hash, optimizer_hash = "00", fields = "", parts = {},
            tensors = {} }
          core.files.mkdirs(run:path(("checkpoints/step-%08d"):format(step)))
          core.files.write_atomic(run:path(("checkpoints/step-%08d/state.json"):format(step)),
            seal.encode(state))
        end
        core.files.write_atomic(run:path "log.jsonl", core.json.encode(record(1)))
        run:compare(record(1))
        return run:finish { key = key, steps = last, weights_hash = ("%016d"):format(last) }
      end
      finished(2, { [1] = "a1" })
      return finished(steps, { [1] = weights })
    end
    assert.matches("1 loss, 1 gradient norm, weights after step 1\n", verdict_with(3, "a1").text)
    local differs = verdict_with(3, "b2")
    assert.is_false(differs.equal)
    assert.matches("differ from .*/small%-5e1c at step 1: weights a1 | b2$", differs.text)
    assert.is_true(verdict_with(2, "a1").equal)
  end)

  --- A finished run of 2 steps, whose folder `change` changes; then one of `steps` that has saved
  --- step 1. Returns both and the verdict.
  local function after(change, steps)
    local root = new_folder().root
    local first = runs.open(root, "small", key)
    first:finish(summary)
    change(first)
    local second = runs.open(root, "small", key)
    local state = { version = 2, step = 1, updates = 1, key = key, recipe_hash = key, contracts = 1,
      weights_hash = "a1", optimizer_hash = "00", fields = "", parts = {}, tensors = {} }
    core.files.mkdirs(second:path "checkpoints/step-00000001")
    core.files.write_atomic(second:path "checkpoints/step-00000001/state.json", seal.encode(state))
    return first, second.folder, second:finish { key = key, steps = steps,
      weights_hash = summary.weights_hash }
  end

  it("gives it its checkpoints, also in the place of one that is not whole", function()
    for _, state in ipairs { false, "", "{}" } do
      local first, folder, verdict = after(function(run)
        core.files.mkdirs(run:path "checkpoints/step-00000001")
        local path = run:path "checkpoints/step-00000001/state.json"
        if state then core.files.write_atomic(path, state) end
      end, 3)
      assert.is_true(verdict.equal)
      assert.equal(first.folder, verdict.saved)
      assert.is_false(core.files.exists(folder))
      assert.equal("a1", checkpoint.read(first:path "checkpoints/step-00000001").weights_hash)
    end
  end)

  it("keeps its folder where its checkpoints cannot be moved", function()
    for steps = 2, 3 do
      local first, folder, verdict = after(function(run)
        core.files.write_atomic(run:path "checkpoints", "a file")
      end, steps)
      assert.is_true(verdict.equal)
      assert.equal(folder, verdict.saved)
      assert.matches("; its checkpoints stay in its own folder: .*/checkpoints: ", verdict.text)
      assert.is_truthy(checkpoint.read(folder .. "/checkpoints/step-00000001"))
      assert.equal(steps, runs.summary(folder).steps)
      assert.equal(2, runs.summary(first.folder).steps)
    end
  end)

  it("leaves its checkpoints where it fails behind the end of that run", function()
    for _, case in ipairs { { 2, false, false }, { 2, true, true }, { 3, false, true },
      { nil, true, false } } do
      local step, lost, stays = table.unpack(case, 1, 3)
      local root = new_folder().root
      runs.open(root, "small", key):finish(summary)
      local second = runs.open(root, "small", key)
      core.files.mkdirs(second:path "checkpoints/step-00000003")
      assert.equal(stays, second:abandon(step and { step = step }, lost))
      assert.equal(stays, core.files.exists(second:path "checkpoints/step-00000003"))
    end
  end)

  it("takes the folder of a damaged summary for that of an unfinished run", function()
    for _, text in ipairs { "", "{", "3", "{}", '{"key":"' .. key .. '"}' } do
      local root = new_folder().root
      local first = runs.open(root, "small", key)
      core.files.write_atomic(first:path "summary.json", text)
      first:release() -- as its end does, whatever ended it
      local second = runs.open(root, "small", key)
      assert.is_nil(second.reference)
      assert.equal(first.folder, second.folder)
    end
  end)
end)

describe("a folder", function()
  it("belongs to one run at a time; the next one has another", function()
    local root = new_folder().root
    local first, second = runs.open(root, "small", key), runs.open(root, "small", key)
    assert.equal(root .. "/small-5e1c-2", second.folder)
    assert.equal(first.folder, second.in_use)
    first:finish(summary)
    local third = runs.open(root, "small", key)
    assert.equal(first.folder, third.reference)
    assert.equal(root .. "/small-5e1c-3", third.folder)
    assert.is_nil(second:finish(summary).equal) -- when it began there was nothing to compare with
  end)

  it("of a run that was killed is emptied and used again", function()
    local root = new_folder().root
    local first = runs.open(root, "small", key)
    for _, name in ipairs { "log.jsonl", "weights.safetensors.tmp-17-0" } do
      core.files.write_atomic(first:path(name), "half")
    end
    first:release()
    local second = runs.open(root, "small", key)
    assert.equal(first.folder, second.folder)
    assert.is_nil(second.in_use)
    assert.same({}, core.files.list(second.folder))
  end)

  it("that holds anything else is passed over, and nothing in it is touched", function()
    local folder = new_folder()
    core.files.mkdirs(folder:path "small-5e1c")
    folder:write("small-5e1c/thesis.txt", "years")
    folder:write("small-5e1c/log.jsonl", "old")
    local run = runs.open(folder.root, "small", key)
    assert.equal(folder:path "small-5e1c-2", run.folder)
    assert.is_nil(run.in_use)
    run:discard()
    assert.same({ "small-5e1c" }, core.files.list(folder.root))
    assert.equal(2, #core.files.list(folder:path "small-5e1c"))
  end)
end)

describe("records that cannot be written", function()
  it("end the run", function()
    local records = log.open { "/dev/full" }
    local good, message = pcall(records.write, records, record(1))
    assert.is_false(good)
    assert.equal("/dev/full: cannot write it: No space left on device", message)
  end)
end)
