-- Every rule of runtime/verify.h: a program that keeps it, broken in one place.
local core = require "tidelock.core"
local programs = require "support.programs"

local function refused(b) return programs.message(core.program, b.tables) end

local function two(options)
  local b = programs.new { "all" }
  return b, b:tensor("f32", { 4, 4 }, options), b:tensor("f32", { 4, 4 })
end

describe("operands", function()
  it("are as many as the row says", function()
    local b, x, y = two { persistent = true }
    b:add("step", "scale", { x, x }, { y }, { factor = 2 })
    assert.matches("instruction 0 scale %(by_hand.lua:0%): 2 inputs, takes 1: x", refused(b))
    b, x, y = two { persistent = true }
    b:add("step", "scale", { x }, { y, y }, { factor = 2 })
    assert.matches("2 outputs, takes 1: y", refused(b))
    b, x, y = two { persistent = true }
    b:add("step", "linear", { x, x }, { y }, { parts = 2, biases = 0, leaves = 1 })
    assert.matches("linear.*: weight: entry 2 of the inputs is absent", refused(b))
    b, x, y = two { persistent = true }
    b:add("step", "linear", { x, x }, { y }, { parts = 0, biases = 0, leaves = 1 })
    assert.matches("parts is 0, must be 1 to 4096", refused(b))
  end)

  it("are absent only where the row allows it", function()
    local empty, _, y = two { persistent = true }
    empty:add("step", "scale", { 0 }, { y }, { factor = 2 })
    assert.matches("x: entry 0 of the inputs is absent", refused(empty))
    local b, x = two { persistent = true }
    local acc = b:tensor("f32", { 1, 4 })
    b:add("step", "sum_tokens", { x, 0, 0 }, { acc },
      { kind = 0, first = 0, samples = 1, length = 4, runs = 1, mode = 0 })
    b:program():close()
  end)

  it("are tensors of the program", function()
    local b, x = two { persistent = true }
    b:add("step", "scale", { x }, { 9 }, { factor = 2 })
    assert.matches("y: tensor 8; there are 2", refused(b))
  end)

  it("have dtypes that communication can carry", function()
    local b = programs.new { "all" }
    local x = b:tensor("bf16", { 4 }, { persistent = true, name = "grad" })
    local y = b:tensor("f32", { 4 })
    b:add("step", "all_reduce", { x }, { y }, { group = 0 })
    assert.matches("all_reduce over all %(by_hand.lua:0%): x %(grad, tensor 0%) is bf16, must " ..
      "be f32",
      refused(b))
    b = programs.new { "all" }
    x, y = b:tensor("bf16", { 4 }, { persistent = true }), b:tensor("f32", { 4 })
    b:add("step", "all_gather", { x }, { y }, { group = 0, outer = 1 })
    assert.matches("y %(tensor 1%) is f32, must be bf16", refused(b))
    b = programs.new { "all" }
    x, y = b:tensor("i32", { 4 }, { persistent = true }), b:tensor("i32", { 4 })
    b:add("step", "all_reduce_count", { x }, { y }, { group = 0 })
    assert.matches("is i32, must be i64", refused(b))
  end)

  it("name groups that exist", function()
    local b, x, y = two { persistent = true }
    b:add("step", "all_reduce", { x }, { y }, { group = 1 })
    assert.matches("all_reduce .*: group 1; there are 1", refused(b))
    b, x, y = two { persistent = true }
    b:add("step", "all_gather", { x }, { y }, { group = 0, outer = 0 })
    assert.matches("outer is 0, must be positive", refused(b))
  end)

  it("have the sizes that data fills", function()
    local b = programs.new()
    local tokens, targets = b:tensor("i32", { 8 }), b:tensor("i32", { 8 })
    local cu = b:tensor("i32", { 8 })
    b:add("step", "load_micro", {}, { tokens, targets, cu },
      { first = 0, samples = 2, length = 4, source = 0 })
    assert.matches("output 2 has 8 elements, must have 9", refused(b))
    b = programs.new()
    b:add("step", "count_targets", {}, { b:tensor("i32", { 1 }) },
      { samples = 2, length = 4, source = 0 })
    assert.matches("count %(tensor 0%) is i32, must be i64", refused(b))
    b = programs.new()
    b:add("step", "count_targets", {}, { b:tensor("i64", { 1 }) },
      { samples = 0, length = 4, source = 0 })
    assert.matches("0 samples of 4 tokens", refused(b))
  end)
end)

