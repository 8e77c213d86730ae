--- Checkpoints: whole or not there, in any layout, the same bits as without.
local checkpoint = require "tidelock.run.checkpoint"
local checkpoints = require "support.checkpoints"
local core = require "tidelock.core"
local data = require "tidelock.language.data"
local disk = require "tidelock.run.disk"
local models = require "support.models"
local new_folder = require "support.folder"
local saves = require "tidelock.run.saves"
local seal = require "tidelock.run.seal"
local support = require "support"
local tl = require "tidelock"

local contains, refused = checkpoints.contains, checkpoints.refused
local steps, saved = checkpoints.steps, checkpoints.saved

local function ends(run) return run:weights_hash() .. " " .. run:optimizer_hash() end

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

  it("whose tensor has another dtype or shape is refused, the bytes as they were", function()
    for from, to in pairs { ['"F32"'] = '"I32"', ["%[(%d+),(%d+)%]"] = "[%2,%1]" } do
      local path = saved({}, folder.root, 1)
      local file = path .. "/optimizer.safetensors"
      local text = core.files.read_all(file):gsub(from, to, 1)
      core.files.write_atomic(file, text)
      assert.matches("--resume: m%.%S+ is %S+", refused(models.start, {},
        { resume = checkpoint.find(path) }))
      checkpoint.remove(path)
    end
  end)

  it("has the name of its step: another folder is none", function()
    local path = saved({}, folder.root, 1)
    os.rename(path, folder:path "step-1")
    local good, problem = pcall(checkpoint.find, folder.root)
    assert.is_false(good)
    contains("step-1 was not finished and is not used", problem.message)
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

  it("of other learning rates goes on when the fields that make them are named", function()
    local function cosine(peak, floor)
      return { ["train.lr"] = { "cosine", peak = peak, floor = floor } }
    end
    local dir = folder:path "rates"
    core.files.mkdirs(dir)
    local found = checkpoint.find(saved(cosine(0.01, 0.001), dir, 1))
    local run <close> = models.start(cosine(0.02, 0.001), { resume = found,
      forks = { "train.lr.peak" } })
    assert.is_true(run.forks)
    contains("to fork on purpose: --fork train.lr.peak,train.lr (", refused(models.start,
      cosine(0.02, 0.002), { resume = found, forks = { "train.lr.peak" } }))
    contains("to fork on purpose: --fork train.clip,train.lr (", refused(models.start,
      { ["train.lr"] = function() return 0.01 end }, { resume = found, forks = { "train.clip" } }))
  end)

  it("of other learning rates is refused with the first step behind it that has another", function()
    local count = 0
    local function refusal(old, new, done)
      count = count + 1
      local dir = folder:path("c" .. count)
      core.files.mkdirs(dir)
      return refused(models.start, new, { resume = checkpoint.find(saved(old, dir, done)) })
    end
    local function cosine(long)
      return { ["train.steps"] = long, ["train.lr"] = { "cosine", peak = 0.01, warmup = 3 } }
    end
    local message = refusal(cosine(8), cosine(10), 1)
    contains(": 8 -> 10\n", message)
    contains("the first learning rate that differs is that of step 4: 0.00904508494 -> "
      .. "0.00950484443", message)
    contains("differs is that of step 5: ", refusal(cosine(8), cosine(10), 4))
    local function tabulated(late)
      return { ["train.steps"] = 30, ["train.lr"] = function(step)
        return step < 25 and 0.01 or late
      end }
    end
    contains("differs is that of step 25: 0.0199999996 -> 0.0299999993",
      refusal(tabulated(0.02), tabulated(0.03), 1))
    message = refusal(cosine(8), models.with(cosine(8), { ["train.clip"] = 3 }), 1)
    assert.is_nil(message:find("learning rate", 1, true))
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
    assert.matches("No space left on device; it takes 0%.%d MiB, and 0%.0 are free beside step 1, "
      .. "which stays until a newer one is whole; make room for it before", text)
    contains(("train.save: 1 checkpoint of 0.2 MiB needs room beside 1 older one, and %s has 0.0 "
      .. "MiB free: what does not fit is not saved, since an old one stays"):format(folder.root),
      text)
    contains(("%s has 0.0 MiB free, and the weights that this run ends with take 0.1; make room "
      .. "before its end, or --runs DIR keeps them elsewhere\n"):format(folder.root), text)
    contains("after 1: 1\n", text)
    contains("after 2: 1\n", text)
    contains("after 3: 3\n", text)
  end)

  it("are counted before the first step, one more than are kept", function()
    local function wanted(existing, planned, keep) return disk.wanted(existing, planned, keep) end
    assert.same({ 1, 2, 2, 1, 1, 0 }, { wanted(0, 1, 1), wanted(0, 2, 1), wanted(0, 9, 1),
      wanted(1, 9, 1), wanted(5, 9, 1), wanted(3, 0, 1) })
    assert.same({ 4, 4, 1 }, { wanted(0, 4), wanted(3, 4), wanted(2, 4, 2) })
    for i, options in ipairs { { dtype = "f32", ["layout.pp"] = 2 }, { dtype = "bf16" } } do
      local run <close> = models.start(options)
      run:step()
      local written = checkpoint.start(run, folder:path("c" .. i))
      written.saver:wait()
      written.saver:close()
      assert.equal(written.bytes, checkpoint.bytes(run.plan))
    end
  end)

  it("are those that are due, counted without a look at every step", function()
    for _, every in ipairs { false, 1, 2, 3, 7 } do
      for first = 1, 8 do
        for last = first - 1, 14 do
          local due = 0
          for step = first, last do
            due = due + ((step == last or every and step % every == 0) and 1 or 0)
          end
          assert.equal(due, disk.planned(first, last, every or nil))
        end
      end
    end
    assert.equal(1 << 30, disk.planned(1, 1 << 31, 2))
  end)

  it("that will not fit are told with what would", function()
    local function told(keep, free, dir)
      return disk.shortage { dir = dir or "d", bytes = 10 << 20, free = free << 20, existing = 0,
        planned = 4, keep = keep }
    end
    assert.is_nil(told(nil, 40))
    assert.equal("train.save: 4 checkpoints of 10.0 MiB need room, and d has 20.0 "
      .. "MiB free: what does not fit is not saved; make room, or train.save.keep=1, or another "
      .. "disk by train.save.dir", told(nil, 20))
    assert.is_nil(told(1, 20))
    assert.equal("train.save: 2 checkpoints of 10.0 MiB need room, and d has 19.0 "
      .. "MiB free: what does not fit is not saved, since an old one stays until the new one is "
      .. "whole; make room, or another disk by train.save.dir", told(1, 19))
  end)
end)

