-- Planned bytes are real bytes: what the arenas take, counted by their allocator, to the byte.
local models = require "support.models"
local room = require "tidelock.machine.room"
local summary = require "tidelock.plan.summary"

describe("planned memory", function()
  local cases = {
    { "plain", {} }, { "bf16", { dtype = "bf16", tied = true } },
    { "eight ranks", { ["layout.tp"] = 2, ["layout.dp"] = 2, ["layout.pp"] = 2 } },
    { "uneven stages", { layers = 5, ["layout.pp"] = 2, ["layout.stages"] = { 1, 4 } } },
    { "shared kv heads", { heads = 8, kv_heads = 2, ["layout.tp"] = 4 } },
  }
  for _, case in ipairs(cases) do
    it("is what the arenas take: " .. case[1], function()
      local run <close> = models.start(case[2])
      run:step()
      local memory, layout = run:memory(), run.spec.layout
      assert.equal(memory.planned_bytes, memory.arena)
      local sum = 0
      for _, program in ipairs(run.plan.programs) do sum = sum + program.arena_bytes * layout.dp end
      assert.equal(sum, memory.arena)
    end)
  end

  it("is refused before anything starts when the machine has less", function()
    local plan = models.plan { ["layout.dp"] = 2 }
    plan.summary = summary.of(plan)
    local bytes = plan.summary.planned_bytes
    room.check(plan, bytes)
    room.check(plan, nil) -- not known
    local good, raised = pcall(room.check, plan, bytes - 1)
    assert.is_false(good)
    assert.equal(2, raised.status)
    assert.matches("^memory: 2 ranks fill [%d.]+ MiB, this machine has [%d.]+; "
      .. "at the peak of a rank, instruction %d+ [%w_]+ %(.-:%d+%), .- [%d.]+; "
      .. "a smaller batch.micro needs less, ", raised.message)
    assert.is_true(room.bytes() > 2 ^ 26)
  end)

  it("is never less than what lives at one instruction, and near it", function()
    for _, case in ipairs(cases) do
      for _, place in ipairs(models.plan(case[2]).places) do
        assert.is_true(place.bytes >= place.lower_bound)
        assert.is_true(place.bytes < 1.1 * place.lower_bound + 4096)
        local kinds = 0
        for _, bytes in pairs(place.kinds) do kinds = kinds + bytes end
        assert.is_true(kinds <= place.bytes)
      end
    end
  end)

  it("falls with tp, dp, pp and smaller micro-batches", function()
    local function bytes(options)
      local most = 0
      local big = models.with({ layers = 4, length = 64, micro = 4, samples = 16 }, options)
      for _, place in ipairs(models.plan(big).places) do
        most = math.max(most, place.bytes)
      end
      return most
    end
    local whole = bytes {}
    assert.is_true(bytes { micro = 1 } < whole)
    assert.is_true(bytes { ["layout.tp"] = 2 } < whole)
    assert.is_true(bytes { ["layout.pp"] = 2 } < whole)
    assert.is_true(bytes { micro = 2, ["layout.dp"] = 4 } < whole)
  end)

  it("keeps lives apart: no two buffers that live at once share a byte", function()
    for _, case in ipairs(cases) do
      for _, rank in ipairs(models.plan(case[2]).ranks) do
        local list = {}
        for _, buffer in ipairs(rank.buffers) do
          if buffer.offset then list[#list + 1] = buffer end
        end
        table.sort(list, function(a, b) return a.offset < b.offset end)
        local last = #rank.instructions
        for i, a in ipairs(list) do
          for j = i + 1, #list do
            local b = list[j]
            if b.offset >= a.offset + a.bytes then break end
            local first_a, last_a = a.persistent and 1 or a.first, a.persistent and last or a.last
            local first_b, last_b = b.persistent and 1 or b.first, b.persistent and last or b.last
            assert.is_true(last_a < first_b or last_b < first_a,
              ("%s, %s"):format(a.name, b.name))
          end
        end
      end
    end
  end)
end)