describe("places", function()
  it("of outputs do not overlap a part of an input", function()
    local b = programs.new()
    local x = b:tensor("f32", { 32 }, { persistent = true, name = "a" })
    local y = b:tensor("f32", { 32 }, { offset = 64 })
    b:add("step", "scale", { x }, { y }, { factor = 2 })
    assert.matches("output y %(tensor 1%) overlaps a part of input x %(a, tensor 0%)", refused(b))
  end)

  it("of outputs are an input's only where the operator allows it", function()
    local b, x = two { persistent = true }
    b:add("step", "unary", { x }, { x }, { kind = 0 })
    b:add("step", "binary", { x, x }, { x }, { kind = 0, broadcast = 0 })
    assert.matches("instruction 1 binary.*: output y %(tensor 0%) may not be the memory of input b",
      refused(b))
    b, x = two { persistent = true }
    local gain, rstd = b:tensor("f32", { 4 }, { persistent = true }), b:tensor("f32", { 4 })
    b:add("step", "rms_norm", { x, gain }, { x, rstd }, { eps = 1e-5 })
    assert.matches("rms_norm.*: output y .* may not be the memory of input x", refused(b))
  end)

  it("of outputs are apart", function()
    local b, x, y = two { persistent = true }
    b:add("step", "swiglu_grad", { x, x, x }, { y, y })
    assert.matches("outputs dgate %(tensor 1%) and dup %(tensor 1%) overlap", refused(b))
  end)
end)

describe("memory", function()
  it("is written before it is read", function()
    local b, x, y = two()
    b:add("step", "scale", { x }, { y }, { factor = 2 })
    assert.matches("reads x %(tensor 0%) before byte 0 of the arena is written", refused(b))
  end)

  it("is written as a whole", function()
    local b = programs.new()
    local x = b:tensor("f32", { 32 })
    local half = b:tensor("f32", { 16 }, { offset = 0 })
    local y = b:tensor("f32", { 32 })
    b:add("step", "fill", {}, { half }, { value = 1 })
    b:add("step", "scale", { x }, { y }, { factor = 2 })
    assert.matches("reads x %(tensor 0%) before byte 64 of the arena is written", refused(b))
  end)

  it("is what init wrote, or another section's first instruction wrote", function()
    local b, x, y = two()
    b:add("init", "fill", {}, { x }, { value = 1 })
    b:add("step", "scale", { x }, { y }, { factor = 2 })
    b:add("eval", "scale", { x }, { y }, { factor = 2 })
    local p <close> = b:program()
    assert.equal(64, p:scratch())
    b, x, y = two()
    b:add("step", "fill", {}, { x }, { value = 1 })
    b:add("eval", "scale", { x }, { y }, { factor = 2 })
    assert.matches("instruction 1 scale.* before byte 0 of the arena is written", refused(b))
    for _, pair in ipairs { { "serve0", "serve1" }, { "serve8", "serve9" } } do
      b, x, y = two() -- whichever of them runs first
      b:add(pair[1], "fill", {}, { x }, { value = 1 })
      b:add(pair[2], "scale", { x }, { y }, { factor = 2 })
      assert.matches("instruction 1 scale.* before byte 0 of the arena is written", refused(b))
    end
  end)

  it("is read as it was written", function()
    local b = programs.new()
    local x = b:tensor("f32", { 16 })
    local same = b:tensor("bf16", { 32 }, { offset = 0 })
    local y = b:tensor("bf16", { 32 })
    b:add("step", "fill", {}, { x }, { value = 1 })
    b:add("step", "scale", { same }, { y }, { factor = 2 })
    assert.matches("reads x %(tensor 1%) as bf16; byte 0 of the arena was written as f32",
      refused(b))
  end)

  it("is still there in the second step", function()
    local b, w, y = two()
    local reuse = b:tensor("bf16", { 4, 4 }, { offset = 0 })
    b:add("init", "fill", {}, { w }, { value = 1 })
    b:add("step", "scale", { w }, { y }, { factor = 2 })
    b:add("step", "fill", {}, { reuse }, { value = 1 })
    assert.matches("instruction 1 scale.* as f32; byte 0 of the arena was written as bf16",
      refused(b))
  end)

  it("of an output that is read too counts as read, unless its mode starts afresh", function()
    for mode, pattern in pairs { [0] = false, [1] = "reads dweight", [2] = "reads dweight" } do
      local b = programs.new()
      local dy = b:tensor("f32", { 4, 2 }, { persistent = true })
      local x = b:tensor("f32", { 4, 3 }, { persistent = true })
      b:add("step", "linear_grad_weight", { dy, x }, { b:tensor("f32", { 2, 3 }) },
        { first = 0, samples = 1, length = 4, stride = 4, mode = mode, leaves = 1 })
      if pattern then
        assert.matches(pattern, refused(b))
      else
        b:program():close()
      end
    end
  end)
end)

