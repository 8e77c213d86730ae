local core = require "tidelock.core"
local models = require "support.models"
local support = require "support"
local fields = require "tidelock.model.weights"
local new_folder = require "support.folder"
local where = require "tidelock.language.where"

local function contains(text, message) assert.matches(text, message, 1, true) end
local weights = core.weights

describe("a function of init", function()
  local function message(fn)
    local good, text = pcall(models.start, { weights = { { "embed", init = fn } } })
    assert.is_false(good)
    return tostring(text)
  end

  it("gives numbers", function()
    assert.matches("embed.init: init%(0%) gave nil; a number is wanted", message(function() end))
    assert.matches("embed.init: raised an error that is no text: a table$",
      message(function() error {} end))
  end)
end)

describe("a function of init for a large weight", function()
  local most = where.lines_max
  after_each(function() where.lines_max = most end)

  --- A function whose every call takes some lines, once as many as `loops` says.
  local function tabulate(loops)
    local text = ([[
      return function(i)
        local x = i
        if i == 999 then for _ = 1, %d do
          x = x
        end end
        return x
      end]]):format(loops)
    where.add("init.lua", text)
    local fn = assert(load(text, "@init.lua"))()
    return fields.tabulate({ rows = 1000, cols = 1, site = "a.lua:1", name = "w" }, { fn = fn })
  end

  it("may take as many lines as it likes, but not in one call", function()
    where.lines_max = 1000
    local list = tabulate(10)
    assert.equal(1000, #list)
    assert.equal(999, list[1000])
    assert.has_error(function() tabulate(2000) end)
  end)
end)

describe("weight files", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  --- A file with this header and this data.
  local function raw(header, bytes, length)
    local head = string.pack("<I8", length or #header)
    return folder:write("raw.safetensors", head, header, bytes or "")
  end

  local function failure(path)
    local file, message = weights.open(path)
    assert.is_nil(file)
    contains(path, message)
    return message
  end

  it("give back every tensor, bit for bit", function()
    local path = folder:path "all.safetensors"
    local tensors = {
      ["layers.0.q"] = support.filled("f32", { 3, 5 }, 1),
      ["layers.0.k"] = support.filled("bf16", { 7 }, 2),
      ids = core.tensor("i64", { 2 }, { math.mininteger, 7 }),
      small = core.tensor("u8", { 1, 1, 1, 3 }, { 1, 2, 255 }),
      count = core.tensor("i32", { 1 }, { -3 }),
      none = core.tensor("f32", { 0, 4 }),
    }
    local entries = {}
    for _, name in ipairs { "layers.0.k", "small", "layers.0.q", "ids", "none", "count" } do
      entries[#entries + 1] = { name = name, tensor = tensors[name] }
    end
    weights.write(path, entries, { key = "c4a0", step = "12" })
    local file <close> = assert(weights.open(path))
    assert.same({ "ids", "layers.0.q", "count", "layers.0.k", "small" }, (function()
      local names = {}
      for _, name in ipairs(file:names()) do
        if name ~= "none" then names[#names + 1] = name end
      end
      return names
    end)())
    for name, tensor in pairs(tensors) do
      assert.bits(tensor, file:read(name))
      local _, shape = file:look(name)
      assert.same(tensor:shape(), shape)
    end
    assert.same({ key = "c4a0", step = "12" }, file:metadata())
    assert.is_nil(file:look "absent")
    assert.error_matches(function() file:read "absent" end, "there is no tensor absent")
  end)

  it("are the same bytes every time, and their data is aligned", function()
    local a, b = folder:path "a", folder:path "b"
    local t = support.filled("f32", { 4 }, 3)
    for _, path in ipairs { a, b } do
      weights.write(path, { { name = "x", tensor = t } }, { one = "1", two = "2", three = "3" })
    end
    local text = core.files.read_all(a)
    assert.equal(text, core.files.read_all(b))
    assert.equal(0, (8 + string.unpack("<I8", text)) % 64)
  end)

  it("join the parts of ranks along any dim", function()
    local whole = support.filled("f32", { 4, 6 }, 5)
    local values = whole:to_table()
    local rows = { whole:narrow(1, 1, 1), whole:narrow(1, 2, 3) }
    local columns = {}
    for part = 0, 2 do
      local list = {}
      for row = 1, 4 do list[row] = { values[row][2 * part + 1], values[row][2 * part + 2] } end
      columns[part + 1] = core.tensor("f32", { 4, 2 }, list)
    end
    local path = folder:path "parts"
    weights.write(path, {
      { name = "rows", parts = rows },
      { name = "columns", parts = columns, dim = 2 },
    })
    local file <close> = assert(weights.open(path))
    assert.bits(whole, file:read "rows")
    assert.bits(whole, file:read "columns")
  end)

  it("refuse parts that do not fit, and leave the old file whole", function()
    local path = folder:write("good", "old")
    local a, b = core.tensor("f32", { 2, 3 }), core.tensor("f32", { 2, 4 })
    assert.error_matches(function()
      weights.write(path, { { name = "x", parts = { a, b }, dim = 1 } })
    end, "tensor x: part 1 does not fit")
    assert.error_matches(function()
      weights.write(path, { { name = "x", tensor = a }, { name = "x", tensor = b } })
    end, "tensor x: the name stands twice")
    assert.error_matches(function()
      weights.write(path, { { name = "\xff", tensor = a } })
    end, "not UTF%-8")
    assert.equal("old", core.files.read_all(path))
    assert.same({ "good" }, core.files.list(folder.root))
  end)

  it("are whole after any kill of their writer (H28 j)", function()
    local path, newest = folder:path "x", 0
    local command = ("%s lua tests/support/rewritten.lua %s & echo $!"):format(support.program,
      path)
    --- All numbers of a file are those of one write, or it is none.
    local function written()
      local file <close> = weights.open(path)
      if not file then return 0 end
      local x = file:read "x"
      assert.equal(1 << 18, x:shape()[1])
      local value = x:narrow(1, 1, 1):flat()[1]
      assert.equal(core.tensor("f32", x:shape()):fill(value):hash "x", x:hash "x")
      return value
    end
    for round = 1, 6 do
      local pipe, patience = assert(io.popen(command)), core.files.seconds() + 20
      local pid = pipe:read "n"
      repeat
        core.files.sleep(0.002)
        assert.is_true(core.files.seconds() < patience, "nothing was written within 20 s")
      until written() > newest
      core.files.sleep(0.0007 * round) -- a write takes some 2 ms
      os.execute("kill -9 " .. pid)
      pipe:close()
      newest = written()
      assert.is_true(newest >= round)
    end
  end)

  it("read a single number and names that the header pads", function()
    local header = '{"x":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   '
    local file <close> = assert(weights.open(raw(header, string.pack("<f", 1.5))))
    assert.same({ 1.5 }, file:read("x"):flat())
  end)

  it("name a dtype that can be stored but not computed with", function()
    local header = '{"x":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}'
    local file <close> = assert(weights.open(raw(header, "ab")))
    assert.equal("F16", (file:look "x"))
    assert.error_matches(function() file:read "x" end, "tensor x has dtype F16")
  end)

  it("convert every element of another file's tensor, the last one too", function()
    local t, from, to = support.filled("f32", { 4097 }, 3), folder:path "from", folder:path "to"
    weights.write(from, { { name = "x", tensor = t } })
    local file <close> = assert(weights.open(from))
    weights.write(to, { { name = "x", file = file, entry = "x", dtype = "BF16" } })
    local expected = support.poison("bf16", { 4097 })
    core.call("cast", { t }, { expected }, {})
    local written <close> = assert(weights.open(to))
    assert.bits(expected, written:read "x")
  end)

  describe("that are damaged", function()
    local function entry(name, dtype, shape, first, last)
      local text = '"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'
      return text:format(name, dtype, shape, first, last)
    end
    local function object(...) return "{" .. table.concat({ ... }, ",") .. "}" end
    local function one(...) return object(entry(...)) end

    it("have eight different messages (H28)", function()
      local good = one("x", "F32", "4", 0, 16)
      local two = object(entry("a", "F32", "4", 0, 16), entry("b", "F32", "4", 8, 24))
      local twice = object(entry("a", "F32", "1", 0, 4), entry("a", "F32", "1", 0, 4))
      local huge = one("x", "F32", "8589934592,8589934592", 0, 16)
      local messages = {
        failure(raw(good, ("x"):rep(16), 1 << 63)),
        failure(raw(good, ("x"):rep(15))),
        failure(raw(two, ("x"):rep(24))),
        failure(raw(good, ("x"):rep(19))),
        failure(raw(twice, "1234")),
        failure(raw(one("x", "F7", "4", 0, 16), ("x"):rep(16))),
        failure(raw(huge, ("x"):rep(16))),
        failure(raw("{x", "")),
      }
      local expected = {
        "the header is said to have 9223372036854775808 bytes",
        "tensor x: cut off: it ends at byte 16 of data that has 15",
        "tensor b: begins at byte 8, inside tensor a (to 16)",
        "3 bytes stand after the last tensor",
        "a name stands twice in the header",
        "tensor x: unknown dtype F7",
        "tensor x: the bytes of its shape do not fit into 63 bits",
        "the header is not JSON",
      }
      for i, text in ipairs(expected) do contains(text, messages[i]) end
    end)

    it("are refused for anything else that the format does not allow", function()
      local cases = {
        { "[]", "", "not a JSON object" },
        { '{"x":3}', "", "tensor x: its description is not a JSON object" },
        { '{"x":{"shape":[],"data_offsets":[0,4]}}', "1234", "tensor x: it has no dtype" },
        { '{"x":{"dtype":"U8","data_offsets":[0,4]}}', "1234", "no list called shape" },
        { '{"x":{"dtype":"U8","shape":[4]}}', "1234", "data_offsets are not two integers" },
        { '{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4,5]}}', "1234", "not two integers" },
        { one("x", "U8", "-4", 0, 4), "1234", "not an integer from 0" },
        { one("x", "U8", "1.5", 0, 4), "1234", "not an integer from 0" },
        { one("x", "U8", "4", 4, 0), "1234", "do not rise from 0" },
        { one("x", "U8", "4", -4, 0), "1234", "do not rise from 0" },
        { one("x", "U8", "5", 0, 4), "1234", "its shape needs 5 bytes, its data_offsets give 4" },
        { one("x", "U8", "2", 2, 4), "1234", "begins at byte 2, the one before ends at 0" },
        { one("x", "U8", "1,1,1,1,1,1,1,1,1", 0, 1), "1", "more than 8 dims" },
        { '{"__metadata__":{"a":1}}', "", "not a JSON object of texts" },
      }
      for _, case in ipairs(cases) do
        contains(case[3], failure(raw(case[1], case[2])))
      end
      contains("5 bytes are too short", failure(folder:write("short", "12345")))
      contains("0 bytes are too short", failure(folder:write("empty", "")))
    end)

    it("never crash, whatever byte is wrong", function()
      local path = folder:path "good"
      weights.write(path, { { name = "x", tensor = support.filled("f32", { 3 }, 1) } })
      local text = core.files.read_all(path)
      for i = 1, #text do
        local byte = text:byte(i)
        for _, wrong in ipairs { 0, byte ~ 1, byte ~ 128, 255 } do
          local damaged = text:sub(1, i - 1) .. string.char(wrong) .. text:sub(i + 1)
          local file = weights.open(folder:write("damaged", damaged))
          if file then file:close() end
        end
        assert.is_nil((weights.open(folder:write("damaged", text:sub(1, i - 1)))))
      end
    end)

    it("have no header above 100 MB", function()
      local path = folder:path "wide" -- sparse
      local file = assert(io.open(path, "wb"))
      file:write(string.pack("<I8", 100000001))
      file:seek("set", 8 + 100000001 - 1)
      file:write " "
      file:close()
      contains("the header has 100000001 bytes, more than 100000000", failure(path))
    end)

    it("load a tensor past 4 GiB of a sparse file (H28 d) #slow", function()
      local far = (1 << 32) + 64
      local a = entry("a", "U8", tostring(far), 0, far)
      local header = object(a, entry("b", "F32", "2", far, far + 8))
      local path = folder:path "far"
      local file = assert(io.open(path, "wb"))
      file:write(string.pack("<I8", #header), header)
      file:seek("cur", far)
      file:write(string.pack("<ff", 1.5, -2))
      file:close()
      local opened <close> = assert(weights.open(path))
      assert.same({ 1.5, -2 }, opened:read("b"):flat())
    end)
  end)
end)
