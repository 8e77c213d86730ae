-- The arena: no two live items share a byte, and the arena is not much larger than it has to be.

local arena = require "tidelock.plan.arena"

local seed = tonumber(os.getenv "TIDELOCK_SEED") or 20240602

--- Items with random sizes and lives of at most `life` instructions.
local function random_items(count, instructions, life)
  local items = {}
  for i = 1, count do
    local first = math.random(instructions)
    items[i] = {
      name = "item " .. i, size = math.random(0, 100000), first = first,
      last = math.min(instructions, first + math.random(0, life)),
    }
  end
  return items
end

--- The lives of a decoder's training step: `live` micro-batches forward before the first backward;
-- activations live until their backward instruction, where gradients and temporaries come and go.
local function transformer_items(layers, micros, live, width)
  local items, now, saved = {}, 0, {}
  local shapes = { 1, 1, 0.02, 0.5, 0.5, 1, 0.02, 1, 3, 3, 3 } -- outputs of a layer's ops, by width
  local function add(size, first, last)
    local name = "t" .. #items
    items[#items + 1] = { size = math.floor(size), first = first, last = last, name = name }
  end
  local function forward(micro)
    saved[micro] = {}
    for _ = 1, layers do
      for _, shape in ipairs(shapes) do
        now = now + 1
        table.insert(saved[micro], { size = shape * width, born = now })
      end
    end
  end
  local function backward(micro)
    for i = #saved[micro], 1, -1 do
      now = now + 1
      local made = saved[micro][i]
      add(made.size, made.born, now)
      add(made.size, now, now + 1 + i % 4)
      if i % 3 == 0 then add(4 * width, now, now) end
    end
  end
  local f, b = 0, 0
  while b < micros do
    if f < micros and f - b < live then
      f = f + 1
      forward(f)
    else
      b = b + 1
      backward(b)
    end
  end
  for i = 1, 8 do add(5 * width + i, 0, now + 4) end
  return items
end

--- Every pair of items that are alive together has different bytes; sizes and offsets are in order.
local function check(items, placed)
  local peak, bound = 0, 0
  for i, a in ipairs(items) do
    local offset = placed.offsets[i]
    assert.equal(0, offset % 64)
    peak = math.max(peak, offset + (a.size + 63) // 64 * 64)
    local alive = 0
    for j, b in ipairs(items) do
      local other = placed.offsets[j]
      local together = a.first <= b.last and b.first <= a.last
      if i < j and together and offset < other + b.size and other < offset + a.size then
        error(("%s and %s share bytes"):format(a.name, b.name))
      end
      if b.first <= a.first and a.first <= b.last then alive = alive + (b.size + 63) // 64 * 64 end
    end
    bound = math.max(bound, alive)
  end
  assert.equal(peak, placed.peak)
  assert.equal(bound, placed.lower_bound)
  assert.is_true(placed.peak >= bound)
end

describe("the arena, seed " .. seed, function()
  before_each(function() math.randomseed(seed) end)

  it("never lets live items share bytes, and stays within 15 % of the bound", function()
    for round = 1, 12 do
      local items = random_items(40 * round, 30 * round, 4 * round)
      local placed = arena.place(items)
      check(items, placed)
      assert.is_true(placed.peak <= 1.15 * placed.lower_bound,
        ("round %d: %.3f"):format(round, placed.peak / placed.lower_bound))
    end
  end)

  it("packs a transformer's step within 5 % of the bound", function()
    for _, case in ipairs { { 4, 1, 1, 4096 }, { 4, 4, 2, 4000 }, { 2, 6, 4, 10007 } } do
      local items = transformer_items(table.unpack(case))
      local placed = arena.place(items)
      check(items, placed)
      assert.is_true(placed.peak <= 1.05 * placed.lower_bound,
        ("%d layers: %.3f"):format(case[1], placed.peak / placed.lower_bound))
    end
  end)

  it("keeps its promises when there are too many items for the slower packing", function()
    local saved = arena.by_size_items_max
    arena.by_size_items_max = 0
    local random, step = random_items(1000, 500, 200), transformer_items(4, 4, 2, 4000)
    local placed_random, placed_step = arena.place(random), arena.place(step)
    arena.by_size_items_max = saved
    check(random, placed_random)
    check(step, placed_step)
    assert.is_true(placed_random.peak <= 1.15 * placed_random.lower_bound)
    assert.is_true(placed_step.peak <= 1.15 * placed_step.lower_bound)
  end)

  it("gives the same places every time", function()
    local items = random_items(300, 200, 30)
    assert.same(arena.place(items), arena.place(items))
  end)

  it("puts what lives throughout at the bottom, in order", function()
    local placed = arena.place {
      { size = 10, first = 3, last = 4, name = "short" },
      { size = 100, first = 1, last = 9, name = "weights" },
      { size = 1, first = 1, last = 9, name = "state" },
    }
    assert.same({ 192, 0, 128 }, placed.offsets)
    assert.equal(256, placed.peak)
  end)

  it("lets an item take the place of one that has just ended, not of one that just ends", function()
    local function offsets(first)
      return arena.place {
        { size = 64, first = 1, last = 5 }, { size = 64, first = first, last = 9 },
      }.offsets
    end
    assert.same({ 0, 0 }, offsets(6))
    local a, b = table.unpack(offsets(5))
    assert.not_equal(a, b)
  end)

  it("says where the peak is and which ten items fill it", function()
    local items = { { size = 64000, first = 1, last = 2, name = "gone" } }
    for i = 1, 12 do items[i + 1] = { size = 6400 * i, first = 4, last = 6, name = "t" .. i } end
    local placed = arena.place(items)
    assert.equal(4, placed.peak_at)
    assert.equal(10, #placed.largest)
    assert.equal("t12", placed.largest[1].name)
    assert.equal("t3", placed.largest[10].name)
    assert.equal(6400 * 12, placed.largest[1].size)
  end)

  it("has nothing to place in an empty program, and no bytes for an empty tensor", function()
    assert.same({ 0, 0 }, { arena.place({}).peak, #arena.place({}).offsets })
    local placed = arena.place {
      { size = 0, first = 1, last = 2 }, { size = 64, first = 1, last = 1 },
    }
    assert.same({ 0, 0 }, placed.offsets)
    assert.equal(64, placed.peak)
  end)
end)
