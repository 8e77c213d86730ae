-- What people see: numbers, rows, the live line and the header, for given values.

local screen = require "tidelock.text.screen"

local record = {
  step = 96, loss = 1.98123, loss_bits = 0x3ffd98c6, grad_norm = 0.6512, lr = 1.23e-3,
  tokens_per_s = 24123.4, mfu = 0.58, bytes = 41628467, eta = 18.4,
}

describe("numbers on the screen", function()
  it("are grouped, shortened and timed", function()
    assert.equal("853,120", screen.grouped(853120))
    assert.equal("1,000,000", screen.grouped(1000000))
    assert.equal("-999", screen.grouped(-999))
    assert.equal("950", screen.short(950))
    assert.equal("23.6k", screen.short(23610))
    assert.equal("1.0M", screen.short(999960))
    assert.equal("-", screen.short(0 / 0))
    assert.equal("0:35", screen.clock(34.6))
    assert.equal("1:02:03", screen.clock(3723))
    assert.equal("5e1c 09af 77d2 c340", screen.spaced "5e1c09af77d2c340")
    assert.equal("0000002a", screen.bits(42))
  end)

  it("say plainly what is not a number", function()
    assert.equal("nan", screen.loss(0 / 0))
    assert.equal("-inf", screen.loss(-math.huge))
  end)

  it("have the right plural", function()
    assert.equal("1 loss", screen.plural(1, "loss"))
    assert.equal("200 losses", screen.plural(200, "loss"))
    assert.equal("4 micro-batches", screen.plural(4, "micro-batch"))
    assert.equal("39 tensors", screen.plural(39, "tensor"))
  end)
end)

describe("a line of a plan", function()
  it("that is too long goes on below its text", function()
    local words = ("word "):rep(20):sub(1, -2)
    for _, case in ipairs {
      { "  peak   short", "  peak   short" },
      { "  peak   " .. words, "  peak   " .. ("word "):rep(17) .. "word\n         word word" },
      { "    at home    " .. words, "    at home    " .. ("word "):rep(16) .. "word\n"
        .. (" "):rep(15) .. "word word word" },
      { ("x"):rep(99), ("x"):rep(99) },
      { "a " .. ("x"):rep(97), "a " .. ("x"):rep(97) },
      { "a " .. ("x"):rep(98), "a\n" .. ("x"):rep(98) },
      { "  file   " .. ("x"):rep(120), "  file   " .. ("x"):rep(120) },
      { "  file   " .. ("x"):rep(120) .. " " .. ("ab "):rep(40) .. " ",
        "  file   " .. ("x"):rep(120) .. "\n         " .. ("ab "):rep(29) .. "ab\n         "
          .. ("ab "):rep(10) .. " " },
      { ("y"):rep(130) .. "  a b", ("y"):rep(130) .. "  a\n" .. (" "):rep(132) .. "b" },
    } do
      assert.equal(case[2], screen.folded(case[1]))
    end
  end)
end)

