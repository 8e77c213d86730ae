-- ./tl doctor, its self-test, and what a device is refused for before a run starts.
local core = require "tidelock.core"
local doctor = require "tidelock.machine.doctor"
local gpus = require "tidelock.machine.gpus"
local room = require "tidelock.machine.room"
local selftest = require "tidelock.machine.selftest"
local support = require "support"

local h200 = { name = "NVIDIA H200", major = 9, minor = 0, memory = 150e9 }
local a100 = { name = "NVIDIA A100", major = 8, minor = 0, memory = 80e9 }
local t4 = { name = "Tesla T4", major = 7, minor = 5, memory = 16e9 }
local p100 = { name = "Tesla P100", major = 6, minor = 0, memory = 16e9 }

local function spec(arithmetic, dp)
  return { layout = { tp = 1, dp = dp or 1, pp = 1 }, policy = { arithmetic = arithmetic } }
end

local function complaints(of, facts, more)
  local machine = { count = #facts, facts = facts, built = { "sm_90" } }
  for key, value in pairs(more or {}) do machine[key] = value end
  return gpus.complaints(of, machine)
end

describe("a device", function()
  it("has the arithmetic of its generation", function()
    assert.same({ "fma", "sm_90" }, gpus.arithmetics(9, 0))
    assert.same({ "fma", "sm_90" }, gpus.arithmetics(10, 0))
    assert.same({ "fma", "sm_80" }, gpus.arithmetics(8, 9))
    assert.same({ "fma", "sm_80" }, gpus.arithmetics(7, 5))
    assert.same({ "fma" }, gpus.arithmetics(6, 0))
  end)

  it("that can run the recipe is not refused", function()
    assert.same({}, complaints(spec "sm_90", { h200 }))
    assert.same({}, complaints(spec("fma", 2), { h200, h200 }))
  end)

  it("of other arithmetic is refused with what would do", function()
    local text = complaints(spec "sm_90", { a100 })[1]
    assert.matches("GPU 0 %(NVIDIA A100%) has the arithmetic fma, sm_80, and this recipe is of "
      .. '"sm_90"; a GPU of compute capability 9.0', text)
    assert.matches('has the arithmetic fma, and', complaints(spec "sm_90", { p100 })[1])
  end)

  it("that no kernel was built for is refused, and every odd one of several is named", function()
    local texts = complaints(spec("fma", 3), { h200, t4, a100 })
    assert.equal(2, #texts)
    assert.matches("GPU 1 %(Tesla T4%) is of architecture sm_75, and this build has kernels for "
      .. "sm_90", texts[1])
    assert.matches("GPU 2 %(NVIDIA A100%) is of architecture sm_80", texts[2])
  end)

  it("that is not there is told with the reason, and ranks without a GPU are counted", function()
    assert.matches("no driver", complaints(spec "fma", {}, { why = "no driver here" })[1])
    assert.matches("the layout has 4 ranks, one a GPU, and this machine has 1",
      complaints(spec("fma", 4), { h200 })[1])
    assert.matches("this build has no GPU kernels; TL_CUDA=on",
      complaints(spec "fma", { h200 }, { built = {} })[1])
  end)

  it("is refused for experts' rows that it cannot send, with what would do", function()
    local function refusal(ways)
      local layout = { ep = 2, all_to_all = "auto" }
      for key, value in pairs(ways) do layout[key] = value end
      return gpus.exchange_refusal(layout)
    end
    assert.is_nil(refusal { ep = 1, all_to_all = "ring" })
    assert.is_nil(refusal {})
    assert.is_nil(refusal { all_to_all = "flat", island = 1 })
    assert.matches('layout.all_to_all = "ring".*"flat" does', refusal { all_to_all = "ring" })
    assert.matches("layout.island = 1: .* without it", refusal { island = 1 })
  end)

  it("that is too small is refused with the largest tensors", function()
    local planner, summary = require "tidelock.plan", require "tidelock.plan.summary"
    local plan = planner(require("tidelock.language.recipe").load("recipes/quickstart.lua", {}))
    plan.summary = summary.of(plan)
    local good, problem = pcall(room.check, plan, 30 * 1024 * 1024, "GPU 0 (Tesla T4)")
    assert.is_false(good)
    assert.matches("1 rank fill 52.0 MiB, GPU 0 %(Tesla T4%) has 30.0; at the peak of a rank, "
      .. "instruction %d+", problem.message)
    room.check(plan, 1 << 40, "GPU 0 (Tesla T4)")
  end)

  it("is refused where the environment would change what it computes", function()
    for _, name in ipairs { "CUDA_FORCE_PTX_JIT", "NVIDIA_TF32_OVERRIDE" } do
      local pipe = assert(io.popen(("%s=1 %s lua tests/support/count_gpus.lua"):format(name,
        support.program)))
      assert.matches("^0 " .. name .. " is set: the GPU would run other machine code, or other "
        .. "arithmetic, than was verified; unset it", pipe:read "a")
      pipe:close()
      pipe = assert(io.popen(("%s=0 %s lua tests/support/count_gpus.lua"):format(name,
        support.program)))
      assert.is_nil(pipe:read("a"):find("is set", 1, true))
      pipe:close()
    end
  end)
end)

describe("./tl doctor", function()
  it("says what is here and what to do, and exits with 0", function()
    local text, status = support.run("doctor", nil, support.with_others)
    assert.equal(0, status, text)
    for _, part in ipairs { "program     tidelock ", "processor   ", "arithmetic  fma (f32)",
      "kernels     ", "driver      ", "cuBLASLt    ", "NCCL        ", "MPI         ",
      "to do       " } do
      assert.is_truthy(text:find("\n" .. part, 1, true) or text:find(part, 1, true) == 1, part)
    end
    for line in text:gmatch "[^\n]+" do assert.is_true(#line <= 99, line) end
  end)

  it("lists the variables that GPUs, NCCL and MPI listen to, and no other", function()
    assert.same({ "CUDA_VISIBLE_DEVICES=0,1", "NCCL_ALGO=Ring", "RANK=3" },
      doctor.variables "HOME=/x\0NCCL_ALGO=Ring\0RANK=3\0RANKS=4\0CUDA_VISIBLE_DEVICES=0,1\0")
  end)
end)

describe("the self-test", function()
  it("finds the levels of the processor equal", function()
    local finding = selftest.levels(4)
    assert.is_true(finding.good, finding.text)
    assert.matches("portable: exp2 of 4,194,304 inputs, bf16 products$", finding.text)
  end)

  it("has sums of exp2 that its inputs and results decide", function()
    local whole = core.doctor.exp2("host", 0, 4)
    local parts = { core.doctor.exp2("host", 0, 1)[1], core.doctor.exp2("host", 1, 1, 1)[1],
      core.doctor.exp2("host", 2, 2)[1], core.doctor.exp2("host", 3, 1)[1] }
    assert.same(whole, parts)
    -- Block 4095 is all NaN: its sum is that of one result, which can be written down.
    local sum = 0
    for i = 0, (1 << 20) - 1 do
      sum = sum + core.mix64((4095 << 20 | i) << 32 | 0x7fffffff)
    end
    assert.equal(sum, core.doctor.exp2("host", 4095, 1)[1])
  end)

  it("has patterns of steps that differ from each other and repeat", function()
    local seen, names = {}, core.doctor.patterns()
    assert.equal(8, #names)
    for pattern in ipairs(names) do
      local differ, outputs, hash = core.doctor.steps("host", pattern, 1, 4)
      assert.same({ 0, 512 }, { differ, outputs })
      assert.is_nil(seen[hash])
      seen[hash] = true
      assert.equal(hash, select(3, core.doctor.steps("host", pattern, 1, 4)))
    end
  end)

  it("ends a run of checks with a refusal when one of them fails", function()
    local checks, lines = selftest.checks, {}
    selftest.checks = {
      { name = "one", gpu = true, slow = "hours",
        run = function() return { good = true, text = "fine" } end },
      { name = "two", gpu = false, slow = "minutes",
        run = function() return { good = false, text = "bits" } end },
      { name = "three", gpu = false, run = function() error("broken", 0) end },
    }
    local function say(name, text) lines[#lines + 1] = name .. " " .. text end
    local good = selftest.run({ gpus = 0 }, say, say)
    selftest.checks = checks
    assert.is_false(good)
    assert.same({ "one not run: no GPU here", "two minutes", "two NOT PROVEN: bits",
      "three NOT PROVEN: failed: broken" }, lines)
  end)
end)
