-- docs/add-an-op.md, followed to the letter in a copy of the tree.
local core = require "tidelock.core"
local new_folder = require "support.folder"

local page = core.files.read_all "docs/add-an-op.md"

--- Steps of the page: { kind, path, anchor, text }, from the line before each block of code.
local function steps()
  local list = {}
  for before, text in page:gmatch "\n([^\n]+)\n\n```%l+\n(.-)```\n" do
    local new = before:match "^New file `([^`]+)`:$"
    local path, where, anchor = before:match "^In `([^`]+)`, (%l+) the line that begins `(.+)`:$"
    if new then
      list[#list + 1] = { kind = "new", path = new, text = text }
    elseif path then
      list[#list + 1] = { kind = where, path = path, anchor = anchor, text = text }
    else
      assert.matches("^Then run.*:$", before)
      list[#list + 1] = { kind = "run", text = text }
    end
  end
  return list
end

--- The text with `part` before or behind its line that begins with `anchor`.
local function inserted(text, step)
  local out, found = {}, 0
  for line in text:gmatch "([^\n]*)\n" do
    local here = line:sub(1, #step.anchor) == step.anchor
    found = found + (here and 1 or 0)
    if here and step.kind == "before" then out[#out + 1] = step.text:sub(1, -2) end
    out[#out + 1] = line
    if here and step.kind == "behind" then out[#out + 1] = step.text:sub(1, -2) end
  end
  assert.equal(1, found, step.path .. ": lines that begin " .. step.anchor)
  return table.concat(out, "\n") .. "\n"
end

describe("the guide to a new operator", function()
  it("has blocks of every kind, and commands behind them", function()
    local counts = {}
    for _, step in ipairs(steps()) do counts[step.kind] = (counts[step.kind] or 0) + 1 end
    assert.same({ new = 4, behind = 2, before = 2, run = 2 }, counts)
    assert.equal(10, select(2, page:gsub("\n```%l+\n", "")))
  end)

  it("works when it is followed #slow", function()
    if not os.execute "command -v cmake >/dev/null && command -v cc >/dev/null" then
      return pending "no compiler here"
    end
    local folder = new_folder()
    local root = folder.root
    assert.is_true(os.execute("cp -r CMakeLists.txt LICENSE README.md .busted tl cmake docs "
      .. "kernels lua recipes runtime tests " .. root))
    for _, step in ipairs(steps()) do
      local path = root .. "/" .. (step.path or "")
      if step.kind == "new" then
        core.files.mkdirs((path:gsub("/[^/]+$", "")))
        core.files.write_atomic(path, step.text)
      elseif step.kind ~= "run" then
        core.files.write_atomic(path, inserted(core.files.read_all(path), step))
      else
        local pipe = assert(io.popen(("cd %s && env -u TIDELOCK -u TIDELOCK_LUA -u TL_BUILD "
          .. "-u TL_SANITIZE TL_CUDA=off TL_MPI=off sh -e -c '%s' 2>&1"):format(root, step.text)))
        local text = pipe:read "a"
        local _, _, status = pipe:close()
        assert.equal(0, status, text)
        if step.text:find("./tl run", 1, true) then
          assert.matches("bits +equal to runs/squareplus%-%x+: 3 losses", text)
          assert.matches(" 0 differ", text)
        else
          assert.matches("\n%d+ passed, 0 failed", text)
        end
      end
    end
    os.execute("rm -r -f " .. root)
  end)
end)
