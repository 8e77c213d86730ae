--- Tokenizers: goldens of real ones, small ones written here, odd strings and odd files.
local core = require "tidelock.core"
local new_folder = require "support.folder"
local support = require "support"

local function contains(part, text)
  assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
end

--- A tokenizer.json of these parts.
local function written(folder, fields)
  fields.model = fields.model or {
    type = "BPE", vocab = { a = 0, b = 1, ab = 2 }, merges = { "a b" },
  }
  return folder:write("tokenizer.json", core.json.encode(fields))
end

local function failure(folder, fields)
  local tokenizer, message = core.tokenizer(written(folder, fields))
  assert.is_nil(tokenizer)
  return message
end

--- A byte-level vocabulary: all bytes, then these tokens.
local function byte_level(tokens)
  local vocab, n = {}, 256
  for byte = 0, 255 do
    local prints = byte >= 0x21 and byte <= 0x7E or byte >= 0xA1 and byte <= 0xAC or byte >= 0xAE
    vocab[utf8.char(prints and byte or n)] = byte
    if not prints then n = n + 1 end
  end
  for i, token in ipairs(tokens) do vocab[token] = 255 + i end
  return vocab
end

describe("goldens", function()
  for _, case in ipairs {
    { "gpt2-vocab", false }, { "stories260k", true },
  } do
    it("of " .. case[1], function()
      local folder = support.shared("data/" .. case[1])
      if not folder then return pending "needs ../shared/data" end
      local tokenizer = core.tokenizer(folder)
      local list = core.json.decode(core.files.read_all(folder .. "/golden_encode.json"))
      assert.is_true(#list > 10)
      for _, entry in ipairs(list) do
        local ids = tokenizer:encode(entry.text, case[2])
        assert.same(entry.ids, ids, entry.text)
        assert.equal(entry.text, tokenizer:decode(ids))
      end
    end)
  end
end)

describe("small tokenizers of our own", function() -- tests/peers/make_tokenizers.py
  for _, name in ipairs { "gpt2", "llama3", "qwen", "sentencepiece" } do
    it("give the ids and texts of the reference implementation: " .. name, function()
      local folder = "tests/golden/tokenizers/" .. name
      local tokenizer = assert(core.tokenizer(folder .. "/tokenizer.json"))
      local list = core.json.decode(core.files.read_all(folder .. "/golden.json"))
      assert.equal(28, #list)
      for _, entry in ipairs(list) do
        local ids = tokenizer:encode(entry.text, true)
        assert.same({ table.unpack(entry.ids) }, ids, entry.text)
        assert.equal(entry.back, tokenizer:decode(ids), entry.text)
      end
    end)
  end
end)

describe("the bytes tokenizer", function()
  it("gives every byte its own id", function()
    local tokenizer = core.tokenizer "bytes"
    local all = {}
    for byte = 0, 255 do all[#all + 1] = string.char(byte) end
    local text = table.concat(all)
    local ids = tokenizer:encode(text)
    for i, id in ipairs(ids) do assert.equal(i - 1, id) end
    assert.equal(text, tokenizer:decode(ids))
    assert.equal(256, tokenizer:vocab())
  end)
end)

describe("a byte-level tokenizer", function()
  local folder, path
  before_each(function()
    folder = new_folder()
    path = written(folder, {
      added_tokens = { { id = 262, content = "<end>", special = true },
        { id = 263, content = "<end>ing", special = false } },
      pre_tokenizer = { type = "ByteLevel", add_prefix_space = false, use_regex = true },
      decoder = { type = "ByteLevel" },
      model = {
        type = "BPE", vocab = byte_level { "ab", "bc", "abc", "Ġa", "Ġab", "aa" },
        merges = { "b c", "a b", "a bc", "Ġ a", { "Ġa", "b" }, "a a" },
      },
    })
  end)
  after_each(function() folder:remove() end)

  it("joins the pair of lowest rank first, the leftmost on a tie", function()
    local tokenizer = core.tokenizer(path)
    assert.same({ 258 }, tokenizer:encode "abc") -- b c before a b
    assert.same({ 256, 98 }, tokenizer:encode "abb")
    assert.same({ 261, 97 }, tokenizer:encode "aaa") -- the left pair
    assert.same({ 97, 32, 256 }, tokenizer:encode "a ab") -- a b before Ġ a; pieces do not join
    assert.same({ 97, 259 }, tokenizer:encode "a a")
  end)

  it("finds added tokens, the longest first, unless they are to be plain text", function()
    local tokenizer = core.tokenizer(path)
    assert.same({ 97, 262, 97 }, tokenizer:encode "a<end>a")
    assert.same({ 263 }, tokenizer:encode "<end>ing")
    assert.equal(5, #tokenizer:encode("<end>", false, true))
    assert.equal("aa", tokenizer:decode { 97, 262, 97 })
    assert.equal("a<end>a", tokenizer:decode({ 97, 262, 97 }, true))
    assert.equal(262, tokenizer:added "<end>")
    assert.is_nil(tokenizer:added "<other>")
  end)

  it("gives back every string of bytes (H29)", function()
    local tokenizer = core.tokenizer(path)
    for stream = 1, 60 do
      local bytes = {}
      for i = 1, stream * 3 do
        bytes[i] = string.char(math.floor((support.fill_value(stream, i) + 1) * 128))
      end
      local text = table.concat(bytes)
      assert.equal(text, tokenizer:decode(tokenizer:encode(text)))
    end
    for _, text in ipairs { "", "\0", "\xFF\xFE", "\xED\xA0\x80", "a\0b", "é\xCC" } do
      assert.equal(text, tokenizer:decode(tokenizer:encode(text)))
    end
  end)

  it("takes a million spaces (H29)", function()
    local text = (" "):rep(1048576)
    local tokenizer = core.tokenizer(path)
    assert.is_true(tokenizer:decode(tokenizer:encode(text)) == text)
  end)

  it("names the id that is none, and its place (H29)", function()
    local tokenizer = core.tokenizer(path)
    for _, id in ipairs { -1, 264, 1 << 31 } do
      local good, message = pcall(tokenizer.decode, tokenizer, { 97, id })
      assert.is_false(good)
      contains(("token 1: %s: %d is no token; ids go from 0 to 263"):format(path, id), message)
      good, message = pcall(tokenizer.token, tokenizer, id)
      assert.is_false(good)
      contains(("%s: %d is no token; ids go from 0 to 263"):format(path, id), message)
    end
  end)
end)

describe("normalizers and splitting", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  local function tokenizer(fields)
    fields.model = { type = "BPE", vocab = byte_level { "ab" }, merges = { "a b" } }
    return core.tokenizer(written(folder, fields))
  end

  it("compose characters where the file asks for NFC", function()
    local t = tokenizer {
      normalizer = { type = "NFC" }, pre_tokenizer = { type = "ByteLevel", use_regex = false },
    }
    assert.equal("\u{E9}", t:decode(t:encode "e\u{301}"))
    assert.equal("\xFF\xFE", t:decode(t:encode "\xFF\xFE"))
  end)

  it("cut by a pattern", function()
    local split = {
      type = "Split", pattern = { Regex = "\\p{N}{1,3}" }, behavior = "Isolated", invert = false,
    }
    local vocab = byte_level { "12", "123", "34" }
    local path = written(folder, {
      pre_tokenizer = {
        type = "Sequence", pretokenizers = { split, { type = "ByteLevel", use_regex = false } },
      },
      model = { type = "BPE", vocab = vocab, merges = { "1 2", "12 3", "3 4" } },
    })
    assert.same({ 257, 52 }, core.tokenizer(path):encode "1234")
  end)

  it("lose nothing to a pattern that matches nothing", function()
    local t = tokenizer { pre_tokenizer = { type = "Sequence", pretokenizers = {
      { type = "Split", pattern = { Regex = "x*" }, behavior = "Isolated" },
      { type = "ByteLevel", use_regex = false },
    } } }
    for _, text in ipairs { "ab", "abxxab", "xé", "é" } do
      assert.equal(text, t:decode(t:encode(text)))
    end
    assert.same({ 256, 0x78, 0x78, 256 }, t:encode "abxxab")
  end)

  it("put a space before a text that has none", function()
    local t = tokenizer {
      pre_tokenizer = { type = "ByteLevel", add_prefix_space = true, use_regex = false },
    }
    assert.same({ 0x20, 256 }, t:encode "ab")
    assert.same({ 0x20, 256 }, t:encode " ab")
  end)
end)

describe("a SentencePiece tokenizer", function()
  local folder, path
  before_each(function()
    folder = new_folder()
    local vocab = { ["<unk>"] = 0, ["<s>"] = 1 }
    for byte = 0, 255 do vocab[("<0x%02X>"):format(byte)] = 2 + byte end
    for i, piece in ipairs { "▁", "a", "b", "▁a", "▁ab" } do vocab[piece] = 257 + i end
    path = written(folder, {
      added_tokens = { { id = 1, content = "<s>", special = true } },
      normalizer = { type = "Sequence", normalizers = {
        { type = "Prepend", prepend = "▁" },
        { type = "Replace", pattern = { String = " " }, content = "▁" },
      } },
      post_processor = {
        type = "TemplateProcessing",
        single = { { SpecialToken = { id = "<s>" } }, { Sequence = { id = "A" } } },
        special_tokens = { ["<s>"] = { ids = { 1 } } },
      },
      decoder = { type = "Sequence", decoders = {
        { type = "Replace", pattern = { String = "▁" }, content = " " },
        { type = "ByteFallback" }, { type = "Fuse" }, { type = "Strip", content = " ", start = 1 },
      } },
      model = {
        type = "BPE", vocab = vocab, merges = { "▁ a", "▁a b" }, unk_token = "<unk>",
        byte_fallback = true, fuse_unk = true,
      },
    })
  end)
  after_each(function() folder:remove() end)

  it("puts a space before a text, and its bytes for what has no token", function()
    local tokenizer = core.tokenizer(path)
    assert.same({ 262, 258, 2 + 0x63 }, tokenizer:encode "ab c")
    assert.same({ 1, 262 }, tokenizer:encode("ab", true))
    for _, text in ipairs { "ab c", "é\nx", "", "  a" } do
      assert.equal(text, tokenizer:decode(tokenizer:encode(text, true)))
    end
  end)
end)

describe("a character without a token", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  local function ids(fuse, unknown)
    local path = written(folder, { model = { type = "BPE", vocab = { a = 0, ["<unk>"] = 1, aa = 2 },
      merges = { "a a" }, unk_token = unknown, fuse_unk = fuse } })
    return core.tokenizer(path):encode "aéba"
  end

  it("is the unknown token, once for neighbours where the file says so", function()
    assert.same({ 0, 1, 1, 0 }, ids(false, "<unk>"))
    assert.same({ 0, 1, 0 }, ids(true, "<unk>"))
  end)

  it("is an error where there is none", function()
    local good, message = pcall(ids, false, nil)
    assert.is_false(good)
    contains("no token for é and none for what is unknown", message)
  end)
end)

describe("a damaged or foreign file", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  it("is refused by what it asks for", function()
    contains('model "WordPiece" is not supported', failure(folder, {
      model = { type = "WordPiece" },
    }))
    contains('normalizer "Lowercase" is not supported', failure(folder, {
      normalizer = { type = "Lowercase" },
    }))
    contains('pre_tokenizer "BertPreTokenizer" is not supported', failure(folder, {
      pre_tokenizer = { type = "BertPreTokenizer" },
    }))
    contains("merge 0 (a b) has a part that is no token", failure(folder, {
      model = { type = "BPE", vocab = { a = 0 }, merges = { "a b" } },
    }))
    contains("merge 0 is not two tokens", failure(folder, {
      model = { type = "BPE", vocab = { a = 0 }, merges = { "ab" } },
    }))
    local message = failure(folder, {
      model = { type = "BPE", vocab = { a = 0, b = 1, ab = 1 }, merges = { "a b" } },
    })
    assert.matches(": the tokens a?b and a?b of vocab have one id, 1$", message)
    assert.is_nil(message:find("tokens b and b", 1, true) or message:find("ab and ab", 1, true))
    contains("an id is not in 0", failure(folder, {
      model = { type = "BPE", vocab = { a = 1 << 40 }, merges = { "a a" } },
    }))
    for _, id in ipairs { -1, 3, 1 << 32, 0.5, "a" } do
      contains("the template has an id that is no token's", failure(folder, {
        post_processor = {
          type = "TemplateProcessing", single = { { SpecialToken = { id = "s" } } },
          special_tokens = { s = { ids = { id } } },
        },
      }))
    end
    contains("the pattern (", failure(folder, {
      pre_tokenizer = { type = "Split", pattern = { Regex = "(" }, behavior = "Isolated" },
    }))
  end)

  it("is refused when it is none", function()
    for _, text in ipairs { "", "[]", "{", "3", "{}" } do
      local tokenizer, message = core.tokenizer(folder:write("tokenizer.json", text))
      assert.is_nil(tokenizer)
      contains(folder.root, message)
    end
    local tokenizer, message = core.tokenizer(folder:path "nothing")
    assert.is_nil(tokenizer)
    contains("No such file", message)
    os.remove(folder:path "tokenizer.json")
    tokenizer, message = core.tokenizer(folder.root)
    assert.is_nil(tokenizer)
    contains("no tokenizer.json, no vocab.json with merges.txt", message)
  end)
end)

describe("./tl tokenize", function()
  it("prints ids and pieces, counts, and the text of ids", function()
    assert.equal("     84  T\n     10  \\x0A\n", (support.run 'tokenize bytes "T\n"'))
    assert.equal("4 tokens, 4 bytes, vocabulary 256\n",
      (support.run 'tokenize bytes Tide --count'))
    assert.equal("Ti\n", (support.run "tokenize bytes --ids 84,105"))
  end)

  it("says what is wrong", function()
    local text, status = support.run "tokenize nowhere x"
    assert.equal(2, status)
    contains("nowhere: cannot open it: No such file or directory; it can be a tokenizer.json, its "
      .. "folder, or bytes, where bytes are tokens", text)
    text, status = support.run "tokenize bytes"
    assert.equal(2, status)
    contains("a text is missing", text)
    contains("999 is no token", (support.run "tokenize bytes --ids 999"))
  end)
end)