describe("the table", function()
  it("has its columns under their titles", function()
    assert.equal("  step    loss  bits      grad norm       lr   tok/s   mfu    MiB   eta",
      screen.titles())
    assert.equal("    96  1.9812  3ffd98c6      0.651  1.2e-03   24.1k   58%   39.7  0:18",
      screen.row(record))
  end)

  it("shows a row at each doubling on a terminal, and every so many steps elsewhere", function()
    local function steps(terminal)
      local shown = {}
      for step = 1, 37 do
        if screen.shows(step, 37, 10, terminal) then shown[#shown + 1] = step end
      end
      return shown
    end
    assert.same({ 1, 2, 4, 8, 16, 32, 37 }, steps(true))
    assert.same({ 1, 10, 20, 30, 37 }, steps(false))
  end)

  it("has fewer columns on a narrow terminal, from the right", function()
    assert.equal("  step    loss  bits      grad norm       lr", screen.titles(50))
    assert.equal("    96  1.9812  3ffd98c6      0.651  1.2e-03", screen.row(record, 50))
    for width = 17, 100 do assert.is_true(#screen.row(record, width) < width) end
    assert.equal("    96  1.9812", screen.row(record, 1))
  end)

  it("leaves out what is not known", function()
    local row = screen.row {
      step = 1, loss = 0 / 0, loss_bits = "7fc00000", grad_norm = 0 / 0, lr = 0, tokens_per_s = 1,
      bytes = 0,
    }
    assert.equal("     1     nan  7fc00000        nan  0.0e+00       1     -    0.0     -", row)
  end)
end)

describe("the live line", function()
  it("shows how far, how well and how long still", function()
    assert.equal("  [################..................]  96/200  loss 1.981  24.1k tok/s  "
      .. "0:18 left", screen.live(record, 200, 100))
  end)

  it("never reaches the end of a narrow terminal", function()
    for width = 1, 100 do assert.is_true(#screen.live(record, 200, width) < width + 1) end
  end)
end)

describe("the header", function()
  it("says each thing once, below 100 columns", function()
    assert.equal("853,120 weights in 39 tensors: 4 layers, dim 128, 8 heads over 4 kv heads, "
      .. "vocab 256", screen.model_text {
        weights = 853120, tensors = 39, layers = 4, dim = 128, heads = 8, kv_heads = 4, vocab = 256,
      })
    assert.equal("tp 2, dp 2, pp 2 (1f1b, 4 micro-batches, bubble 20%)",
      screen.layout_text({ tp = 2, dp = 2, pp = 2 }, screen.pipeline_text("1f1b", 4, 0.2)))
    assert.equal("", screen.layout_text { tp = 1, pp = 1, dp = 1 })
    assert.equal("policy layout (leaves tp 4, dp 8)",
      screen.policy_text { name = "layout", leaves = { tp = 4, dp = 8, cp = 1 } })
    assert.equal("39.7 MiB: weights 3.3, gradients 1.0 (4 leaf buffers), tables 0.1",
      screen.memory_text(41628467, {
        { "tables", 131072 }, { "gradients", 1 << 20, " (4 leaf buffers)" }, { "state", 64 },
        { "weights", 3412480 },
      }))
    local words = ("word "):rep(40)
    local text = screen.header("r.lua", { { "model", words }, { "data", "none" } })
    for line in text:gmatch "[^\n]+" do assert.is_true(#line < 100) end
    assert.equal("r.lua\n  model    word", text:sub(1, 21))
    text = screen.header("r.lua", { { "model", words }, { "data", "none" } }, 40)
    for line in text:gmatch "[^\n]+" do assert.is_true(#line < 40) end
  end)
end)

describe("a screen", function()
  local function memory_file()
    local file = { text = "" }
    function file:write(...) self.text = self.text .. table.concat { ... } end
    function file.flush() end
    return file
  end

  local function new(terminal, quiet)
    local out, live = memory_file(), memory_file()
    return screen.new {
      out = out, live = live, terminal = terminal, color = terminal, quiet = quiet,
      width = function() return 100 end,
    }, out, live
  end

  it("clears the live line before a row", function()
    local show, out, live = new(true)
    show:update(record, 200)
    show:print "row"
    show:close()
    assert.equal("row\n", out.text)
    assert.equal("\r\27[K" .. screen.live(record, 200, 100) .. "\r\27[K", live.text)
  end)

  it("has no live line, no colour and no control characters away from a terminal", function()
    local show, out, live = new(false)
    show:update(record, 200)
    show:print(show:strong "hash")
    assert.equal("hash\n", out.text)
    assert.equal("", live.text)
  end)

  it("keeps rows back when it is quiet, not the summary", function()
    local show, out = new(false, true)
    show:print "row"
    show:print("summary", true)
    assert.equal("summary\n", out.text)
  end)

  it("has no colour when NO_COLOR says so", function()
    assert.is_true(screen.wants_color(true, nil))
    assert.is_true(screen.wants_color(true, ""))
    assert.is_false(screen.wants_color(true, "1"))
    assert.is_false(screen.wants_color(false, nil))
  end)
end)
