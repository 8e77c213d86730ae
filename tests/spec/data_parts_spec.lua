local core = require "tidelock.core"
local data = require "tidelock.language.data"
local new_folder = require "support.folder"

local function contains(text, message) assert.matches(text, message, 1, true) end

describe("data that is put together", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  local function open(description, length, seed, vocab)
    return data.open(description, { length = length or 4, vocab = vocab or 256, seed = seed or 0 })
  end

  local function failure(f, ...)
    local ok, message = pcall(f, ...)
    assert.is_false(ok)
    return message
  end

  --- A text of `count` bytes, all equal to `letter`.
  local function letters(letter, count)
    return data.text { folder:write(letter .. ".txt", letter:rep(count)) }
  end

  --- The first letters of samples 0 .. count - 1.
  local function heads(source, count, length)
    local tokens, list = source:micro(0, count, 0, count), {}
    for i = 0, count - 1 do list[i + 1] = string.char(tokens[i * length + 1]) end
    return table.concat(list)
  end

  describe("mix", function()
    it("gives whole shares in every cycle, in an order that the seed alone decides", function()
      local mix = data.mix { { 8, letters("a", 400) }, { 2, letters("b", 40) } }
      local orders = {}
      for seed = 1, 3 do
        local source <close> = open(mix, 4, seed)
        local text = heads(source, 200, 4)
        for cycle = 0, 19 do
          local _, count = text:sub(cycle * 10 + 1, cycle * 10 + 10):gsub("b", "")
          assert.equal(2, count)
        end
        orders[seed] = text
      end
      assert.not_equal(orders[1], orders[2])
      local again <close> = open(mix, 4, 1)
      assert.equal(orders[1], heads(again, 200, 4))
    end)

    it("takes each source's own samples one after the other, none twice", function()
      local text = {}
      for i = 0, 59 do text[i + 1] = string.char(i):rep(4) end
      local whole = data.text { folder:write("numbers", table.concat(text)) }
      local source <close> = open(data.mix { { 3, whole }, { 1, letters("z", 40) } }, 4)
      local seen, tokens = {}, source:micro(0, 80, 0, 80)
      for i = 0, 79 do
        local id = tokens[i * 4 + 1]
        if id ~= 122 then
          assert.is_nil(seen[id])
          seen[id] = true
        end
      end
      for id = 0, 59 do assert.is_true(seen[id]) end
    end)

    it("may hold mixtures and counts targets as it gives them", function()
      local inner = data.mix { { 1, letters("a", 50) }, { 1, letters("b", 50) } }
      local source <close> = open(data.mix { { 1, inner }, { 2, letters("c", 50) } }, 4)
      local text = heads(source, 12, 4)
      local _, a = text:gsub("a", "")
      local _, b = text:gsub("b", "")
      local _, c = text:gsub("c", "")
      assert.same({ 2, 2, 8 }, { a, b, c })
      assert.equal(12 * 3, source:targets(0, 12, 0, 12))
    end)

    it("refuses shares that are not whole, and the same files twice", function()
      local a = letters("a", 50)
      contains("data.mix: entry 1: expected { share, source }", failure(data.mix, { { 0.5, a } }))
      contains("data.mix: entry 2: expected { share, source }", failure(data.mix, { { 1, a }, a }))
      contains("read twice", failure(open, data.mix { { 1, a }, { 1, a } }))
    end)
  end)

  describe("split", function()
    local function make(first, last)
      for i = first, last do folder:write(("text_%04d"):format(i), ("%04d"):format(i)) end
    end

    --- The names of the texts of a source; each is its own name and one sample.
    local function members(description)
      local source <close> = open(description, 4)
      local count, list = source:about().documents, {}
      for i = 0, count - 1 do
        local tokens = source:micro(0, count, i, 1)
        list[string.char(table.unpack(tokens))] = true
      end
      return list, count
    end

    it("deals every document to one side, near the fraction", function()
      make(1, 400)
      local train, held = data.text({ folder:path "text_*" }):split(0.75)
      local first, first_count = members(train)
      local second, second_count = members(held)
      assert.equal(400, first_count + second_count)
      for name in pairs(first) do assert.is_nil(second[name]) end
      assert.is_true(first_count > 265 and first_count < 335)
    end)

    it("moves nothing when files are added or renamed", function()
      make(100, 200)
      local description = data.text { folder:path "text_*" }
      local before, _ = members((description:split(0.5)))
      make(1, 99)
      make(201, 300)
      os.rename(folder:path "text_0150", folder:path "text_zzzz")
      local after, _ = members((description:split(0.5)))
      for i = 100, 200 do
        local name = ("%04d"):format(i)
        assert.equal(before[name], after[name])
      end
    end)

    it("can be split again, evenly, and goes through a mixture", function()
      make(1, 400)
      local train = data.text({ folder:path "text_*" }):split(0.5)
      local _, all = members(train)
      local first, rest = train:split(0.5)
      local _, first_count = members(first)
      local _, rest_count = members(rest)
      assert.equal(all, first_count + rest_count)
      assert.is_true(math.abs(first_count - all / 2) < 40)
      local left, right = data.mix({ { 1, data.text { folder:path "text_*" } } }):split(0.5)
      local a <close> = open(left)
      local b <close> = open(right)
      assert.equal(400, a:about().documents + b:about().documents)
      assert.equal(all, a:about().documents)
    end)

    it("refuses what cannot be dealt", function()
      local text = letters("a", 50)
      contains("expected a fraction between 0 and 1, got 1", failure(text.split, text, 1))
      local given = data.given { { tokens = { 1, 2 } } }
      contains("given samples have no documents", failure(given.split, given, 0.5))
    end)
  end)

  describe("given", function()
    it("gives its samples in order, with targets and segments as written", function()
      local source <close> = open(data.given {
        { tokens = { 1, 2, 3, 4 } },
        { tokens = { 5, 6, 7, 8 }, cu_seqlens = { 0, 0, 1, 4 } },
        { tokens = { 9, 9, 9, 9 }, targets = { -1, 3, -1, -1 } },
      })
      local tokens, targets, cu = source:micro(0, 4, 0, 4)
      assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 1, 2, 3, 4 }, tokens)
      assert.same({ 2, 3, 4, -1, -1, 7, 8, -1, -1, 3, -1, -1, 2, 3, 4, -1 }, targets)
      assert.same({ 0, 4, 4, 5, 8, 12, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16 }, cu)
      assert.equal(3 + 2 + 1 + 3, source:targets(0, 4, 0, 4))
      assert.equal(1, source:targets(1, 4, 1, 1))
    end)

    it("refuses bad segments and ids with entry and value (H14)", function()
      local function message(sample) return failure(open, data.given { sample }, 10) end
      local tokens = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }
      contains("cu_seqlens: entry 0 is 1, must be 0",
        message { tokens = tokens, cu_seqlens = { 1, 5, 9 } })
      contains("cu_seqlens: entry 2 is 4, less than 5",
        message { tokens = tokens, cu_seqlens = { 0, 5, 4 } })
      contains("cu_seqlens: entry 2 is 12, but there are 10 rows",
        message { tokens = tokens, cu_seqlens = { 0, 5, 12 } })
      contains("cu_seqlens: entry 1 is 9, but there are 10 rows",
        message { tokens = tokens, cu_seqlens = { 0, 9 } })
      contains("cu_seqlens: 1 entries", message { tokens = tokens, cu_seqlens = { 0 } })
      contains("sample 0 has 2 tokens, batch.length is 10", message { tokens = { 1, 2 } })
      contains("sample 0 has 1 targets", message { tokens = tokens, targets = { 1 } })
      contains("sample 0: token -1 at position 1, but vocab is 256",
        failure(open, data.given { { tokens = { 1, -1, 2 } } }, 3))
      local wrong = { tokens = { 1, 1, 2 }, targets = { 0, 256, 0 } }
      contains("sample 0: target 256 at position 1, but vocab is 256",
        failure(open, data.given { wrong }, 3))
    end)
  end)

  describe("fingerprint", function()
    it("of a long file is that of its bytes at once, though it is read in pieces", function()
      for _, bytes in ipairs { 1, 65535, 65536, 65537, 200001 } do
        local text = ("0123456789abc"):rep(bytes // 13 + 1):sub(1, bytes)
        local source <close> = open(data.text { folder:write("long", text) }, 1)
        assert.equal(("%016x"):format(core.mix64(1 + core.hash_int(text))), source:fingerprint())
      end
    end)

    local function print_of(description, length, seed)
      local source <close> = open(description, length, seed)
      return source:fingerprint()
    end

    it("is the content and its order, and nothing else", function()
      local a, b = folder:write("a", "some text"), folder:write("b", "other text")
      local base = print_of(data.text { a, b })
      assert.matches("^%x+$", base)
      assert.equal(base, print_of(data.text { a, b }, 5, 9))
      local c = folder:write("c", "some text")
      assert.equal(base, print_of(data.text { c, b }))
      assert.not_equal(base, print_of(data.text { b, a }))
      assert.not_equal(base, print_of(data.text { a }))
      local changed = folder:write("a", "some Text")
      assert.not_equal(base, print_of(data.text { changed, b }))
    end)

    it("tells parts, shares and given samples apart", function()
      for i = 1, 20 do folder:write("t" .. i, ("text %d"):format(i)) end
      local all = data.text { folder:path "t*" }
      local train, held = all:split(0.5)
      local prints = {
        print_of(all),
        print_of(train),
        print_of(held),
        print_of(data.mix { { 1, train }, { 1, held } }),
        print_of(data.mix { { 2, train }, { 1, held } }),
        print_of(data.given { { tokens = { 1, 2, 3, 4 } } }),
        print_of(data.given { { tokens = { 1, 2, 3, 4 }, targets = { 2, -1, 4, -1 } } }),
        print_of(data.given { { tokens = { 1, 2, 3, 4 }, cu_seqlens = { 0, 2, 4 } } }),
      }
      local seen = {}
      for _, print in ipairs(prints) do
        assert.is_nil(seen[print])
        seen[print] = true
      end
    end)
  end)

  it("asks for no more than a batch has", function()
    local source <close> = open(letters("a", 50))
    local tokens, message = source:micro(0, 4, 3, 2)
    assert.is_nil(tokens)
    assert.matches("samples 3 .. 4 of a batch of 4", message)
    assert.equal(0, #core.files.glob(folder:path "*.tmp-*"))
  end)
end)
