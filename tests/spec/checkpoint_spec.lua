--- Checkpoints: whole or not there, in any layout, the same bits as without.
local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local data = require "tidelock.language.data"
local export = require "tidelock.run.export"
local models = require "support.models"
local new_folder = require "support.folder"
local saves = require "tidelock.run.saves"
local seal = require "tidelock.run.seal"
local support = require "support"

local function contains(part, text)
  assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
end

--- The message of an error with status 2.
local function refused(fn, ...)
  local good, problem = pcall(fn, ...)
  assert.is_false(good)
  assert.equal(2, problem.status, tostring(problem))
  return problem.message
end

local function steps(run, count)
  local line = {}
  for i = 1, count do
    local s = run:step()
    line[i] = s.loss_bits .. " " .. s.grad_norm_bits
  end
  return table.concat(line, " | ")
end

local function ends(run) return run:weights_hash() .. " " .. run:optimizer_hash() end

--- Writes a checkpoint after `count` steps; returns its folder.
local function saved(options, dir, count, how)
  local run <close> = models.start(options)
  steps(run, count)
  local written = checkpoint.start(run, dir, how)
  written.saver:wait()
  written.saver:close()
  return written.folder
end

describe("a checkpoint", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  local layouts = {
    {},
    { ["layout.tp"] = 2, ["layout.pp"] = 2, ["layout.dp"] = 2, micro = 1 },
    { ["layout.tp"] = 4 },
    { ["layout.dp"] = 4, micro = 1 },
  }
  for _, model in ipairs {
    { "f32", { dtype = "f32" } }, { "bf16", { dtype = "bf16" } },
    { "layer_norm, biases, tied, dropout", {
      layer_norm = true, gelu = true, bias = true, tied = true, dropout = 0.1,
    } },
  } do
    it("goes on with the same bits in another layout: " .. model[1], function()
      local straight <close> = models.start(model[2])
      steps(straight, 2)
      local tail = steps(straight, 2)
      local state = ends(straight)
      for i, from in ipairs(layouts) do
        local dir = folder:path("l" .. i)
        core.files.mkdirs(dir)
        local found = checkpoint.find(saved(models.with(model[2], from), dir, 2))
        for j, to in ipairs(layouts) do
          if i == 1 or j == 1 or j == i % #layouts + 1 then
            local run <close> = models.start(models.with(model[2], to), { resume = found })
            assert.equal(tail, steps(run, 2), ("layout %d to %d"):format(i, j))
            assert.equal(state, ends(run))
          end
        end
      end
    end)
  end

  it("has hashes that shards add up to, wherever they are", function()
    for _, layout in ipairs(layouts) do
      local options = { dtype = "bf16", bias = true }
      for field, value in pairs(layout) do options[field] = value end
      local run <close> = models.start(options)
      steps(run, 1)
      local seen = 0
      for _, param in ipairs(run.plan["local"].params) do
        for _, arena in ipairs { "weight ", "master ", "m ", "v " } do
          local whole = run:stored(param, arena)
          if whole then
            local name = arena .. param.name
            assert.equal(whole:hash(name), run:stored_hash(param, arena, name), name)
            seen = seen + 1
          end
        end
      end
      assert.is_true(seen > 20)
    end
  end)

  it("is cut into files by size, and read from all of them", function()
    local path = saved({}, folder.root, 1, { file_bytes_max = 20000 })
    local names = core.files.list(path)
    assert.is_true(#names > 6)
    contains("weights-00001-of-", table.concat(names, " "))
    local run <close> = models.start({}, { resume = checkpoint.find(path) })
    local other <close> = models.start {}
    steps(other, 1)
    assert.equal(ends(other), ends(run))
  end)

  it("is the newest finished one of a folder; others are named", function()
    saved({}, folder.root, 1)
    saved({}, folder.root, 2)
    core.files.mkdirs(folder:path "step-00000003.tmp")
    core.files.mkdirs(folder:path "step-00000004")
    local found = checkpoint.find(folder.root)
    assert.equal(2, found.state.step)
    assert.equal(2, #found.notes)
    contains("step-00000003.tmp was not finished and is not used", table.concat(found.notes, "\n"))
  end)

  it("that is damaged is refused by the name of its tensor", function()
    local path = saved({}, folder.root, 1)
    local file = assert(io.open(path .. "/optimizer.safetensors", "r+b"))
    file:seek("end", -7)
    file:write "\xA5"
    file:close()
    local message = refused(models.start, {}, { resume = checkpoint.find(path) })
    contains("is damaged: other bytes than were saved in optimizer.safetensors: ", message)
  end)

  it("whose file is cut off is refused", function()
    local path = saved({}, folder.root, 1)
    local text = core.files.read_all(path .. "/weights.safetensors")
    folder:write("cut", text:sub(1, -2))
    os.rename(folder:path "cut", path .. "/weights.safetensors")
    contains("cut off", refused(models.start, {}, { resume = checkpoint.find(path) }))
  end)

  it("with a state that is none is refused", function()
    local path = saved({}, folder.root, 1)
    local whole = core.files.read_all(path .. "/state.json")
    assert.is_truthy(whole:find('"step":1', 1, true))
    for text, part in pairs {
      [""] = "it is damaged", ["[]"] = "it is damaged",
      ['{"version":9}'] = "version 9 of the format",
    } do
      core.files.write_atomic(path .. "/state.json", text)
      contains(part, refused(checkpoint.find, path))
    end
    local state = core.json.decode(whole)
    state.xxh64 = nil
    for name, wrong in pairs { step = -1, updates = "1", tensors = { { file = "x" } } } do
      local other = setmetatable({ [name] = wrong }, { __index = state })
      local copy = {}
      for field in pairs(state) do copy[field] = other[field] end
      core.files.write_atomic(path .. "/state.json", seal.encode(copy))
      contains("it is damaged", refused(checkpoint.find, path))
    end
  end)

  it("with a state of which a byte has changed is refused", function()
    local path = saved({}, folder.root, 1)
    local whole = core.files.read_all(path .. "/state.json")
    for _, change in ipairs {
      { '"step":1', '"step":2' }, { '"updates":1', '"updates":0' }, { '"xxh64"', '"xxh65"' },
      { '"version":2', '"version":1' }, { "}\n$", "" },
    } do
      local text, count = whole:gsub(change[1], change[2])
      assert.equal(1, count, change[1])
      core.files.write_atomic(path .. "/state.json", text)
      contains("it is damaged", refused(checkpoint.find, path))
    end
    local state = core.json.decode(whole) -- as older versions wrote it
    state.xxh64, state.version = nil, 1
    core.files.write_atomic(path .. "/state.json", core.json.encode(state) .. "\n")
    assert.equal(1, checkpoint.find(path).state.step)
  end)

  it("that is not there is told", function()
    contains("no folder", refused(checkpoint.find, folder:path "nowhere"))
    contains("holds no finished checkpoint; a run writes them where its recipe has train.save, "
      .. "e.g. train.save.every=50",
      refused(checkpoint.find, folder.root))
  end)

  it("of another key is refused with the fields that differ, unless they are named", function()
    local found = checkpoint.find(saved({}, folder.root, 1))
    local other = { ["train.lr"] = 0.01, ["layout.tp"] = 2 }
    local message = refused(models.start, other, { resume = found })
    contains("saved under key ", message)
    contains("train.lr", message)
    contains("to fork on purpose: --fork train.lr", message)
    assert.is_nil(message:find("layout.tp", 1, true))
    local more = { ["train.lr"] = 0.01, ["train.clip"] = 3 }
    message = refused(models.start, more, { resume = found, forks = { "train.clip" } })
    contains("to fork on purpose: --fork train.clip,train.lr (", message)
    local run <close> = models.start(other, { resume = found, forks = { "train.lr" } })
    assert.is_true(run.forks)
    assert.equal(1, run.done)
  end)

  it("of other data is refused, also where it forks for another reason", function()
    local function fed(seed)
      local list = {}
      for i = 1, 24 do list[i] = { tokens = models.tokens(seed + i, 16, 61) } end
      return { data = data.given(list) }
    end
    local found = checkpoint.find(saved(fed(0), folder.root, 1))
    local other = models.with(fed(1), { ["train.lr"] = 0.01 })
    for _, forks in ipairs { {}, { "train.lr" } } do
      contains("data: its bytes are others",
        refused(models.start, other, { resume = found, forks = forks }))
    end
    local run <close> = models.start(other, { resume = found, forks = { "train.lr", "data" } })
    assert.is_true(run.forks)
  end)

  it("of another model is refused by its first tensor that does not fit", function()
    local found = checkpoint.find(saved({}, folder.root, 1))
    contains("here", refused(models.start, { hidden = 64 },
      { resume = found, forks = { "model" } }))
  end)
end)

describe("the checkpoints of a run", function()
  local folder, notes
  before_each(function()
    folder, notes = new_folder(), {}
  end)
  after_each(function() folder:remove() end)

  local show = { note = function(_, text) notes[#notes + 1] = text end }

  local function open(run, save)
    run.spec.train.save = save
    return saves.open(run.spec, folder.root, run.plan.key, show)
  end

  it("are pruned to the newest", function()
    local run <close> = models.start {}
    local list = open(run, { every = 1, keep = 2 })
    for _ = 1, 4 do
      run:step()
      assert.is_true(list:due(run.done))
      list:save(run)
    end
    assert.is_true(list:close())
    assert.same({ 3, 4 }, (checkpoint.list(list.dir)))
  end)

  it("have one writer at a time", function()
    local run <close> = models.start {}
    local list = open(run, { every = 1 })
    contains("another run writes its checkpoints there", refused(open, run, { every = 1 }))
    list:close()
    open(run, { every = 1 }):close()
  end)

  it("of another key are not mixed in", function()
    local run <close> = models.start {}
    local list = open(run, { every = 1 })
    run:step()
    list:save(run)
    list:close()
    local other <close> = models.start { ["train.lr"] = 0.3 }
    contains("holds checkpoints of key " .. run.plan.key, refused(open, other, { every = 1 }))
  end)

  it("that exist already must hold the same bits", function()
    local run <close> = models.start {}
    local list = open(run, { every = 1 })
    run:step()
    list:save(run)
    list:close()
    local path = list.dir .. "/step-00000001/state.json"
    local again <close> = models.start {}
    again:step()
    local second = open(again, { every = 1 })
    second:save(again)
    local state = core.json.decode(core.files.read_all(path))
    state.xxh64, state.weights_hash = nil, ("0"):rep(16)
    core.files.write_atomic(path, seal.encode(state))
    local good, message = pcall(second.save, second, again)
    second:close()
    assert.is_false(good)
    contains("holds other bits", message)
  end)

  it("survive a full disk, which is told; the next one tries again", function()
    if os.execute "unshare -m true 2>/dev/null" ~= true then
      return pending "needs the right to mount a small file system"
    end
    local text = support.run("lua tests/support/full_disk.lua " .. folder.root)
    contains("step 2 was not saved: ", text)
    contains("No space left on device", text)
    contains("finished 1 3", text)
  end)
end)

describe("H27, a killed run", function()
  it("goes on from its last finished checkpoint with the same bits", function()
    local folder = new_folder()
    local text, status = support.run("lua tests/support/killed.lua " .. folder.root)
    folder:remove()
    assert.equal(0, status, text)
    contains("equal after every kill", text)
  end)
end)

describe("an export", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  it("rounds to the dtype wanted, and takes the f32 master for f32", function()
    local run <close> = models.start { dtype = "bf16" }
    steps(run, 2)
    local dir = folder:path "c"
    core.files.mkdirs(dir)
    local written = checkpoint.start(run, dir)
    written.saver:wait()
    local found = checkpoint.find(dir)
    for dtype, expected in pairs { f32 = run:master "embed", bf16 = run:weight "embed" } do
      local out = folder:path(dtype)
      export.write(found, out, { dtype = dtype })
      local file = core.weights.open(out .. "/model.safetensors")
      assert.bits(expected, file:read "embed")
    end
    export.write(found, folder:path "f16", { dtype = "f16" })
    local half = core.weights.open(folder:path "f16" .. "/model.safetensors")
    assert.equal("F16", (half:look "embed"))
    local exact, near = run:weight "embed":flat(), half:read("embed", "f32"):flat()
    for i, x in ipairs(exact) do
      assert.is_true(math.abs(near[i] - x) <= math.abs(x) * 2.0 ^ -11 + 2.0 ^ -25)
    end
  end)

  local tide = [[
    local tl = require "tidelock"
    local nn = tl.nn
    local function layer()
      return { nn.residual { nn.rms_norm {}, nn.attention { heads = 2 } },
        nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 32 } } }
    end
    return tl.recipe { model = nn.decoder { vocab = 256, dim = 16, layers = 1, layer = layer },
      data = tl.data.text { %q }, batch = { samples = 2, length = 16 },
      train = { steps = 2, lr = 0.01 } }
  ]]

  it("takes the weights of a run that has no checkpoint", function()
    local text = folder:write("text.txt", ("Tides come and go. "):rep(20))
    local file = folder:write("tide.lua", tide:format(text))
    local function tidelock(words, ...)
      local out, status = support.run(words:format(...))
      return out, status
    end
    for _, dtype in ipairs { "f32", "bf16" } do
      local runs = folder:path("runs-" .. dtype)
      assert.equal(0, (select(2, tidelock("run %s dtype=%s --runs %s --quiet", file, dtype, runs))))
      local run, out = runs .. "/" .. core.files.list(runs)[1], folder:path("hf-" .. dtype)
      local said, status = tidelock("export %s %s --format hf", run, out)
      assert.equal(0, status, said)
      assert.matches("1 file, .* MiB; step 2 of key", said)
      local stored = core.weights.open(run .. "/weights.safetensors")
      local made = core.weights.open(out .. "/model.safetensors")
      assert.bits(stored:read "embed", made:read "model.embed_tokens.weight")
      assert.equal("llama", core.json.decode(core.files.read_all(out .. "/config.json")).model_type)
      said, status = tidelock("export %s %s --dtype f32", run, out .. "-f32")
      assert.equal(dtype == "f32" and 0 or 2, status, said)
      if dtype == "bf16" then
        contains("is BF16, and this run has no checkpoint with its f32 master; --dtype bf16, or "
          .. "run again with train.save.every", said)
      end
    end
  end)

  it("takes the end of a run that went on from its checkpoints without saving", function()
    local text = folder:write("text.txt", ("Tides come and go. "):rep(20))
    local file, runs = folder:write("tide.lua", tide:format(text)), folder:path "runs"
    local function tidelock(words, ...)
      local out, status = support.run(words:format(...))
      return out, status
    end
    local function run(words)
      local out, status = tidelock("run %s dtype=bf16 --runs %s --quiet %s", file, runs, words)
      assert.equal(0, status, out)
    end
    run "train.save.every=1 --stop-at 1"
    local made = runs .. "/" .. core.files.list(runs)[1]
    assert.matches("step 1 of key", (tidelock("export %s %s", made, folder:path "one")))
    run("--resume " .. made)
    assert.matches("step 2 of key", (tidelock("export %s %s", made, folder:path "two")))
    assert.bits(core.weights.open(made .. "/weights.safetensors"):read "embed",
      core.weights.open(folder:path "two" .. "/model.safetensors"):read "embed")
    local said, status = tidelock("export %s %s --dtype f32", made, folder:path "three")
    assert.equal(2, status, said)
    contains("is BF16 at the end of the run, and f32 masters are in checkpoints alone; the newest "
      .. "is " .. made .. "/checkpoints/step-00000001", said)
    run("train.save.every=1 --resume " .. made) -- saves the end, too
    said = tidelock("export %s %s --dtype f32", made, folder:path "four")
    assert.matches("step 2 of key", said)
  end)

  it("is cut into files with an index", function()
    local found = checkpoint.find(saved({}, folder.root, 1))
    local out = folder:path "out"
    local bytes, names = export.write(found, out, { file_bytes_max = 10000 })
    local index = core.json.decode(core.files.read_all(out .. "/model.safetensors.index.json"))
    assert.equal(bytes, index.metadata.total_size)
    assert.is_true(#names > 1)
    for name, file in pairs(index.weight_map) do
      assert.is_truthy(core.weights.open(out .. "/" .. file):look(name))
    end
  end)

  it("refuses a folder that exists and a dtype that is none", function()
    local found = checkpoint.find(saved({}, folder.root, 1))
    contains("exists already", refused(export.write, found, folder.root))
    contains("expected f32, bf16 or f16", refused(export.write, found, folder:path "o",
      { dtype = "f8" }))
  end)

  it("has one writer of a folder at a time; the other's files stay", function()
    local found, out = checkpoint.find(saved({}, folder.root, 1)), folder:path "two"
    core.files.mkdirs(out .. ".tmp")
    folder:write("two.tmp/model.safetensors", "of the first writer")
    local lock <close> = core.files.lock(out .. ".tmp")
    contains("two: somebody else is writing it", select(2, pcall(export.write, found, out)))
    assert.equal("of the first writer", core.files.read_all(out .. ".tmp/model.safetensors"))
    lock:close() -- it was killed: what it left is of no use
    export.write(found, out)
    assert.same({ "model.safetensors" }, core.files.list(out))
    assert.is_false(core.files.exists(out .. ".tmp"))
  end)
end)

describe("element types of files", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  --- The values of `bytes` as a tensor of this dtype.
  local function widened(dtype, count, bytes)
    local header = ('{"x":{"dtype":"%s","shape":[%d],"data_offsets":[0,%d]}}'):format(dtype, count,
      #bytes)
    local path = folder:write("x", string.pack("<I8", #header), header, bytes)
    return core.weights.open(path):read("x", "f32"):flat()
  end

  it("widen exactly", function()
    local inf = math.huge
    assert.same({ 1, -2, 65504, 2.0 ^ -24, 2.0 ^ -14, inf, -inf, 0 },
      widened("F16", 8, string.pack("<I2I2I2I2I2I2I2I2", 0x3C00, 0xC000, 0x7BFF, 1, 0x400, 0x7C00,
        0xFC00, 0)))
    assert.same({ 1, 448, -448, 2.0 ^ -9, 2.0 ^ -6, 0 },
      widened("F8_E4M3", 6, "\x38\x7E\xFE\x01\x08\x00"))
    assert.same({ 1, 57344, inf, -inf, 2.0 ^ -16 },
      widened("F8_E5M2", 5, "\x3C\x7B\x7C\xFC\x01"))
    assert.same({ 1, 2.0 ^ 127, 2.0 ^ -127, 2.0 ^ -126 },
      widened("F8_E8M0", 4, "\x7F\xFE\x00\x01"))
    for dtype, bytes in pairs { F16 = "\x01\x7E", F8_E4M3 = "\x7F", F8_E8M0 = "\xFF" } do
      local x = widened(dtype, 1, bytes)[1]
      assert.is_true(x ~= x)
    end
  end)

  it("round trip: every binary16 through f32", function()
    local bytes = {}
    for i = 0, 65535 do
      local nan = i & 0x7C00 == 0x7C00 and i & 0x3FF ~= 0
      if not nan then bytes[#bytes + 1] = string.pack("<I2", i) end
    end
    local text = table.concat(bytes)
    local header = ('{"x":{"dtype":"F16","shape":[%d],"data_offsets":[0,%d]}}'):format(#bytes,
      #text)
    local half = core.weights.open(folder:write("h", string.pack("<I8", #header), header, text))
    core.weights.write(folder:path "w", { { name = "x", tensor = half:read("x", "f32") } })
    local wide = core.weights.open(folder:path "w")
    core.weights.write(folder:path "n", { { name = "x", file = wide, dtype = "F16" } })
    assert.is_true(core.files.read_all(folder:path "n"):sub(-#text) == text)
  end)

  it("that cannot be converted are told", function()
    core.weights.write(folder:path "i", { { name = "x", tensor = core.tensor("i32", { 2 }) } })
    local file = core.weights.open(folder:path "i")
    assert.has_error(function() file:read("x", "f32") end)
    local good, message = pcall(core.weights.write, folder:path "o",
      { { name = "x", file = file, dtype = "BF16" } })
    assert.is_false(good)
    contains("I32 cannot be written as BF16", message)
  end)
end)
