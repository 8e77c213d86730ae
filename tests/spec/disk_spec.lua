-- What has to be on the disk before what: a name that lasts has bytes that last, and a checkpoint
-- that could not be written whole is none.
local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local new_folder = require "support.folder"
local support = require "support"

local library = support.program:gsub("[^/]*$", "support/libraries/libsyncs.so")

describe("the disk", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  --- fsync and rename of a script, in their order; paths without the folder and without what is
  --- another one in each process.
  local function order_of(script)
    local path, log = folder:write("script.lua", script), folder:path "syncs"
    local text, status = support.run(("lua %s %s"):format(path, folder.root), nil,
      ("TL_SYNCS=%s LD_PRELOAD=%s "):format(log, library))
    assert.equal(0, status, text)
    local list, root = {}, core.files.realpath(folder.root)
    for line in io.lines(log) do
      local at = line:find(root, 1, true)
      if at then
        local rest = line:sub(at + #root):gsub("^/", ""):gsub("%.tmp%-%d+%-%d+$", ".tmp")
        list[#list + 1] = line:sub(1, at - 1) .. (rest == "" and "." or rest)
      end
    end
    return list
  end

  local function pending_with_sanitizer(name, fn)
    it(name, function()
      if core.build().sanitizer ~= "none" then pending "a sanitizer has to be loaded first" end
      fn()
    end)
  end

  pending_with_sanitizer("has the bytes of a file before its name, then the name", function()
    assert.same({ "fsync a.txt.tmp", "rename a.txt", "fsync ." }, order_of [[
      local core = require "tidelock.core"
      core.files.write_atomic(arg[1] .. "/a.txt", "text")
    ]])
  end)

  pending_with_sanitizer("has each line that is appended, and a new file's name", function()
    assert.same({ "fsync b.jsonl", "fsync .", "fsync b.jsonl" }, order_of [[
      local core = require "tidelock.core"
      core.files.append(arg[1] .. "/b.jsonl", "one\n")
      core.files.append(arg[1] .. "/b.jsonl", "two\n")
    ]])
  end)

  pending_with_sanitizer("has all of a checkpoint before the checkpoint's name", function()
    local list = order_of [[
      local core = require "tidelock.core"
      local tensor = core.tensor("f32", { 2 }, { 1, 2 })
      local saver = core.saver(arg[1] .. "/step-1", { { name = "w.safetensors",
        tensors = { { name = "w", tensor = tensor } }, metadata = {} } },
        { { name = "state.json", text = "{}" } })
      saver:wait()
      saver:close()
    ]]
    assert.same({
      "fsync step-1.tmp/w.safetensors.tmp", "rename step-1.tmp/w.safetensors", "fsync step-1.tmp",
      "fsync step-1.tmp/state.json.tmp", "rename step-1.tmp/state.json", "fsync step-1.tmp",
      "fsync .", "rename step-1", "fsync .",
    }, list)
  end)

  it("loses the state of a checkpoint that goes before its tensors", function()
    local dir, remove, gone = folder:path "step-00000001", os.remove, {}
    core.files.mkdirs(dir)
    for _, name in ipairs { "optimizer.safetensors", "state.json", "weights.safetensors" } do
      folder:write("step-00000001/" .. name, "{}")
    end
    rawset(os, "remove", function(path)
      gone[#gone + 1] = path:match "[^/]*$"
      return remove(path)
    end)
    local good, message = pcall(checkpoint.remove, dir)
    rawset(os, "remove", remove)
    assert.is_true(good, message)
    assert.equal("state.json", gone[1])
    assert.is_false(core.files.exists(dir))
  end)

  it("holds no checkpoint before its folder has its name, state or not", function()
    core.files.mkdirs(folder:path "step-00000002.tmp")
    folder:write("step-00000002.tmp/state.json", "{}")
    core.files.mkdirs(folder:path "step-00000003")
    local steps, unfinished = checkpoint.list(folder.root)
    assert.same({}, steps)
    assert.same({ "step-00000002.tmp", "step-00000003" }, unfinished)
  end)

  it("holds no checkpoint of which a file could not be written", function()
    local tensor = core.tensor("f32", { 2 }, { 1, 2 })
    for _, name in ipairs { "none/w.safetensors", "w.safetensors" } do
      local target = folder:path(name == "w.safetensors" and "good" or "bad")
      local saver = core.saver(target, { { name = name, tensors = { { name = "w",
        tensor = tensor } }, metadata = {} } }, { { name = "state.json", text = "{}" } })
      local good, message = pcall(saver.wait, saver)
      saver:close()
      assert.equal(name == "w.safetensors", good, message)
      assert.equal(good, core.files.exists(target))
      assert.is_false(core.files.exists(target .. ".tmp"))
    end
  end)
end)
