--- tools_speed.lua - cases of tools.lua: vitals, metrics, measurements and predictions on GPUs.
local cluster = require "tidelock.forecast.cluster"
local core = require "tidelock.core"
local driver = require "tidelock.run.driver"
local gap = require "tidelock.bench.gap"
local log = require "tidelock.run.log"
local observer = require "tidelock.run.observer"
local requests = require "tidelock.plan.requests"

return function(tools)
  local run, find, check, room = tools.run, tools.find, tools.check, tools.room
  local cuda = tools.device == "cuda"
  local device = " device=" .. tools.device
  local cases = {}

  local function plausible(row, what)
    local clock, celsius, watts = row.clock_mhz, row.celsius, row.watts
    check(not cuda or clock and celsius and watts, "%s: no clock, temperature or power", what)
    check(not clock or clock >= 100 and clock < 6000, "%s: %s MHz", what, clock)
    check(not celsius or celsius > 5 and celsius < 110, "%s: %s C", what, celsius)
    check(not watts or watts > 20 and watts < 1500, "%s: %s W", what, watts)
    return ("%.0f MHz %.0f C %.0f W"):format(clock or 0, celsius or 0, watts or 0)
  end

  --- Hashes again and again, idle and under load, with what NVML says beside them.
  local function repeated()
    local path, said = room:path "repeats.jsonl", {}
    local text = run(("verify %s --device %s --dtype bf16 --steps 2 --repeat-for 6s "
      .. "--jsonl %s"):format(tools.small, tools.device, path))
    find(text, "all with the same bits")
    for i, row in ipairs(log.read(path)) do
      local words = plausible(row, "run " .. i)
      check(row.status == (i == 1 and "head" or "equal"), "run %d: %s", i, row.status)
      if i <= 2 then said[i] = (row.busy and "busy " or "idle ") .. words end
    end
    check(#said == 2, "one run within 6 s")
    return table.concat(said, ", ") .. find(text, "\n(%d+ runs), all") .. " equal"
  end

  local function matrix()
    local path, counts, runs = room:path "cells.jsonl", {}, {}
    local both = cuda and "host,cuda" or "host"
    local text = run(("verify %s --device %s --steps 2 --dtype bf16 "
      .. "--jsonl %s --layouts %s"):format(tools.small, both, path,
      tools.gpus > 1 and "tp=2;dp=2;pp=2,schedule=1f1b" or "pp=1"))
    for _, row in ipairs(log.read(path)) do
      local key = row.device .. " " .. row.status
      counts[key] = (counts[key] or 0) + 1
      runs[row.device] = row.row:find "^[tdp]p 2" and row.status ~= "not run" and true
        or runs[row.device]
      if row.device == "cuda" and row.status ~= "not run" then plausible(row, row.row) end
    end
    check(not counts["cuda differ"] and not counts["host differ"], "%s", text)
    check(not cuda or counts["cuda equal"] and (tools.gpus == 1 or runs.cuda), "%s", text)
    local said = find(text, "(%d+ equal, %d+ differ, %d+ not run)")
    return cuda and ("%s; cuda %d equal"):format(said, counts["cuda equal"]) or said
  end

  local function metrics()
    local path = room:path "tidelock.prom"
    run(("run %s --quiet --runs %s --metrics %s dtype=bf16%s"):format(tools.small,
      room:path "metered", path, device))
    local text, said = core.files.read_all(path), {}
    for _, name in ipairs { "clock_hertz", "temperature_celsius", "power_watts", "step_seconds",
      "mfu", "loss", "tokens_total", "memory_bytes", "memory_planned_bytes" } do
      local value = text:match("\ntidelock_" .. name .. " (%S+)")
      check(value or not cuda and name:find "_[hcw]%a+$", "no %s", name)
      said[#said + 1] = name .. " " .. (value or "-")
    end
    find(text, 'tidelock_state{state="finished"} 1')
    return table.concat(said, ", ")
  end

  --- The parts of a step's gap are the gap: they are its per cents, and add up to 100.
  local function step(layout)
    local text = run(("bench step %s --alone --rounds 2 --steps 2 -o json dtype=bf16 %s%s"):format(
      tools.small, layout, device))
    local note, sum = core.json.decode(find(text, "%b{}")).tables[2].notes[1], 0
    for share in note:gmatch "([%d.]+)%%" do sum = sum + tonumber(share) end
    check(math.abs(sum - 100) < 1, "%s: they add up to %.1f", note, sum)
    return layout .. ": " .. note:gsub("^of the gap: ", "")
  end

  local function roofline()
    local text = run(("bench roofline %s --alone --rounds 2 -o json dtype=bf16%s"):format(
      tools.small, device))
    local all = core.json.decode(find(text, "%b{}"))
    local title, best = all.tables[1].title, 0
    for _, row in ipairs(all.tables[1].rows) do
      best = math.max(best, tonumber(row[10]:match "^(%d+)%%" or "0"))
    end
    local peak, unit, memory = find(title, "([%d.]+) (%aFLOP)/s, ([%d.]+) GB/s of memory")
    check(not cuda or unit == "TFLOP" and tonumber(memory) > 1000, "ceilings: %s", title)
    return ("%s %s/s, %s GB/s; best row %d %%"):format(peak, unit, memory, best)
  end

  local function collectives()
    local text = run(("bench collectives --device %s --ranks 2 --rounds 2 -b 64K -e 64M -f 32 "
      .. "-o json"):format(tools.device))
    local said = {}
    for _, row in ipairs(core.json.decode(find(text, "%b{}")).tables[1].rows) do
      check(row[9] == "0" or row[9] == 0, "%s of %s bytes: %s wrong", row[1], row[2], row[9])
      if tonumber(row[2]) >= 64 << 20 then said[#said + 1] = ("%s %s"):format(row[1], row[8]) end
    end
    return "busbw GB/s at 64 MiB: " .. table.concat(said, ", ")
  end

  --- llama_1b on tokens that are made here: documents of 997 random ids.
  local function llama()
    local ids, state = {}, 1
    for i = 1, 700000 do
      state = (state * 1103515245 + 12345) % 2147483648
      ids[i] = i % 997 == 0 and 2 or 3 + (state >> 8) % 31997
    end
    room:write_tokens("llama.bin", ids, "I2")
    return room:write("llama.lua", ([[
local tl = require "tidelock"
return tl.load "%s/recipes/llama_1b.lua":with {
  data = tl.data.tokens { "%s", dtype = "uint16", eos = 2 },
  ["train.save"] = false, ["train.lr"] = { "constant", 4e-4 }, ["train.steps"] = 10,
}]]):format(core.files.realpath ".", room:path "llama.bin"))
  end

  local base = { "eval=nil", "device=" .. tools.device, "batch.samples=16" }
  local layouts = { -- those with explain also say what the step lacks
    { "policy=batch", "layout.dp=1", "layout.tp=2", explain = true },
    { "policy=batch", "layout.dp=2", explain = true },
    { "policy=batch", "layout.dp=1", explain = true },
    { "policy=batch", "layout.dp=1", "layout.pp=2", "batch.micro=4" },
    { "layout.dp=1" }, { "layout.dp=2" }, { "layout.dp=1", "layout.tp=2" },
    { "layout.dp=1", "layout.pp=2" },
  }

  local function opened(path, words)
    local first = cuda and base or {}
    return driver.start(requests.recipe(path, table.move(words, 1, #words, #first + 1,
      table.move(first, 1, #first, 1, {}))))
  end

  --- The gap between a step and its ceiling, the six worst parts.
  local function explain(one)
    local found = gap.table(one, { rounds = 1, steps = 3 })
    print("    " .. found.title)
    print("    " .. table.concat(found.notes, "; "))
    for i = 1, math.min(6, #found.rows) do
      print(("    %-9s %-22s %8s ms %6s %s"):format(table.unpack(found.rows[i])))
    end
  end

  --- One line a layout: what the cluster file predicts, and the median of steps 3 to 8.
  local function predict()
    local path, facts = cuda and llama() or tools.small, cluster.read "recipes/clusters/h200x8.yaml"
    local first = core.files.seconds()
    for _, words in ipairs(layouts) do
      local name, late = table.concat(words, " "), core.files.seconds() - first > tools.seconds
      if late then
        print("  " .. name .. ": left out, seconds=" .. tools.seconds)
      elseif tools.gpus > 1 or not name:find "=2" then
        local begin, ms = core.files.seconds(), {}
        local one <close> = opened(path, words)
        local planned = observer.new(one, facts).step_seconds * 1000
        local open = core.files.seconds() - begin
        for i = 1, 8 do
          local took = one:step().ms
          if i > 2 then ms[#ms + 1] = took end
        end
        table.sort(ms)
        local middle = (ms[3] + ms[4]) / 2
        print(("  %-47s planned %6.1f ms, measured %6.1f (%.1f to %.1f), error %+.1f %%; open "
          .. "%.1f s"):format(name, planned, middle, ms[1], ms[#ms],
          100 * (planned / middle - 1), open))
        if words.explain then explain(one) end
        io.stdout:flush()
      end
    end
    return "above"
  end

  for i, case in ipairs {
    { name = "repeat", run = repeated }, { name = "metrics", run = metrics },
    { name = "roofline", run = roofline }, { name = "matrix", run = matrix },
    { name = "step", run = function() return step "layout.dp=1" end },
    { name = "steps", run = function() return step "layout.tp=2" end, gpus = 2 },
    { name = "links", run = collectives, gpus = 2 },
    { name = "predict", run = predict, long = true },
  } do cases[i] = case end
  return cases
end
