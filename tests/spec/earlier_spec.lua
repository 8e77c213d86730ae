-- Weights that start from those of an earlier run, in one file or cut into several.
local checkpoint = require "tidelock.run.checkpoint"
local core = require "tidelock.core"
local models = require "support.models"
local new_folder = require "support.folder"

describe("an earlier checkpoint", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  it("is started from whole, and all of its bytes are in the key, in however many files", function()
    local other <close> = models.start {}
    other:step()
    local written = checkpoint.start(other, folder.root, { file_bytes_max = 20000 })
    written.saver:wait()
    written.saver:close()
    local path = written.folder
    local from = { weights = { { "*", from = path } } }
    local cut <close> = models.start(from)
    assert.equal(other:weights_hash(), cut:weights_hash())
    local function key_now()
      local run <close> = models.start(from)
      return run.plan.key
    end
    local key, last = cut.plan.key, nil
    for _, name in ipairs(core.files.list(path)) do
      last = name:find "^weights%-" and path .. "/" .. name or last
    end
    local bytes = core.files.read_all(last)
    core.files.write_atomic(last, bytes:sub(1, -2) .. string.char(bytes:byte(-1) ~ 1))
    assert.are_not.equal(key, key_now())
    core.files.write_atomic(last, bytes)
    assert.equal(key, key_now())
    os.remove(last)
    local good, message = pcall(models.start, from)
    assert.is_false(good)
    assert.matches("which belongs to the weights there", message)
  end)
end)
