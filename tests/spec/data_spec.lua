local core = require "tidelock.core"
local data = require "tidelock.language.data"
local new_folder = require "support.folder"

local function contains(text, message) assert.matches(text, message, 1, true) end

--- What runtime/data.h and data_order.h say, written again from their text alone.
local reference = {}

function reference.order(seed, name, turn, count, i)
  local half = 1
  while 1 << 2 * half < count do half = half + 1 end
  local mask, x = (1 << half) - 1, i
  repeat
    local left, right = x >> half, x & mask
    for round = 0, 5 do
      local word = core.random_words(seed, core.hash_int(name), round << 32 | right, turn)
      left, right = right, left ~ word & mask
    end
    x = left << half | right
  until x < count
  return x
end

--- Tokens, targets and segment starts of running sample g; documents are lists of tokens.
function reference.sample(documents, seed, length, g)
  local stream, starts = {}, {}
  for slot = 0, #documents - 1 do
    local document = documents[reference.order(seed, "data/documents", 0, #documents, slot) + 1]
    starts[#stream] = true
    for _, id in ipairs(document) do stream[#stream + 1] = id end
  end
  local count = #stream // length
  local first = reference.order(seed, "data/samples", g // count, count, g % count) * length
  local tokens, targets, cu = {}, {}, { 0 }
  for t = 0, length - 1 do
    tokens[t + 1] = stream[first + t + 1]
    if t > 0 and starts[first + t] then cu[#cu + 1] = t end
    local last = t == length - 1 or starts[first + t + 1]
    targets[t + 1] = last and -1 or stream[first + t + 2]
  end
  cu[#cu + 1] = length
  return tokens, targets, cu
end

local function bytes_of(text) return { text:byte(1, -1) } end

local function count_targets(targets)
  local count = 0
  for _, target in ipairs(targets) do count = count + (target >= 0 and 1 or 0) end
  return count
end

--- `count` texts of different lengths and contents.
local function make_texts(count, first)
  local texts = {}
  for i = 1, count do
    local n = (first or 0) + i
    texts[i] = ("%d:"):format(n) .. ("text %d, "):format(n * n):rep(1 + n * 7 % 5)
  end
  return texts
end

describe("data", function()
  local folder, texts

  before_each(function()
    folder = new_folder()
    texts = make_texts(9)
    for i, text in ipairs(texts) do folder:write(("text_%d.txt"):format(i), text) end
  end)
  after_each(function() folder:remove() end)

  local function open(description, options)
    options = options or {}
    return data.open(description, {
      length = options.length or 16,
      vocab = options.vocab or 256,
      seed = options.seed or 0,
    })
  end

  local function failure(f, ...)
    local ok, message = pcall(f, ...)
    assert.is_false(ok)
    return message
  end

  local function all_texts() return data.text { folder:path "text_*.txt" } end

  describe("order", function()
    it("visits every place once, whatever the count", function()
      for _, count in ipairs { 1, 2, 3, 4, 5, 16, 17, 64, 65, 1000 } do
        local seen = {}
        for i = 0, count - 1 do
          local place = core.data.order(7, "data/samples", 3, count, i)
          assert.is_nil(seen[place])
          assert.is_true(place >= 0 and place < count)
          assert.equal(reference.order(7, "data/samples", 3, count, i), place)
          seen[place] = true
        end
      end
    end)

    it("differs by seed, name and turn, and reaches far", function()
      local function list(seed, name, turn)
        local places = {}
        for i = 0, 63 do places[#places + 1] = core.data.order(seed, name, turn, 1 << 50, i) end
        return table.concat(places, " ")
      end
      local base = list(1, "a", 0)
      assert.equal(base, list(1, "a", 0))
      assert.not_equal(base, list(2, "a", 0))
      assert.not_equal(base, list(1, "b", 0))
      assert.not_equal(base, list(1, "a", 1))
    end)
  end)

  describe("text", function()
    it("holds what its page says, sample for sample over three epochs", function()
      local documents = {}
      for i, text in ipairs(texts) do documents[i] = bytes_of(text) end
      for seed = 0, 2 do
        local source <close> = open(all_texts(), { seed = seed })
        local samples = source:about().samples_per_epoch
        for g = 0, 3 * samples - 1 do
          local tokens, targets, cu = source:micro(g, 1, 0, 1)
          local want_tokens, want_targets, want_cu = reference.sample(documents, seed, 16, g)
          while #want_cu < 17 do want_cu[#want_cu + 1] = 16 end
          assert.same(want_tokens, tokens)
          assert.same(want_targets, targets)
          assert.same(want_cu, cu)
        end
      end
    end)

    it("gives the same samples to every split into steps, ranks and micro-batches", function()
      local source <close> = open(all_texts())
      local tokens, targets, cu = source:micro(2, 8, 0, 8)
      for _, micro in ipairs { 1, 2, 4 } do
        local got_tokens, got_targets, got_cu = {}, {}, { 0 }
        for first = 0, 7, micro do
          local a, b, c = source:micro(2, 8, first, micro)
          table.move(a, 1, #a, #got_tokens + 1, got_tokens)
          table.move(b, 1, #b, #got_targets + 1, got_targets)
          for i = 2, #c do
            if c[i] > c[i - 1] then got_cu[#got_cu + 1] = first * 16 + c[i] end
          end
        end
        while #got_cu < #cu do got_cu[#got_cu + 1] = 128 end
        assert.same(tokens, got_tokens)
        assert.same(targets, got_targets)
        assert.same(cu, got_cu)
      end
      assert.same({ source:micro(0, 24, 16, 8) }, { tokens, targets, cu })
    end)

    it("takes every sample once in an epoch, each epoch in another order", function()
      local source <close> = open(all_texts(), { length = 4 })
      local samples, orders = source:about().samples_per_epoch, {}
      local epochs = {}
      for epoch = 0, 2 do
        local list = {}
        for i = 0, samples - 1 do
          local tokens = source:micro(epoch, samples, i, 1)
          list[#list + 1] = table.concat(tokens, ",")
        end
        orders[epoch] = table.concat(list, " ")
        table.sort(list)
        epochs[epoch] = table.concat(list, " ")
      end
      assert.equal(epochs[0], epochs[1])
      assert.equal(epochs[0], epochs[2])
      assert.not_equal(orders[0], orders[1])
      assert.not_equal(orders[1], orders[2])
    end)

    it("differs by seed", function()
      local a <close> = open(all_texts(), { seed = 1 })
      local b <close> = open(all_texts(), { seed = 2 })
      local first, second = a:micro(0, 4, 0, 4), b:micro(0, 4, 0, 4)
      assert.not_same(first, second)
    end)

    it("counts targets without reading tokens", function()
      local source <close> = open(all_texts(), { length = 5 })
      for step = 0, 20 do
        local _, targets = source:micro(step, 6, 1, 4)
        assert.equal(count_targets(targets), source:targets(step, 6, 1, 4))
      end
    end)

    it("drops the tail that is shorter than a sample", function()
      local path = folder:write("tail", ("x"):rep(35))
      local source <close> = open(data.text { path })
      assert.equal(2, source:about().samples_per_epoch)
      assert.equal(35, source:about().tokens)
    end)

    it("counts its tables as memory of kind data, and gives them back", function()
      local before = core.memory().data.current
      local source = open(all_texts())
      assert.is_true(core.memory().data.current >= before + 9 * 16)
      source:close()
      assert.equal(before, core.memory().data.current)
      source:close()
      assert.has_error(function() source:about() end)
    end)

    it("expands patterns in bytewise order", function()
      for _, name in ipairs { "b_B", "b_a", "b_1", "b__" } do folder:write(name, ("z"):rep(9)) end
      local source, notes = open(data.text { folder:path "b_*", folder:path "text_1.txt" })
      source:close()
      local names = {}
      for i, path in ipairs(notes.files) do names[i] = path:match "[^/]*$" end
      assert.same({ "b_1", "b_B", "b__", "b_a", "text_1.txt" }, names)
    end)

    it("names all files that are missing, empty or read twice, with the recipe line", function()
      local empty = folder:write("empty.txt", "")
      os.execute(("ln -s text_1.txt %s"):format(folder:path "link.txt"))
      local description = data.text {
        folder:path "nothing.txt",
        folder:path "*.nothing",
        empty,
        folder:path "text_1.txt",
        folder:path "link.txt",
      }
      description.site = "recipe.lua:7"
      local message = failure(open, description)
      local _, lines = message:gsub("recipe.lua:7: data.text: ", "")
      assert.equal(4, lines)
      contains("nothing.txt: there is no such file", message)
      contains("*.nothing: no file matches this pattern", message)
      contains("empty.txt: the file is empty (0 bytes)", message)
      contains("link.txt: read twice: it is the same file as " .. folder:path "text_1.txt", message)
      contains("; leave one of the two names out", message)
    end)

    it("reads a file that a pattern matches by several names once, and says so", function()
      os.execute(("ln -s text_2.txt %s"):format(folder:path "text_20.txt"))
      os.execute(("ln %s %s"):format(folder:path "text_9.txt", folder:path "text_99.txt"))
      local source <close>, notes = open(all_texts())
      assert.equal(10, #notes.files) -- a hard link is another file with the same text
      assert.same({ "data.text: a name leads to a file that is read already and is left out: "
        .. "text_20.txt (text_2.txt)" }, notes.warnings)
      local named <close> = open(data.text { folder:path "text_?.txt", folder:path "text_99.txt" })
      assert.equal(named:fingerprint(), source:fingerprint())
    end)

    it("refuses a folder and data that are shorter than a sample, with the numbers", function()
      contains("a folder, not a file; " .. folder.root .. "/* is the files in it",
        failure(open, data.text { folder.root }))
      local message = failure(open, data.text { folder:path "text_1.txt" }, { length = 1000 })
      contains(#texts[1] .. " tokens in 1 document are less than one sample of 1000 tokens;",
        message)
    end)

    it("names file, position, byte and what fits when the vocabulary is too small", function()
      local one = "\1"
      local path = folder:write("bytes.bin", one:rep(20) .. "\200" .. one:rep(10) .. "\201")
      contains("nn.decoder.vocab: vocab 100 is too small for " .. path, failure(open,
        data.text { path }, { length = 32, vocab = 100 }))
      contains("byte 200 at position 20; try vocab = 202, above the largest here, or 256, which "
        .. "holds any byte", failure(open, data.text { path }, { length = 32, vocab = 200 }))
      open(data.text { path }, { length = 32, vocab = 202 }):close()
    end)

    it("looks only at documents that take part", function()
      folder:write("text_1.txt", ("\250"):rep(64))
      local train, held = all_texts():split(0.5)
      local function good(part) return (pcall(open, part, { vocab = 128 })) end
      assert.is_true(good(train) ~= good(held))
    end)

    it("refuses a byte that came into a file after it was opened", function()
      local path = folder:write("bytes.bin", ("\1"):rep(32))
      local source <close> = open(data.text { path }, { length = 32, vocab = 100 })
      local file = assert(io.open(path, "r+b"))
      file:seek("set", 20)
      file:write "\200"
      file:close()
      local tokens, message = source:micro(0, 1, 0, 1)
      assert.is_nil(tokens)
      contains("bytes.bin: token 200 at position 20, but vocab is 100", message)
    end)

    it("says when a text is not the pinned one", function()
      local one, two = folder:path "text_1.txt", folder:path "text_2.txt"
      local right, wrong = core.files.sha256(one), ("0"):rep(64)
      local source, notes = open(data.text { one, two, sha256 = { right, wrong } })
      source:close()
      assert.equal(1, notes.pinned)
      assert.equal(1, #notes.warnings)
      contains("text_2.txt: not the pinned text", notes.warnings[1])
      contains("not as pinned", notes.summary)
      source, notes = open(data.text { one, sha256 = { right:upper() } })
      source:close()
      assert.same({}, notes.warnings)
      assert.equal(("1 text, %d bytes, as pinned"):format(#texts[1]), notes.summary)
      contains("1 hashes for 2 files", failure(open, data.text { one, two, sha256 = { right } }))
    end)

    it("checks its options when it is described, and opens nothing", function()
      contains("data.text.sha265: no such key", failure(data.text, { "a", sha265 = {} }))
      contains("data.text: the list is empty", failure(data.text, {}))
      contains("data.text: entry 2: expected a file", failure(data.text, { "a", 7 }))
      contains('expected a table, got "a"; write tl.data.text { "a" }', failure(data.text, "a"))
      assert.equal("data.text(1 pattern)", tostring(data.text { "/nowhere/at/all" }))
      assert.is_true(data.is(data.text { "/nowhere/at/all" }))
    end)
  end)

  describe("tokens", function()
    local function open_tokens(path, dtype, eos, options)
      return open(data.tokens { path, dtype = dtype, eos = eos }, options)
    end

    it("ends documents after eos, in both widths", function()
      local ids = { 5, 6, 0, 7, 0, 0, 8, 9, 10 }
      local documents = { { 5, 6, 0 }, { 7, 0 }, { 0 }, { 8, 9, 10 } }
      for dtype, format in pairs { uint16 = "I2", uint32 = "I4" } do
        local path = folder:write_tokens(dtype, ids, format)
        for seed = 0, 5 do
          local source <close> = open_tokens(path, dtype, 0, { length = 4, seed = seed })
          assert.equal(4, source:about().documents)
          for g = 0, 3 do
            local tokens, targets = source:micro(g, 1, 0, 1)
            local want_tokens, want_targets = reference.sample(documents, seed, 4, g)
            assert.same(want_tokens, tokens)
            assert.same(want_targets, targets)
          end
        end
      end
    end)

    it("finds an eos at any place around the borders of what it scans at once", function()
      for _, place in ipairs { 0, 1, 4094, 4095, 4096, 4097, 8191, 8192, 9999 } do
        local ids = {}
        for i = 0, 9999 do ids[i + 1] = i == place and 7 or 3 end
        local source <close> =
          open_tokens(folder:write_tokens("scan", ids, "I2"), "uint16", 7, { length = 10000 })
        assert.equal(place == 9999 and 1 or 2, source:about().documents)
        local _, _, cu = source:micro(0, 1, 0, 1)
        local lengths = { [cu[2]] = true, [10000 - cu[2]] = true }
        assert.is_true(lengths[place + 1])
      end
    end)

    it("takes a file as one document without eos", function()
      local path = folder:write_tokens("plain", { 1, 2, 3, 4 }, "I2")
      local source <close> = open_tokens(path, "uint16", nil, { length = 4 })
      local tokens, targets, cu = source:micro(0, 1, 0, 1)
      assert.same({ 1, 2, 3, 4 }, tokens)
      assert.same({ 2, 3, 4, -1 }, targets)
      assert.same({ 0, 4, 4, 4, 4 }, cu)
    end)

    it("refuses a file that ends inside a token, and an empty one", function()
      local path = folder:write("odd.bin", "12345")
      contains("odd.bin: 5 bytes are not a whole number of uint16 tokens",
        failure(open_tokens, path, "uint16"))
      contains("odd.bin: 5 bytes are not a whole number of uint32 tokens",
        failure(open_tokens, path, "uint32"))
      path = folder:write("none.bin", "")
      contains("none.bin: the file is empty", failure(open_tokens, path, "uint16"))
    end)

    it("names file, position, id and what fits when the vocabulary is too small", function()
      local path = folder:write_tokens("far.bin", { 1, 2, 7, 4 }, "I4")
      local message = failure(open_tokens, path, "uint32", nil, { length = 4, vocab = 5 })
      contains("vocab 5 is too small for " .. path, message)
      contains("token 7 at position 2; try vocab = 8, above the largest here, if the tokens are "
        .. "uint32", message)
      path = folder:write_tokens("far.bin", { 1, 2, 4294967295, 4 }, "I4")
      contains("token 4294967295 at position 2; no vocabulary has 4294967295: these are not uint32",
        failure(open_tokens, path, "uint32", nil, { length = 4, vocab = 5 }))
    end)

    it("finds the largest id wherever it stands, in every width", function()
      for dtype, format in pairs { uint16 = "I2", uint32 = "I4" } do
        local chunk = 65536 // string.packsize(format)
        for _, place in ipairs { 0, 1, chunk - 1, chunk, 2 * chunk + 7, 3 * chunk - 1 } do
          local ids = {}
          for i = 0, 3 * chunk - 1 do ids[i + 1] = i == place and 50000 or i % 251 end
          local path = folder:write_tokens("large", ids, format)
          local source <close> = open_tokens(path, dtype, nil, { length = 4, vocab = 50001 })
          assert.equal(50000, source:about().token_max)
          contains(("token 50000 at position %d;"):format(place),
            failure(open_tokens, path, dtype, nil, { length = 4, vocab = 50000 }))
        end
      end
    end)

    it("reads a file of several GiB through a map #slow", function()
      local path, last = folder:path "sparse.bin", (1 << 31) // 2 + 4096
      local file = assert(io.open(path, "wb"))
      file:seek("set", 2 * last)
      file:write(string.pack("<I2I2", 9, 42))
      file:close()
      local before = core.memory().data.current
      local source <close> = open_tokens(path, "uint16", 9, { length = last + 1 })
      assert.equal(2, source:about().documents)
      assert.is_true(core.memory().data.current - before < 10000)
      source:close()
      local short <close> = open_tokens(path, "uint16", 9, { length = 2 })
      assert.equal((last + 2) // 2, short:about().samples_per_epoch)
    end)

    it("checks its options when it is described", function()
      contains('data.tokens.dtype: missing: of the ids in the files; write dtype = "uint16", '
        .. 'or "uint32"', failure(data.tokens, { "a" }))
      contains('data.tokens.dtype: expected "uint16" or "uint32", got "u16"',
        failure(data.tokens, { "a", dtype = "u16" }))
      contains("data.tokens.eos: expected a token id, 0 to 65535 in uint16, got 70000",
        failure(data.tokens, { "a", dtype = "uint16", eos = 70000 }))
    end)
  end)
end)
