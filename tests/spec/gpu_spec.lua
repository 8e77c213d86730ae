-- What only a GPU can show. Without one they are pending together and say why: nothing is proven.
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local golden = require "golden.make"
local gpus = require "tidelock.machine.gpus"
local selftest = require "tidelock.machine.selftest"
local support = require "support"
local tl = require "tidelock"

--- Why no test here can run; nil when they can.
local function reason()
  local machine = gpus.machine()
  if #machine.built == 0 then return "no GPU kernels in this build: TL_CUDA=on ./tl test" end
  return machine.count == 0 and machine.why or nil
end

local why = reason()

local left_out = 0

local function on_gpu(name, fn)
  if why then
    left_out = left_out + 1
  else
    it(name, fn)
  end
end

local expected = core.json.decode(core.files.read_all(golden.file))

describe("on a GPU #gpu", function()
  for _, script in ipairs {
    { "every operator gives its host twin's bits", "run", "%d%d%d passed, 0 failed" },
    { "a request gives the host's tokens and bits, alone and in any crowd", "serve",
      "%d passed, 0 failed" },
    { "steps of few rows, which are one kernel, and of more give the host's bits", "few",
      "12 passed, 0 failed" },
    { "faults that others reported are not there", "cases", "5 passed, 0 failed" },
    { "a trace has the host's hashes, step after step", "trace", "all equal" },
    { "verify, traces, metrics, profilers and measurements are true there", "tools",
      "%d passed, 0 failed" },
  } do
    on_gpu(script[1], function()
      local text, status = support.run("lua tests/gpu/" .. script[2] .. ".lua")
      assert.equal(0, status, text)
      assert.is_truthy(text:find(script[3]))
    end)
  end

  for _, check in ipairs(selftest.checks) do
    if check.gpu then
      on_gpu("the self-test proves " .. check.name, function()
        local finding = check.run {}
        assert.is_true(finding.good, finding.text)
      end)
    end
  end

  for _, dtype in ipairs { "f32", "bf16" } do
    on_gpu("the model on our own text gives the bits that are written down: " .. dtype, function()
      local written = expected[golden.own.name .. dtype]
      local got = golden.record(dtype, golden.own.steps, golden.with_own_text { device = "cuda" })
      assert.same({ written.key, written.steps, written.weights },
        { got.key, got.steps, got.weights })
    end)

    on_gpu("a captured step and an eager one agree on every bit: " .. dtype, function()
      local recipe = tl.load("recipes/quickstart.lua"):with(golden.with_own_text {
        dtype = dtype, device = "cuda",
      })
      local trails = {}
      for i, eager in ipairs { false, true } do
        local run <close> = driver.start(recipe, { eager = eager })
        trails[i] = {}
        for step = 1, 4 do
          local s = run:step()
          trails[i][step] = s.loss_bits .. " " .. s.grad_norm_bits
        end
        trails[i][5] = run:weights_hash()
      end
      assert.same(trails[1], trails[2])
    end)
  end

  on_gpu("a plan that is larger than the GPU is refused before it starts", function()
    local recipe = tl.load("recipes/quickstart.lua"):with(golden.with_own_text {
      device = "cuda", ["batch.micro"] = 16, ["batch.length"] = 1 << 19,
    })
    local good, problem = pcall(driver.start, recipe)
    assert.is_false(good)
    assert.equal(2, problem.status)
    assert.matches("MiB, GPU 0 %(.-%) has [%d.]+; at the peak of a rank", problem.message)
  end)

  on_gpu("times of an operator are taken on the device", function()
    local x <close> = core.tensor("f32", { 512, 512 }):fill(0.5)
    local y <close> = core.tensor("f32", { 512, 512 })
    local ms = core.call("linear", { x, x }, { y }, { parts = 1, biases = 0, leaves = 1 },
      { device = "cuda", repeats = 3 })
    assert.is_true(ms > 0 and ms < 1000)
  end)

  local function on_two_gpus(name, fn)
    on_gpu(name, function()
      if core.cuda_count() < 2 then return pending "this machine has one GPU" end
      fn()
    end)
  end

  on_two_gpus("ranks on several GPUs give the host's bits, and a lost one is named", function()
    local text, status = support.run "lua tests/gpu/ranks.lua"
    assert.equal(0, status, text)
    assert.is_truthy(text:find "%d%d passed, 0 failed")
  end)

  on_two_gpus("a process for each GPU gives them too: sums, rows of experts", function()
    local pipe = assert(io.popen(("for r in 1 0; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 "
      .. "MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 timeout 100 %s lua tests/gpu/ranks.lua processes "
      .. "& done 2>&1; wait"):format(support.program)))
    local text = pipe:read "a"
    pipe:close()
    assert.is_truthy(text:find "%d%d passed, 0 failed", text)
  end)

  if why then pending(("%d tests need one: %s"):format(left_out, why)) end
end)
