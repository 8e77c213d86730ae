-- The scripts that compare requests on a GPU with the host run here, too, host beside host, with
-- nothing around them but tests/gpu and tests/support; and they see what differs.
local core = require "tidelock.core"
local new_folder = require "support.folder"
local support = require "support"

describe("requests on a device beside the host", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  --- Runs a script of tests/gpu from a copy of what travels with it; text and exit status.
  local function run(words)
    core.files.mkdirs(folder:path "tests")
    assert(os.execute(("cp -r tests/gpu tests/support %s"):format(folder:path "tests")))
    return support.run("lua " .. folder:path "tests/gpu/" .. words)
  end

  for _, words in ipairs { "serve.lua host", "few.lua host 'chunks of 7'" } do
    it("are equal where the host is the device: " .. words, function()
      local text, status = run(words)
      assert.equal(0, status, text)
      assert.matches("\n%d+ passed, 0 failed\n$", text)
      assert.not_matches("\n0 passed", text)
    end)
  end

  it("are counted, and told where they differ", function()
    local path = folder:write("planted.lua", [[
      package.path = "tests/?.lua;" .. package.path
      local beside = require "support.beside"
      beside.compare("same", { "0:5 3f800000" }, { "0:5 3f800000" })
      beside.compare("bit", { "1:1 a", "0:5 3f800000" }, { "1:1 a", "0:5 3f800001" })
      beside.compare("short", { "0:5 3f800000" }, {})
      beside.finish()
    ]])
    local text, status = support.run("lua " .. path)
    assert.equal(1, status)
    assert.equal("bit: request 2 differs\n  host 0:5 3f800000\n  here 0:5 3f800001\n"
      .. "short: request 1 differs\n  host 0:5 3f800000\n  here nothing\n"
      .. "1 passed, 2 failed\n", text)
  end)
end)