describe("lanes", function()
  -- lane 0: fill x, scale x -> y, fill x again; lane 1: scale x -> z between them
  local function lanes(waits)
    local b, x, y = two()
    local z = b:tensor("f32", { 4, 4 })
    b:add("step", "fill", {}, { x }, { value = 1 })
    b:add("step", "scale", { x }, { z }, { factor = 2 }, { lane = 1, waits = waits[1] })
    b:add("step", "scale", { x }, { y }, { factor = 2 })
    b:add("step", "fill", {}, { x }, { value = 2 }, { waits = waits[2] })
    b:add("step", "scale", { z }, { y }, { factor = 3 }, { lane = waits.lane or 1,
      waits = waits[3] })
    return b
  end

  it("wait for what they read and overwrite", function()
    lanes { { 1 }, { 2 }, { 3 } }:program():close()
    assert.matches("instruction 1 scale %(by_hand.lua:1%): reads x %(tensor 0%) in lane 1 " ..
      "without waiting for instruction 0 fill %(by_hand.lua:0%), which writes it in lane 0",
      refused(lanes { {}, { 2 }, { 3 } }))
    assert.matches("instruction 3 fill %(by_hand.lua:3%): overwrites y %(tensor 0%) in lane 0 " ..
      "without waiting for instruction 1 scale %(by_hand.lua:1%), which reads it in lane 1",
      refused(lanes { { 1 }, {}, { 3 } }))
    assert.matches("instruction 4 scale .*: writes y %(tensor 1%) in lane 1 without waiting for " ..
      "instruction 2 scale .*, which writes it in lane 0", refused(lanes { { 1 }, { 2 }, {} }))
  end)

  it("may wait by way of others", function()
    lanes { { 1 }, { 2 }, { 4 }, lane = 2 }:program():close() -- 4 waited for 2, and 2 wrote z
  end)

  it("wait for earlier instructions of other lanes in the same section", function()
    assert.matches("waits for instruction 4, which does not stand before it in its section",
      refused(lanes { { 1, 5 }, { 2 }, { 3 } }))
    assert.matches("waits for instruction 2 of its own lane 0", refused(lanes { { 1 }, { 2, 3 },
      { 3 } }))
    local b, x, y = two()
    b:add("init", "fill", {}, { x }, { value = 1 })
    b:add("step", "scale", { x }, { y }, { factor = 2 }, { lane = 1, waits = { 1 } })
    assert.matches("waits for instruction 0, which does not stand before it in its section",
      refused(b))
  end)
end)