describe("H27, a killed run", function()
  --- Texts in a mixture of which ten steps see several epochs, dropout, a state of experts, a held
  --- out set: all that a step takes from somewhere else than the weights.
  local tide = [[
    local tl = require "tidelock"
    local nn = tl.nn
    local folder = %q
    local function layer()
      return { nn.residual { nn.rms_norm {}, nn.attention { heads = 4 }, dropout = 0.2 },
        nn.residual { nn.rms_norm {}, nn.moe { experts = 4, top_k = 2, hidden = 16,
          router = "sigmoid", balance = { "bias", speed = 0.01 } } } }
    end
    local sea = tl.data.text { folder .. "/sea*.txt" }
    return tl.recipe { model = nn.decoder { vocab = 256, dim = 32, layers = 2, layer = layer,
        dropout = 0.1 },
      data = tl.data.mix { { 3, sea }, { 1, tl.data.text { folder .. "/land.txt" } } },
      eval = { data = sea, every = 2, samples = 8 },
      batch = { samples = 8, micro = 2, length = 16 }, policy = { "layout", leaves = { dp = 4 } },
      train = { steps = 10, lr = { "cosine", peak = 0.01, warmup = 4 }, clip = 0.5 } }
  ]]

  --- Saves after five steps and is killed by itself.
  local killed = [[
    local core, tl = require "tidelock.core", require "tidelock"
    local run = tl.load(%q):override { %q }:start()
    for _ = 1, 5 do run:step() end
    run:save(%q)
    run:step()
    os.execute("kill -9 " .. core.files.getpid())
  ]]

  --- Bits of `count` steps and of the held-out set after them.
  local function trail(run, count)
    local line = steps(run, count)
    return line .. " " .. run:eval().loss_bits .. " " .. ends(run)
  end

  for _, dtype in ipairs { "f32", "bf16" } do
    it("after 5 of 10 steps has the losses, weights, moments and data of one that went on: " ..
      dtype, function()
      local folder = new_folder()
      for i = 1, 4 do
        folder:write(("sea%d.txt"):format(i), ("Tides come and go %d. "):format(i):rep(3 + i))
      end
      folder:write("land.txt", ("Hills stay. "):rep(15))
      local file = folder:write("tide.lua", tide:format(folder.root))
      local saved_in = folder:path "checkpoints"
      local script = folder:write("killed.lua", killed:format(file, "dtype=" .. dtype, saved_in))
      local _, status = support.run("lua " .. script)
      assert.not_equal(0, status)
      local recipe = tl.load(file):override { "dtype=" .. dtype }
      local straight <close> = recipe:start()
      steps(straight, 5)
      local expected = trail(straight, 5)
      for _, layout in ipairs { {}, { "layout.tp=2", "layout.pp=2", "batch.micro=1" },
        { "layout.dp=4", "layout.ep=2", "layout.experts=modulo" } } do
        local resumed <close> = recipe:override(layout):start { resume = saved_in }
        assert.equal(expected, trail(resumed, 5), table.concat(layout, " "))
      end
      folder:remove()
    end)
  end

  it("goes on from its last finished checkpoint with the same bits", function()
    local folder = new_folder()
    local text, status = support.run("lua tests/support/killed.lua " .. folder.root)
    folder:remove()
    assert.equal(0, status, text)
    contains("equal after every kill", text)
  end)
end)
