-- The folder of a run repeats the run, or says what has become another.
local core = require "tidelock.core"
local key = require "tidelock.language.key"
local new_folder = require "support.folder"
local support = require "support"

local base = [[
  local tl = require "tidelock"
  local nn = tl.nn
  local width = require "width"
  local p = tl.params { layers = 1 }
  return tl.recipe {
    model = nn.decoder { vocab = 256, dim = width, layers = p.layers, layer = function()
      return { nn.residual { nn.rms_norm {}, nn.attention { heads = 4 } } }
    end },
    data = tl.data.text { "%s" },
    batch = { samples = 4, length = 16 },
    train = { steps = 2, lr = 1e-3 },
  }]]

describe("the folder of a run", function()
  local folder, made

  local function run(words)
    return support.run(("run %s --quiet --runs %s"):format(words, folder:path "runs"))
  end

  local function has(text, part)
    assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
  end

  before_each(function()
    folder = new_folder()
    local text = folder:write("text.txt", ("a text of some words, again and again; "):rep(20))
    folder:write("width.lua", "return 16")
    folder:write("base.lua", base:format(text))
    folder:write("fork.lua", 'local tl = require "tidelock"\n'
      .. 'return tl.load "base.lua":with { ["train.clip"] = 1.0 }:over("layers", { 1, 2 })')
    local said, status = run(folder:path "fork.lua"
      .. " --point 2 'layout={ tp = 2, stages = { 2 } }' policy.seed=3")
    assert.equal(0, status, said)
    made = folder:path("runs/" .. core.files.list(folder:path "runs")[1])
  end)
  after_each(function() folder:remove() end)

  it("repeats it when the recipe's files are gone, with a point, knobs and overrides", function()
    for _, name in ipairs { "base.lua", "fork.lua", "width.lua" } do
      os.remove(folder:path(name))
    end
    local text, status = support.run("run " .. made .. " --quiet")
    assert.equal(0, status, text)
    has(text, ("equal to %s: 2 losses, 2 gradient norms, weights "):format(made))
    text, status = support.run("run " .. made .. " --quiet layout.tp=1")
    assert.equal(0, status, text)
    has(text, "equal to " .. made)
    text, status = support.run("explain " .. made .. " --stage check")
    assert.equal(0, status, text)
    has(text, "policy.seed = 3")
  end)

  it("notes another key where overrides ask for one", function()
    local text, status = support.run("run " .. made .. " --quiet policy.seed=4")
    assert.equal(0, status, text)
    has(text, "another key than " .. made)
  end)

  it("names the file of the data that is another one", function()
    folder:write("text.txt", ("a text of some words, again and again, "):rep(20))
    local text, status = support.run("run " .. made .. " --quiet")
    assert.equal(2, status, text)
    has(text, "data: " .. folder:path "text.txt" .. " has other bytes: 780 | 780, hash ")
    has(text, "nothing was started")
  end)

  it("names the contract that is another one", function()
    local path = made .. "/origin.json"
    local origin = core.json.decode(core.files.read_all(path))
    origin.contracts, origin.key = key.contracts - 1, ("0"):rep(16)
    core.files.write_atomic(path, core.json.encode(origin))
    local text, status = support.run("run " .. made .. " --quiet")
    assert.equal(2, status, text)
    has(text, ("contracts: version %d | %d (program "):format(key.contracts - 1, key.contracts))
    has(text, "; other results: ")
  end)

  it("that is damaged, or of another version, says so", function()
    local path = made .. "/origin.json"
    core.files.write_atomic(path, "{")
    has(support.run("run " .. made), "origin.json is damaged")
    core.files.write_atomic(path, '{"version":9,"sources":[{"path":"a","text":""}]}')
    has(support.run("run " .. made), "has version 9; this program reads version 1")
  end)
end)