describe("ranks together", function()
  local function opened(list, groups)
    local made, ranks = {}, {}
    for i, b in ipairs(list) do
      made[i] = b:program()
      ranks[i] = { program = i, groups = groups and groups[i] or { all = { 0, 1 } } }
    end
    local ok, result = pcall(core.ranks, { programs = made, ranks = ranks })
    if ok then
      result:close()
      return nil
    end
    return result
  end

  local function talk(...)
    local b = programs.new { "all" }
    local x = b:tensor("f32", { 8 }, { persistent = true })
    local y = b:tensor("f32", { 8 })
    local small = b:tensor("f32", { 4 })
    for _, word in ipairs { ... } do
      if word == "reduce" then
        b:add("step", "all_reduce", { x }, { y }, { group = 0 })
      elseif word == "gather" then
        b:add("step", "all_gather", { small }, { y }, { group = 0, outer = 1 })
      elseif word == "fill" then
        b:add("step", "fill", {}, { small }, { value = 1 })
      else
        local verb, peer, channel = word:match "^(%a+)(%d)(%d)$"
        local attrs = { group = 0, peer = tonumber(peer), channel = tonumber(channel) }
        if verb == "send" then b:add("step", "send", { x }, {}, attrs) end
        if verb == "recv" then b:add("step", "recv", {}, { y }, attrs) end
        if verb == "short" then b:add("step", "recv", {}, { small }, attrs) end
      end
    end
    return b
  end

  it("are in their groups, with the same lists", function()
    local one = talk "reduce"
    assert.matches("group all: ranks 0 and 1 have different lists of its ranks",
      opened({ one, talk "reduce" }, { { all = { 0, 1 } }, { all = { 1, 0 } } }))
    assert.matches("rank 0: group all has rank 2; there are 2 ranks",
      opened({ one, talk "reduce" }, { { all = { 0, 2 } }, { all = { 1, 0 } } }))
    assert.matches("rank 0 is not in its group all",
      opened({ one, talk "reduce" }, { { all = { 1 } }, { all = { 1 } } }))
    assert.matches("group all has rank 0 twice",
      opened({ one, talk "reduce" }, { { all = { 0, 0 } }, { all = { 1 } } }))
    assert.matches("its program has no group tp",
      opened({ one, talk "reduce" }, { { tp = { 0, 1 } }, { all = { 1 } } }))
  end)

  it("sum over a power of two", function()
    local all = { all = { 0, 1, 2 } }
    assert.matches("rank 0: instruction 0 all_reduce over all .*: a tree over 3 ranks",
      opened({ talk "reduce", talk "reduce", talk "reduce" }, { all, all, all }))
  end)

  it("give collectives the sizes of their group", function()
    local all = { all = { 0, 1, 2 } }
    local function three() return talk("fill", "gather") end
    assert.matches("x has 4 elements and y 8, for 3 ranks and outer 1",
      opened({ three(), three(), three() }, { all, all, all }))
    assert.is_nil(opened { three(), three() })
  end)

  it("meet in the same collective with the same sizes", function()
    assert.matches("rank 0: instruction 0 all_reduce .*: 32 bytes, outer 0; rank 1 is at " ..
      "instruction 1 all_gather over all", opened { talk "reduce", talk("fill", "gather") })
    assert.is_nil(opened { talk "reduce", talk "reduce" })
  end)

  it("match messages in number, order and size", function()
    assert.is_nil(opened { talk("send10", "recv11"), talk("recv00", "send01") })
    assert.matches("section step cannot end; rank 0 has ended; rank 1 waits in instruction 0 " ..
      "recv " ..
      "over all %(by_hand.lua:0%)", opened { talk "fill", talk "recv00" })
    assert.matches("rank 0: instruction 0 send over all .*: rank 1 never receives this message",
      opened { talk "send10", talk "fill" })
    assert.matches("rank 1: .* expects 16 bytes; rank 0, instruction 0 send .*, sends 32",
      opened { talk "send10", talk "short00" })
    assert.matches("peer 0, channel 0, from position 0 of a group of 2",
      opened { talk "send00", talk "fill" })
  end)

  it("do not wait for each other forever", function()
    assert.matches("cannot end; rank 0 waits in instruction 0 recv .*; rank 1 waits in " ..
      "instruction 0 recv",
      opened { talk("recv10", "send11"), talk("recv01", "send00") })
    assert.matches("cannot end; rank 0 waits in instruction 1 send .*; rank 1 waits in " ..
      "instruction 0 recv",
      opened { talk("send10", "send10", "send11"), talk("recv01", "recv00", "recv00") })
    assert.is_nil(opened { talk("send10", "send11", "send10"), talk("recv01", "recv00", "recv00") })
    assert.matches("cannot end", opened { talk("recv10", "reduce"), talk("reduce", "send00") })
  end)
end)
