--- Exports: weights alone, in the dtype wanted, and no byte that was not saved.
local checkpoint = require "tidelock.run.checkpoint"
local checkpoints = require "support.checkpoints"
local core = require "tidelock.core"
local export = require "tidelock.run.export"
local models = require "support.models"
local new_folder = require "support.folder"
local replays = require "tidelock.trace.replays"
local support = require "support"

local contains, refused = checkpoints.contains, checkpoints.refused
local steps, saved = checkpoints.steps, checkpoints.saved

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

  it("finds the checkpoints of a run where train.save.dir put them, as others do", function()
    local text = folder:write("text.txt", ("Tides come and go. "):rep(20))
    local file, runs = folder:write("tide.lua", tide:format(text)), folder:path "runs"
    local apart = ("train.save.every=1 train.save.dir=%s"):format(folder:path "apart")
    local out, status = support.run(("run %s --runs %s --quiet --stop-at 1 %s"):format(file, runs,
      apart))
    assert.equal(0, status, out)
    local made = runs .. "/" .. core.files.list(runs)[1]
    assert.is_false(core.files.exists(made .. "/checkpoints"))
    os.remove(made .. "/summary.json") -- as if it had been killed
    os.remove(made .. "/weights.safetensors")
    local newest = folder:path "apart" .. "/step-00000001"
    assert.equal(newest, checkpoint.find(made).folder)
    assert.equal(newest, replays.nearest(made, 1).folder)
    out, status = support.run(("export %s %s"):format(made, folder:path "out"))
    assert.equal(0, status, out)
    out, status = support.run(("generate %s T --tokens 1"):format(made))
    assert.equal(0, status, out)
    contains(newest .. ", step 1", out)
    out, status = support.run(("run %s --runs %s --quiet --resume %s %s"):format(file, runs, made,
      apart))
    assert.equal(0, status, out)
    contains("trained    1 step", out)
  end)

  it("has no byte that was not saved: of a checkpoint, and of the end of a run", function()
    local text = folder:write("text.txt", ("Tides come and go. "):rep(20))
    local file, runs = folder:write("tide.lua", tide:format(text)), folder:path "runs"
    local out, status = support.run(("run %s --runs %s --quiet dtype=bf16 train.save.every=1")
      :format(file, runs))
    assert.equal(0, status, out)
    local made = runs .. "/" .. core.files.list(runs)[1]
    local newest = made .. "/checkpoints/step-00000002"
    local function flip(path)
      local bytes = assert(core.files.read_all(path))
      local at = #bytes - 3
      core.files.write_atomic(path, bytes:sub(1, at - 1), string.char(bytes:byte(at) ~ 4),
        bytes:sub(at + 1))
    end
    local count = 0
    local function turned_down(from, words, part)
      count = count + 1
      local said, code = support.run(("export %s %s %s"):format(from, folder:path("x" .. count),
        words))
      assert.equal(2, code, said)
      contains(part, said)
      assert.is_false(core.files.exists(folder:path("x" .. count)))
    end
    flip(newest .. "/optimizer.safetensors")
    out, status = support.run(("export %s %s"):format(made, folder:path "weights"))
    assert.equal(0, status, out) -- its weights are not touched, and no moment is read
    out, status = support.run(("run %s --runs %s --quiet dtype=bf16 --resume %s"):format(file,
      folder:path "other", newest))
    assert.equal(2, status, out)
    contains(newest .. " is damaged: other bytes than were saved in optimizer.safetensors: ", out)
    local function not_spoken(from, part)
      for _, layout in ipairs { "", "layout.tp=2", "dtype=f32" } do
        local said, code = support.run(("generate %s T --tokens 1 %s"):format(from, layout))
        assert.equal(2, code, said)
        contains(from .. " is damaged: other bytes than were saved: " .. part, said)
      end
    end
    flip(newest .. "/weights.safetensors")
    not_spoken(newest, "")
    turned_down(made, "", newest .. " is damaged: other bytes than were saved: ")
    checkpoint.remove(newest)
    checkpoint.remove(made .. "/checkpoints/step-00000001")
    out, status = support.run(("export %s %s"):format(made, folder:path "end"))
    assert.equal(0, status, out)
    flip(made .. "/weights.safetensors")
    not_spoken(made, "its tensors have the hash ")
    turned_down(made, "--format hf", made .. " is damaged: other bytes than were saved: its "
      .. "tensors have the hash ")
  end)

  it("has the dtypes and shapes that were saved, and no tensor is lacking", function()
    local text = folder:write("text.txt", ("Tides come and go. "):rep(20))
    local file, runs = folder:write("tide.lua", tide:format(text)), folder:path "runs"
    local out, status = support.run(("run %s --runs %s --quiet train.save.every=2"):format(file,
      runs))
    assert.equal(0, status, out)
    local made = runs .. "/" .. core.files.list(runs)[1]
    local newest, count = made .. "/checkpoints/step-00000002", 0
    local function turned_down(folder_of, name, change, part)
      local path = folder_of .. "/" .. name
      local before, words = core.files.read_all(path), "export %s " .. folder:path("y" .. count)
      count = count + 1
      core.files.write_atomic(path, (change(before)))
      local said, code = support.run(words:format(folder_of))
      assert.equal(2, code, said)
      contains(part, said)
      core.files.write_atomic(path, before)
    end
    local function dtype(bytes) return bytes:gsub('"F32"', '"I32"', 1) end
    local function shape(bytes) return bytes:gsub("%[256,16%]", "[16,256]", 1) end
    local function keyless(bytes) return bytes:gsub('"weights_hash"', '"weights_hush"', 1) end
    local function fewer(bytes) -- as version 1 wrote it, without a seal
      local state = core.json.decode(bytes)
      state.version, state.xxh64 = 1, nil
      table.remove(state.tensors, 1)
      return core.json.encode(state)
    end
    local weights = "weights.safetensors"
    turned_down(newest, weights, dtype, "is I32 in weights.safetensors, and weights are F32 or")
    turned_down(newest, weights, shape, "is (16, 256) in weights.safetensors, and (256, 16) was")
    turned_down(newest, "state.json", fewer, "its tensors have the hash ")
    checkpoint.remove(newest)
    turned_down(made, weights, dtype, "is I32 in weights.safetensors, and weights are F32 or")
    turned_down(made, weights, shape, "is damaged: other names or shapes of tensors than were")
    turned_down(made, weights, keyless, "is damaged: it does not say its step, key and hash")
    out, status = support.run(("export %s %s"):format(made, folder:path "good"))
    assert.equal(0, status, out)
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
