-- Other machines: the container's recipe has the packages of ./tl, systems that are not Linux get a
-- plain answer, the build for aarch64 takes what ./tl asks for.
local core = require "tidelock.core"
local new_folder = require "support.folder"

if not core.files.exists "Containerfile" then -- a bundle: its ./tl installs nothing
  describe("other machines", function()
    it("are a matter of the source tree", function() pending "no source tree here" end)
  end)
  return
end

local function sorted_words(text)
  local words = {}
  for word in text:gmatch "[^%s\\]+" do words[#words + 1] = word end
  table.sort(words)
  return words
end

--- The packages of every `need` of ./tl whose first word is one of `firsts`.
local function needed(firsts)
  local text, all = core.files.read_all("tl"):gsub("\\\n", " "), {}
  for line in text:gmatch "\n%s+need ([^\n]+)" do
    for _, first in ipairs(firsts) do
      if line:match "^%S+" == first then all[#all + 1] = line end
    end
  end
  assert.equal(#firsts, #all)
  return table.concat(all, " ")
end

local function installed_in_container()
  local text = core.files.read_all "Containerfile":gsub("\\\n", " ")
  return (text:match "apt%-get install %-y %-%-no%-install%-recommends (.-)&&")
end

describe("the Containerfile", function()
  it("installs what ./tl asks for, and no other package", function()
    assert.same(sorted_words(needed { "cmake", "lua5.4" }), sorted_words(installed_in_container()))
  end)

  it("builds in its last step and starts ./tl", function()
    local text = core.files.read_all "Containerfile"
    for _, line in ipairs { "COPY . /opt/tidelock", "RUN ./tl version",
      'ENTRYPOINT ["/opt/tidelock/tl"]' } do
      assert.is_truthy(text:find("\n" .. line .. "\n", 1, true), line)
    end
    for path in core.files.read_all ".containerignore":gmatch "[^\n]+" do
      assert.is_true(path == "build*" or path == "runs" or path == ".git", path)
    end
  end)
end)

describe("./tl", function()
  it("on another system than Linux says what to do", function()
    local folder = new_folder()
    local path = folder:write("uname", "#!/bin/sh\necho Darwin\n")
    os.execute("chmod +x " .. path)
    local pipe = io.popen(("PATH=%s:$PATH ./tl help 2>&1"):format(folder.root))
    local text = pipe:read "a"
    local _, _, status = pipe:close()
    folder:remove()
    assert.equal(1, status)
    assert.matches("this needs Linux", text)
    assert.matches("podman build %-t tidelock", text)
  end)
end)

describe("the build for aarch64", function()
  it("fetches every library that ./tl asks for", function()
    local script = core.files.read_all ".ci/aarch64"
    local command = script:match "libraries=%$%((.-%^lib%.%*%-dev%$')"
    local pipe = assert(io.popen((command:gsub("\\\n", " "))))
    local found = sorted_words(pipe:read "a")
    pipe:close()
    local wanted = {}
    for _, word in ipairs(sorted_words(needed { "cmake" })) do
      if word:find "^lib.*%-dev$" then wanted[#wanted + 1] = word end
    end
    assert.same(wanted, found)
  end)

  it("is compared with the golden bits by a script that fails on others", function()
    local folder = new_folder()
    local program = os.getenv "TIDELOCK" or "build/tidelock"
    local _, _, status = os.execute(program .. " lua tests/golden/check.lua 1 >/dev/null")
    assert.equal(0, status)
    local text = core.files.read_all "tests/golden/check.lua":gsub('"f32"', '"bf16"', 1)
    _, _, status = os.execute(("%s lua %s 1 >/dev/null"):format(program,
      folder:write("check.lua", text)))
    folder:remove()
    assert.equal(1, status)
  end)
end)
