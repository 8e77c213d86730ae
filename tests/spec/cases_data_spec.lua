-- Faults that users of other systems reported, about what is fed: packing, nothing at all, bad ids.
local core = require "tidelock.core"
local data = require "tidelock.language.data"
local models = require "support.models"
local support = require "support"
local tl = require "tidelock"

--- The message of a failing call.
local function message(fn, ...)
  local good, text = pcall(fn, ...)
  assert.is_false(good)
  return type(text) == "table" and text.message or text
end

local function contains(part, text)
  assert.is_truthy(text:find(part, 1, true), ("%q is not in %q"):format(part, text))
end

--- What a step leaves in `names`, with the samples `list`.
local function kept(names, list, options, dtype)
  local o = models.with({ samples = #list, micro = 1, length = #list[1].tokens, dtype = dtype,
    leaves = { tp = 4, dp = 1 }, data = data.given(list) }, options or {})
  local run <close> = models.start(o, { keep = names, poison = 255 })
  local step, found = run:step(), {}
  for _, name in ipairs(require("tidelock.run.kept").names(run)) do found[name] = run:kept(name) end
  return found, step
end

for _, dtype in ipairs { "f32", "bf16" } do
  describe("H07, sequences packed and alone, " .. dtype, function()
    local pieces = { models.tokens(1, 5, 30), models.tokens(2, 1, 30), models.tokens(3, 9, 30) }
    for i, id in ipairs(pieces[3]) do pieces[3][i] = 30 + id end -- shares no id with the others
    local packed = {}
    for _, piece in ipairs(pieces) do table.move(piece, 1, #piece, #packed + 1, packed) end

    it("have the same logits and losses", function()
      for _, options in ipairs { {}, { positions = 16, rope = false }, { window = 3 } } do
        local whole = kept({ "logits", "loss" },
          { { tokens = packed, cu_seqlens = { 0, 5, 6, 15 } } }, options, dtype)
        local at = 0
        for _, piece in ipairs(pieces) do
          local alone = kept({ "logits", "loss" }, { { tokens = piece } }, options, dtype)
          assert.bits(alone.logits, whole.logits:narrow(1, at + 1, #piece))
          if #piece > 1 then -- the last token has no target
            local losses = whole.loss:narrow(1, at + 1, #piece - 1)
            assert.bits(alone.loss:narrow(1, 1, #piece - 1), losses)
          end
          at = at + #piece
        end
      end
    end)

    it("have no gradient in each other", function()
      local targets = {}
      for i = 1, 15 do targets[i] = i > 6 and packed[i + 1] or -1 end
      local found = kept({ "embed.grad" },
        { { tokens = packed, targets = targets, cu_seqlens = { 0, 5, 6, 15 } } }, nil, dtype)
      local rows = found["embed.grad"]:to_table()
      local some = false
      for id = 0, 60 do
        for _, x in ipairs(rows[id + 1]) do
          if id < 30 then assert.equal(0, x) else some = some or x ~= 0 end
        end
      end
      assert.is_true(some)
    end)

    it("are passed by cu_seqlens; padding is refused with that word", function()
      contains("cu_seqlens", message(data.given, { { tokens = packed, padding = "right" } }))
    end)
  end)
end

describe("H12, empty sequences", function()
  local function call(borders, heads, c)
    local rows = borders[#borders]
    local cu = core.tensor("i32", { rows + 1 }, borders)
    local x = {}
    for i = 1, 4 do x[i] = support.filled("f32", { rows, heads, c }, i) end
    local o = support.poison("f32", { rows, heads, c })
    local lse = support.poison("f32", { rows, heads })
    local attrs = { window = 0, kv_block = 128, split = 8192, scale = 0.1 }
    core.call("attention", { x[1], x[2], x[3], cu }, { o, lse }, attrs)
    local grads = {}
    for i = 1, 3 do grads[i] = support.poison("f32", { rows, heads, c }) end
    attrs.dk_scale, attrs.head_leaves = 0.1, 1
    core.call("attention_grad", { x[1], x[2], x[3], o, lse, x[4], cu }, grads, attrs)
    return { o, lse, table.unpack(grads) }
  end

  --- The list filled up to rows + 1 entries with the last one, as micro-batches have it.
  local function filled(list)
    local full = { table.unpack(list) }
    while #full < list[#list] + 1 do full[#full + 1] = list[#list] end
    return full
  end

  it("change no bit of the others", function()
    for _, c in ipairs { 64, 128, 256 } do
      local expected = call(filled { 0, 3, 10 }, 2, c)
      local got = call(filled { 0, 0, 3, 3, 3, 10, 10 }, 2, c)
      for i, t in ipairs(expected) do assert.bits(t, got[i]) end
      expected, got = call({ 0, 2, 2 }, 2, c), call({ 0, 0, 2 }, 2, c)
      for i, t in ipairs(expected) do assert.bits(t, got[i]) end
    end
  end)

  it("change no bit of a whole step", function()
    local function trace(borders)
      local list = {}
      for i = 1, 4 do list[i] = { tokens = models.tokens(i, 10, 61), cu_seqlens = borders } end
      return models.trace { length = 10, samples = 4, data = data.given(list) }
    end
    assert.equal(trace { 0, 3, 10 }, trace { 0, 0, 3, 3, 3, 10, 10 })
  end)
end)

describe("H13, nothing at all", function()
  it("is an empty output of attention", function()
    local function empty(...) return core.tensor("f32", { 0, ... }) end
    local cu = core.tensor("i32", { 1 }, { 0 })
    local o, lse = empty(2, 64), empty(2)
    core.call("attention", { empty(2, 64), empty(2, 64), empty(2, 64), cu }, { o, lse },
      { window = 0, kv_block = 128, split = 8192, scale = 1 })
    assert.same({ 0, 2, 64 }, o:shape())
  end)

  it("is an error with the file's name when it is the training text", function()
    local path = os.tmpname()
    local text = message(models.trace, { data = tl.data.text { path } })
    os.remove(path)
    contains(path .. ": the file is empty (0 bytes)", text)
  end)
end)

describe("H14, bad cu_seqlens", function()
  local function refusal(borders, dtype)
    local x = support.filled("f32", { 10, 1, 64 }, 1)
    local cu = core.tensor(dtype or "i32", { #borders }, borders)
    local o, lse = core.tensor("f32", { 10, 1, 64 }), core.tensor("f32", { 10, 1 })
    return message(core.call, "attention", { x, x, x, cu }, { o, lse },
      { window = 0, kv_block = 128, split = 8192, scale = 1 })
  end
  local function tail(...) return { ..., 10, 10, 10, 10, 10, 10, 10, 10, 10 } end

  it("are refused by the op too, each with its entry and value", function()
    for _, case in ipairs {
      { { 1, 5, 9, 10, 10, 10, 10, 10, 10, 10, 10 }, "entry 0 is 1, must be 0" },
      { { 0, 5, 4, 10, 10, 10, 10, 10, 10, 10, 10 }, "entry 2 is 4, less than 5" },
      { { 0, 5, 12, 12, 12, 12, 12, 12, 12, 12, 12 }, "entry 2 is 12, but there are 10 rows" },
    } do
      local text = refusal(case[1])
      contains("cu", text)
      contains(case[2], text)
    end
    contains("i64", refusal(tail(0, 10), "i64"))
  end)
end)

describe("H15, nothing to learn from", function()
  local first = { tokens = models.tokens(1, 16, 61) }
  local ignored = { tokens = models.tokens(2, 16, 61), targets = {} }
  for i = 1, 16 do ignored.targets[i] = -1 end

  it("in one micro-batch: loss and gradients are those of the other alone", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local both, step = kept({ "*.grad" }, { first, ignored }, nil, dtype)
      local alone, one = kept({ "*.grad" }, { first }, nil, dtype)
      assert.equal(one.loss_bits, step.loss_bits)
      assert.equal(one.grad_norm_bits, step.grad_norm_bits)
      for name, t in pairs(alone) do assert.bits(t, both[name]) end
    end
  end)

  it("in the whole step: no update, no NaN, 0 target tokens", function()
    local options = { samples = 2, micro = 1, data = data.given { ignored, ignored } }
    local run <close> = models.start(options, { poison = 255 })
    local weights, state = run:weights_hash(), run:optimizer_hash()
    for _ = 1, 2 do
      local step = run:step()
      assert.equal("0 target tokens", step.skipped)
      assert.equal(0, step.loss)
      assert.equal(0, step.grad_norm)
    end
    assert.equal(weights, run:weights_hash())
    assert.equal(state, run:optimizer_hash())
  end)
end)

describe("H29, odd ids", function()
  local function refusal(id)
    local list = { { tokens = models.tokens(1, 16, 61) } }
    list[1].tokens[1] = id
    return message(models.trace, { samples = 1, micro = 1, data = data.given(list) })
  end

  it("are errors with the id, its position and the vocabulary", function()
    for _, id in ipairs { -1, 61 } do
      contains(("sample 0: token %d at position 0, but vocab is 61"):format(id), refusal(id))
    end
    contains("2147483648", refusal(1 << 31))
  end)
end)
