--- tools_traces.lua - cases of tools.lua: what is recorded of a run on GPUs.
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local recorder = require "tidelock.run.recorder"
local requests = require "tidelock.plan.requests"
local traces = require "tidelock.trace.traces"

return function(tools)
  local run, find, check, room = tools.run, tools.find, tools.check, tools.room
  local device = " device=" .. tools.device
  local cases = {}

  --- A folder with the trace of two steps.
  local function trace(name, words)
    local dir = room:path(name)
    run(("run %s --quiet --runs %s --stop-at 2 --trace %s %s"):format(tools.small,
      room:path "runs", dir, words))
    return dir
  end

  --- Traces of the GPUs hold the hashes of the host's.
  local function alike(dtypes, layouts)
    local said = {}
    for _, dtype in ipairs(dtypes) do
      local host = trace("host-" .. dtype, "--full dtype=" .. dtype)
      for i, layout in ipairs(layouts) do
        local there = trace(("gpu-%s-%d"):format(dtype, i), ("--full dtype=%s%s %s"):format(dtype,
          device, layout))
        local text = run(("diff %s %s"):format(host, there))
        find(text, "The bits must be equal")
        find(text, "steps 0 to 2 %(0: initial values%): all [%d,]+ [%l ]+s equal\n")
        said[#said + 1] = dtype .. " " .. layout
      end
    end
    return "hashes of host and GPU equal: " .. table.concat(said, ", ")
  end

  --- The nth instruction of an operator in rank 0's program, from 1.
  local function instruction(plan, op, nth)
    for i, made in ipairs(plan.programs[1].instructions) do
      if made.op == op and made.phase ~= "init" then nth = nth - 1 end
      if nth == 0 then return i, plan.programs[1].sites[made.site] end
    end
    error("no instruction " .. op)
  end

  --- A trace of two steps on the GPU with a fault planted in the second.
  local function planted(name, fault, options)
    local recipe = requests.recipe(tools.small, { "device=" .. tools.device, "dtype=bf16" })
    local dir = room:path(name)
    local all = { dir = dir, full = true, recipe = tools.small,
      overrides = { "device=" .. tools.device, "dtype=bf16" } }
    for key, value in pairs(options) do all[key] = value end
    local one <close> = driver.start(recipe, { faults = { fault }, recorder = recorder.new(all) })
    for _ = 1, 2 do one:step() end
    return dir
  end

  local function fault_named()
    local recipe = requests.recipe(tools.small, { "device=" .. tools.device, "dtype=bf16" })
    local plan = require "tidelock.plan" (recipe)
    local host = trace("host-values", "--full --values dtype=bf16")
    local said = {}
    for _, op in ipairs { "linear", "swiglu_grad", "attention_grad" } do
      local index = instruction(plan, op, 3)
      local fault = { rank = 0, instruction = index, kind = "ulp", step = 2, element = 38 }
      local name = ("instruction %d %s "):format(index - 1, op)
      for _, values in ipairs { true, false } do
        local there = planted(op .. tostring(values), fault, { values = values })
        local text = run(("diff %s %s"):format(host, there), 1)
        local first = find(text, "\nfirst    (step 2, [^\n]+)")
        check(first:find(name, 1, true), "%s: %s", name, text)
        if values then
          check(first:find("rank 0 of b", 1, true), "%s", text)
          find(text, "The instruction of b is wrong")
          said[#said + 1] = find(text, "\n +([^\n]-, 1 of [%d,]+ elements)")
        end
      end
    end
    return "one ulp of three kernels found by values and by hashes: " .. table.concat(said, "; ")
  end

  local function memory_as_planned()
    local dir = trace("memory", "--full dtype=bf16" .. device)
    local t <close> = traces.open(dir)
    local record = t.steps[#t.steps]
    check(record.arena_peak == t.meta.planned_bytes, "%d bytes counted, %d planned",
      record.arena_peak, t.meta.planned_bytes)
    for _, form in ipairs { "svg", "pickle" } do
      run(("trace %s --memory %s"):format(dir, room:path("arena." .. form)))
    end
    local picture = core.files.read_all(room:path "arena.svg")
    local ms = tonumber(find(picture, "step 2, real: [%d.,]+ MiB in all arenas counted by the "
      .. "allocator, [%d.,]+ planned; across: ([%d.]+) ms"))
    check(ms > 0 and ms < 1000, "across %f ms", ms)
    return ("%.2f MiB counted and planned, %.2f ms across"):format(record.arena_peak / 2 ^ 20, ms)
  end

  --- A profiler gets a range for every step, micro-batch and instruction; the bits stay.
  local function profiled()
    local library, log = os.getenv "NVTX_TOOL", room:path "ranges"
    if not library then
      library = room:path "tool.so"
      check(os.execute(("cc -shared -fPIC -o %s tests/tools/nvtx_tool.c"):format(library)),
        "cc cannot build tests/tools/nvtx_tool.c; NVTX_TOOL names the library")
    end
    local words = ("run %s --runs %s --stop-at 4 dtype=bf16%s"):format(tools.small,
      room:path "profiled", device)
    local text = run(words .. " --profile 2:3", 0,
      ("NVTX_INJECTION64_PATH=%s NVTX_TOOL_LOG=%s"):format(library, log))
    find(text, "profile +steps 2 to 3, a profiler listens")
    local opened, closed, steps, instructions = 0, 0, 0, 0
    for line in core.files.read_all(log):gmatch "[^\n]+" do
      opened = opened + (line:find "^%+" and 1 or 0)
      closed = closed + (line:find "^%-" and 1 or 0)
      steps = steps + (line:find "^%+ 0 step [23]$" and 1 or 0)
      local named = line:find "^%+ 2 instruction %d+ [%w_]+ %(.-:%d+%)"
      instructions = instructions + (named and 1 or 0)
    end
    local recipe = requests.recipe(tools.small, { "device=" .. tools.device, "dtype=bf16" })
    local plan = require "tidelock.plan" (recipe)
    local count = 2 * plan.programs[1].sections.step[2]
    check(opened == closed and steps == 2 and instructions == count,
      "%d opened, %d closed, %d steps, %d instructions of %d", opened, closed, steps, instructions,
      count)
    find(run(words .. " --quiet"), "bits +equal to .-: 4 losses, 4 gradient norms")
    return ("%d ranges opened and closed: 2 steps, %d instructions; bits as without"):format(opened,
      instructions)
  end

  --- Waits on GPUs: the slower rank waits for nobody, and no wait is longer than its message.
  local function waits_apart()
    local t <close> = traces.open(trace("waits", "dtype=bf16 layout.tp=2" .. device))
    local waited, messages = { 0, 0 }, 0
    for rank = 0, 1 do
      local first, last = t:section(rank, 2)
      for i = first, last do
        local times = t:times(rank, 2, i)
        check(times.wait_ns >= 0 and times.wait_ns <= times.end_ns - times.start_ns,
          "rank %d waits %d ns of %d", rank, times.wait_ns, times.end_ns - times.start_ns)
        waited[rank + 1] = waited[rank + 1] + times.wait_ns
        messages = messages + (t:program(rank).instructions[i].attrs.group and 1 or 0)
      end
    end
    check(waited[1] + waited[2] > 0, "nobody waits")
    return ("%d messages of two ranks; they waited %.3f and %.3f ms"):format(messages,
      waited[1] / 1e6, waited[2] / 1e6)
  end

  cases[1] = { name = "trace", run = function()
    return alike({ "f32", "bf16" }, { "layout.dp=1" })
  end }
  cases[2] = { name = "fault", run = fault_named }
  cases[3] = { name = "memory", run = memory_as_planned }
  cases[4] = { name = "profile", run = profiled }
  cases[5] = { name = "waits", run = waits_apart, gpus = 2 }
  cases[6] = { name = "traces", gpus = 2, run = function()
    return alike({ "bf16" }, { "layout.tp=2", "layout.dp=2", "layout.pp=2" })
  end }
  return cases
end
